"""Measures a policy on its own environments, without touching the training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Protocol

import numpy as np
import torch

from dreamlab.core import rng as random
from dreamlab.core.limits import Natural, PositiveInt, Range, Seed
from dreamlab.core.types import Array, Mode, Step
from dreamlab.core.workflow import Workflow
from dreamlab.engine.every import EveryConfig


@dataclass(frozen=True)
class EvalConfig(EveryConfig):
    """How often a policy is measured, and on how many episodes.

    With 0 it is measured only where a phase says so, and at the end.
    """

    episodes: PositiveInt = 10
    num_envs: Annotated[int, Range(1, 65_536)] = 5
    max_steps: Natural = 27_000
    """Decisions after which an episode is truncated if the environment has no time limit; the
    default is half an hour of Atari. 0: never."""
    video: bool = True
    """Record a video of the first episode of the last evaluation (and regularly, with
    video_every)."""
    video_every: bool = False
    sample: bool = False
    """Sample actions as in training instead of taking the mode."""
    policy_alone: bool = False
    """Also evaluate the policy without its planner: `eval/policy_return`, and
    `eval/policy_overestimation` if the agent predicts values."""
    seed: Seed = 10_000
    """Seed of the evaluation episodes, the same at every evaluation."""
    video_frames: PositiveInt = 500
    """Maximum length of a video; rendering can be much slower than stepping."""


class UnfinishedError(Exception):
    """An evaluation was stopped; its results are discarded."""


class EvalEnv(Protocol):
    """What the evaluator asks of environments."""

    num_envs: int
    raw_reward: Array
    normalizer: Any

    def reset(self) -> Step: ...
    def step(self, action: Array) -> Step: ...
    def cut(self, which: Array) -> None: ...
    def pop_finals(self) -> list[dict[str, float]]: ...
    def summary(self, finals: Sequence[dict[str, float]]) -> dict[str, float]: ...
    def render(self) -> Array | None: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Episode:
    """What one episode came to; `final` is what the environment reported at its end."""

    total: float
    length: int
    final: dict[str, float]
    was_cut: bool
    excess: float | None = None
    """Predicted value at the start minus the discounted return: the value overestimation."""


@dataclass
class EvalResult:
    """Returns and lengths of the episodes, in the order they were started."""

    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    finals: list[dict[str, float]] = field(default_factory=list)
    summary: dict[str, float] = field(default_factory=dict)
    """Metrics over all episodes, as defined by the environment."""
    cut: int = 0
    """Episodes truncated after `max_steps`."""
    excess: list[float] = field(default_factory=list)
    """Mean value overestimation, if the agent predicts values."""
    frames: list[Array] = field(default_factory=list, repr=False)
    """Rendered frames of the first episode, if requested."""
    video: Path | None = None

    @property
    def mean(self) -> float:
        """The mean return."""
        return float(np.mean(self.returns))

    def metrics(self) -> dict[str, float]:
        """Return the summary that is logged under `eval/`."""
        r = np.array(self.returns)
        out = {
            "return": float(r.mean()),
            "return_std": float(r.std()),
            "return_min": float(r.min()),
            "return_max": float(r.max()),
            "length": float(np.mean(self.lengths)),
            "episodes": float(len(r)),
        }
        for name in dict.fromkeys(k for final in self.finals for k in final):
            out[name] = float(np.mean([f[name] for f in self.finals if name in f]))
        if self.excess:
            out["overestimation"] = float(np.mean(self.excess))
        if self.cut:
            out["cut"] = float(self.cut)
        return {f"eval/{k}": v for k, v in {**out, **self.summary}.items()}

    def cut_text(self, max_steps: int) -> str:
        """Return what to say about episodes that were cut."""
        return (
            f"{self.cut} of {len(self.returns)} evaluation episodes were truncated after "
            f"{max_steps:,} decisions (eval.max_steps); env.time_limit sets a time limit"
        )


class Expectation:
    """Discounted returns of the running episodes, beside what was expected of them."""

    def __init__(self, num: int) -> None:
        self.value, self.gamma = np.full(num, np.nan), np.ones(num)
        self.came, self.factor = np.zeros(num), np.ones(num)

    def begin(self, workflow: Workflow[Any], step: Step) -> None:
        """Ask what the agent expects of the episodes that start."""
        new = step.is_first
        if not new.any() or (told := workflow.expected_return(workflow.obs_tensors(step))) is None:
            return
        value, gamma = (x.double().cpu().numpy() for x in told)
        self.value[new], self.gamma[new] = value[new], gamma[new]
        self.came[new], self.factor[new] = 0.0, 1.0

    def add(self, step: Step) -> None:
        """Take in the rewards of a step."""
        self.came += self.factor * step.reward * ~step.is_first
        self.factor = np.where(step.is_first, self.factor, self.factor * self.gamma)

    def excess(self, i: int) -> float | None:
        """Return by how much an episode brought less than expected, if anything was."""
        return None if np.isnan(self.value[i]) else float(self.value[i] - self.came[i])


class Tally:
    """Counts the episodes of N environments; one that continues for too long is cut."""

    def __init__(self, envs: EvalEnv, max_steps: int) -> None:
        self.envs, self.max_steps = envs, max_steps
        self.totals, self.lengths = np.zeros(envs.num_envs), np.zeros(envs.num_envs, np.int64)
        self.played: list[list[Episode]] = [[] for _ in range(envs.num_envs)]
        self.expected = Expectation(envs.num_envs)

    def add(self, step: Step) -> None:
        """Take in a step of every environment."""
        self.totals += self.envs.raw_reward
        self.lengths += ~step.is_first
        self.expected.add(step)
        self._end(step.is_last, was_cut=False)
        late = self.lengths >= (self.max_steps or np.inf)
        if late.any():
            self.envs.cut(late)
            self._end(late, was_cut=True)

    def _end(self, which: Array, was_cut: bool) -> None:
        for i, final in zip(np.flatnonzero(which), self.envs.pop_finals(), strict=True):
            total, length, excess = self.totals[i], self.lengths[i], self.expected.excess(int(i))
            self.played[i].append(Episode(float(total), int(length), final, was_cut, excess))
            self.totals[i], self.lengths[i] = 0.0, 0


class Evaluator:
    """Runs whole episodes on fresh environments; every generator is left as it was."""

    def __init__(self, config: EvalConfig, make_envs: Callable[[int, int], EvalEnv]) -> None:
        self.config, self.make_envs = config, make_envs

    def run(
        self,
        workflow: Workflow[Any],
        statistics: dict[str, Any] | None,
        film: bool = False,
        stop: Callable[[], bool] = lambda: False,
    ) -> EvalResult:
        """Return what the policy achieves; `statistics` are those that training normalizes with.

        With `film` it holds images of the first episode. Once `stop` says so, raise
        `UnfinishedError`.
        """
        mode = Mode.SAMPLE if self.config.sample else Mode.EVAL
        result = self._measure(workflow, statistics, mode, film, stop)
        if self.config.policy_alone:
            alone = self._measure(workflow, statistics, Mode.POLICY, False, stop)
            result.summary["policy_return"] = float(np.mean(alone.returns))
            if alone.excess:
                result.summary["policy_overestimation"] = float(np.mean(alone.excess))
        return result

    def _measure(
        self,
        workflow: Workflow[Any],
        statistics: dict[str, Any] | None,
        mode: Mode,
        film: bool,
        stop: Callable[[], bool],
    ) -> EvalResult:
        """Return what the policy achieves in one way of acting."""
        num = max(1, min(self.config.num_envs, self.config.episodes))
        was_training = workflow.training
        with random.fork(self.config.seed):
            envs = self.make_envs(num, self.config.seed)
            try:
                if statistics:
                    envs.normalizer.set_state(statistics)
                envs.normalizer.frozen = True
                workflow.eval()
                with workflow.averaged():
                    return self._play(workflow, envs, mode, film, stop)
            finally:
                workflow.train(was_training)
                envs.close()

    @torch.no_grad()
    def _play(
        self,
        workflow: Workflow[Any],
        envs: EvalEnv,
        mode: Mode,
        film: bool,
        stop: Callable[[], bool],
    ) -> EvalResult:
        quota = -(-self.config.episodes // envs.num_envs)
        step, state = envs.reset(), workflow.initial_state(envs.num_envs)
        tally = Tally(envs, self.config.max_steps)
        frames = [envs.render()] if film else []
        while min(len(p) for p in tally.played) < quota:
            if stop():
                raise UnfinishedError
            tally.expected.begin(workflow, step)
            decision = workflow.act(step, state, mode)
            state = decision.state
            step = envs.step(decision.action.cpu().numpy())
            tally.add(step)
            if film and not tally.played[0] and len(frames) < self.config.video_frames:
                frames.append(envs.render())
        # whole rounds, so that short episodes are not counted more often than long ones
        rounds = [p[k] for k in range(quota) for p in tally.played][: self.config.episodes]
        return _result(rounds, envs, [f for f in frames if f is not None])


def _result(rounds: Sequence[Episode], envs: EvalEnv, frames: list[Array]) -> EvalResult:
    finals = [e.final for e in rounds]
    return EvalResult(
        [e.total for e in rounds],
        [e.length for e in rounds],
        finals,
        envs.summary(finals),
        sum(e.was_cut for e in rounds),
        [e.excess for e in rounds if e.excess is not None],
        frames,
    )
