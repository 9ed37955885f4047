"""Measures a policy on environments of its own, without touching the training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from dreamlab.core import rng as random
from dreamlab.core.types import Array, Mode, Step
from dreamlab.core.workflow import Workflow
from dreamlab.engine.video import write_video


@dataclass(frozen=True)
class EvalConfig:
    """How often a policy is measured, and on how many episodes."""

    every_frames: int = 0
    """Env frames between evaluations; 0 evaluates only where a phase says so, and at the end."""
    episodes: int = 10
    num_envs: int = 5
    video: bool = True
    """Write a video of the first episode of the last evaluation (and of each, with video_every)."""
    video_every: bool = False
    sample: bool = False
    """Sample actions as in training instead of taking the mode."""
    seed: int = 10_000
    """The same episodes every time: they begin from this seed."""
    video_frames: int = 500
    """Longest video; drawing can be much slower than playing."""


Episode = tuple[float, int, float | None]  # return, length, success if the environment tells


class EvalEnv(Protocol):
    """What the evaluator asks of environments."""

    num_envs: int
    raw_reward: Array
    normalizer: Any

    def reset(self) -> Step: ...
    def step(self, action: Array) -> Step: ...
    def pop_finals(self) -> list[dict[str, float]]: ...
    def render(self) -> Array | None: ...
    def close(self) -> None: ...


@dataclass
class EvalResult:
    """Returns and lengths of the episodes, in the order they were started."""

    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    successes: list[float] = field(default_factory=list)
    video: Path | None = None

    def metrics(self) -> dict[str, float]:
        """Return the summary that is logged under `eval/`."""
        r = np.array(self.returns)
        out = {
            "eval/return": float(r.mean()),
            "eval/return_std": float(r.std()),
            "eval/return_min": float(r.min()),
            "eval/return_max": float(r.max()),
            "eval/length": float(np.mean(self.lengths)),
            "eval/episodes": float(len(r)),
        }
        if self.successes:
            out["eval/success"] = float(np.mean(self.successes))
        return out


class Evaluator:
    """Runs whole episodes on fresh environments; every generator is left as it was."""

    def __init__(self, config: EvalConfig, make_envs: Callable[[int, int], EvalEnv]) -> None:
        self.config, self.make_envs = config, make_envs

    def run(
        self, workflow: Workflow[Any], statistics: dict[str, Any] | None, video: Path | None = None
    ) -> EvalResult:
        """Return what the policy achieves; `statistics` are those that training normalises with."""
        num = max(1, min(self.config.num_envs, self.config.episodes))
        with random.fork(self.config.seed):
            envs = self.make_envs(num, self.config.seed)
            try:
                if statistics is not None:
                    envs.normalizer.set_state(statistics)
                envs.normalizer.frozen = True
                was_training = workflow.training
                workflow.eval()
                with workflow.averaged():
                    result = self._play(workflow, envs, video)
                workflow.train(was_training)
            finally:
                envs.close()
        return result

    @torch.no_grad()
    def _play(self, workflow: Workflow[Any], envs: EvalEnv, video: Path | None) -> EvalResult:
        quota = -(-self.config.episodes // envs.num_envs)
        mode = Mode.TRAIN if self.config.sample else Mode.EVAL
        step, state = envs.reset(), workflow.initial_state(envs.num_envs)
        totals, lengths = np.zeros(envs.num_envs), np.zeros(envs.num_envs, np.int64)
        played: list[list[Episode]] = [[] for _ in range(envs.num_envs)]
        frames = [envs.render()] if video is not None else []
        while min(len(p) for p in played) < quota:
            decision = workflow.act(step, state, mode)
            state = decision.state
            step = envs.step(decision.action.cpu().numpy())
            totals += envs.raw_reward
            lengths += ~step.is_first
            for i, final in zip(np.flatnonzero(step.is_last), envs.pop_finals(), strict=True):
                played[i].append((float(totals[i]), int(lengths[i]), final.get("success")))
                totals[i], lengths[i] = 0.0, 0
            if video is not None and not played[0] and len(frames) < self.config.video_frames:
                frames.append(envs.render())
        return self._result(played, quota, [f for f in frames if f is not None], video)

    def _result(
        self, played: list[list[Episode]], quota: int, frames: list[Array], video: Path | None
    ) -> EvalResult:
        # whole rounds, so that short episodes are not counted more often than long ones
        rounds = [p[k] for k in range(quota) for p in played][: self.config.episodes]
        result = EvalResult([r for r, _, _ in rounds], [n for _, n, _ in rounds])
        result.successes = [s for _, _, s in rounds if s is not None]
        if frames and video is not None:
            result.video = write_video(video, frames)
        return result
