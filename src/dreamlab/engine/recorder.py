"""Plays episodes with a policy and keeps everything that a dataset has of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from dreamlab.core import rng as random
from dreamlab.core.errors import LabError
from dreamlab.core.types import Array, Mode, Step
from dreamlab.core.workflow import Workflow
from dreamlab.data.datasets.gathered import Recorded, is_picture, observation_name
from dreamlab.data.datasets.table import ACTION, DONE, REWARD, SUCCESS, TRUNCATED

RENDERED = "observation.images.render"


class RecordedEnv(Protocol):
    """What is asked of one environment behind a vector."""

    raw_reward: Array
    shown: dict[str, Array]
    normalizer: Any

    def reset(self) -> Step: ...
    def step(self, action: Array) -> Step: ...
    def own_action(self, action: Array) -> Array: ...
    def pop_finals(self) -> list[dict[str, float]]: ...
    def render(self) -> Array | None: ...


@dataclass(frozen=True)
class How:
    """How episodes are played and what is kept of them."""

    mode: Mode = Mode.EVAL
    render: bool = False
    seed: int = 0
    max_steps: int = 27_000


@dataclass
class _Rows:
    """The frames of the episode that is being played."""

    columns: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])

    def add(self, **frame: Any) -> None:
        for name, value in frame.items():
            self.columns.setdefault(name, []).append(np.array(value))

    def arrays(self) -> dict[str, Any]:
        return {k: np.stack(v) for k, v in self.columns.items()}


def play(workflow: Workflow[Any], envs: RecordedEnv, how: How) -> Iterator[Recorded]:
    """Yield one episode after the other, in the environment's own units, for as long as asked.

    Random numbers of the caller are left as they were between episodes.
    """
    state: Any = workflow.initial_state(1)
    with random.fork(how.seed):
        step, kept = envs.reset(), random.get_state()
    index = 0
    while True:
        before = random.get_state()
        random.set_state(kept)
        try:
            episode, step, state = _episode(workflow, envs, how, (index, step, state))
            kept = random.get_state()
        finally:
            random.set_state(before)
        yield episode
        index += 1


@torch.no_grad()
def _episode(
    workflow: Workflow[Any], envs: RecordedEnv, how: How, begin: tuple[int, Step, Any]
) -> tuple[Recorded, Step, Any]:
    """Play one episode; return it, and the step and memory that the next one starts with."""
    index, step, state = begin
    rows, ended = _Rows(), False
    with workflow.averaged():
        while not ended:
            frame = _shown(envs, how)
            decision = workflow.act(step, state, how.mode)
            action, state = decision.action.cpu().numpy(), decision.state
            frame[ACTION] = envs.own_action(action)[0]
            step = envs.step(action)
            ended = bool(step.is_last[0])
            if not ended and len(rows.columns.get(ACTION, ())) + 1 >= (how.max_steps or np.inf):
                raise LabError(
                    f"episode {index} did not end within {how.max_steps:,} decisions "
                    "(eval.max_steps): set env.time_limit"
                )
            terminal = bool(step.is_terminal[0])
            rows.add(
                **frame,
                **{REWARD: np.float32(envs.raw_reward[0]), DONE: ended or terminal,
                   TRUNCATED: ended and not terminal},
            )  # fmt: skip
    columns = rows.arrays()
    told = envs.pop_finals()
    if told and "success" in told[0]:
        last = np.arange(len(columns[ACTION])) == len(columns[ACTION]) - 1
        columns[SUCCESS] = last & bool(told[0]["success"])
    episode = Recorded(index, columns)
    over = workflow.act(step, state, how.mode)  # its memory sees the end; the action is void
    return episode, envs.step(over.action.cpu().numpy()), over.state


def _shown(envs: RecordedEnv, how: How) -> dict[str, Any]:
    """Return what the environment shows now, by the names of a dataset."""
    frame = {
        observation_name(k, is_picture(v.dtype, v.shape[1:])): v[0].copy()  # a step overwrites them
        for k, v in envs.shown.items()
    }
    if how.render:
        picture = envs.render()
        if picture is None:
            raise LabError("the environment cannot be rendered: remove --render")
        frame[RENDERED] = picture
    return frame
