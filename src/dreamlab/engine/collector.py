"""Steps environments with a workflow's policy and stores what happens. The only place that does."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from dreamlab.core import rng as random
from dreamlab.core import world
from dreamlab.core.tree import tree_map
from dreamlab.core.types import Array, Decision, Mode, Spec, Step
from dreamlab.core.workflow import Workflow
from dreamlab.data.store import Taker
from dreamlab.engine.observer import Observers


class VectorEnv(Protocol):
    """What the collector asks of environments."""

    num_envs: int
    spec: Spec
    frames_per_tick: int
    raw_reward: Array
    normalizer: Any
    parallel: bool

    @property
    def pending(self) -> bool: ...
    def reset(self) -> Step: ...
    def send(self, action: Array) -> None: ...
    def receive(self) -> Step: ...
    def pop_finals(self) -> list[dict[str, float]]: ...
    def get_state(self) -> dict[str, Any]: ...
    def set_state(self, state: dict[str, Any], step: Step) -> tuple[Step, list[int]]: ...


@dataclass
class Collected:
    """What one call of `collect` did, and the episodes whose end it saw."""

    frames: int = 0
    decisions: int = 0
    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    finals: list[dict[str, float]] = field(default_factory=list)


class Collector:
    """Owns the environments of training, the policy's private state and the running episodes.

    tick              0                     1                     2
    collect     act, add, send  ─▶  receive, act, add, send  ─▶  receive, ...
    meanwhile       environments step, updates train

    Environments in their own processes work on the next step while the training continues; it is
    received when it is needed: by the next tick, an evaluation or a checkpoint, or at once where
    the buffer needs it. Episodes that it ends are reported by the collect that follows.
    """

    def __init__(
        self,
        envs: VectorEnv,
        workflow: Workflow[Any],
        seed: int,
        observers: Observers | None = None,
    ) -> None:
        self.envs, self.workflow = envs, workflow
        self.rng = np.random.default_rng(seed)
        self.step: Step | None = None
        self.ended = Collected()
        self.state = workflow.initial_state(envs.num_envs)
        self.returns = np.zeros(envs.num_envs)
        self.lengths = np.zeros(envs.num_envs, np.int64)
        self.observers = observers or Observers()

    def collect(
        self, ticks: int, buffer: Taker, random_actions: bool = False, fresh: bool = False
    ) -> Collected:
        """Run every environment for `ticks` steps; a tick that starts an episode has no frame.

        If `fresh`, episodes that are not over are dropped, and all start over.
        """
        envs, act, frames, ticked = self.envs, self.workflow.act, 0, self.observers.ticked
        if fresh:
            self.begin_anew()
        for _ in range(ticks):
            step = self._current()
            if random_actions:
                decision = self._randomise(self.workflow.fill(step, self.state))
            else:
                decision = act(step, self.state, Mode.TRAIN)
            buffer.add(step, decision)
            self.state = decision.state
            action, ended = decision.action.cpu().numpy(), int(np.count_nonzero(step.is_last))
            for tell in ticked:
                tell(step, action, ended)
            frames += envs.num_envs - ended  # one whose episode has ended starts over
            envs.send(action)
        if buffer.needs_next or not envs.parallel:
            buffer.finish(self._current())
        out, self.ended = self.ended, Collected()
        out.frames = frames * envs.frames_per_tick
        out.decisions = ticks * envs.num_envs
        return out

    def _current(self) -> Step:
        """Return the step to act on, waiting for it if need be."""
        if self.step is None:
            self.step = self.envs.reset()
        elif self.envs.pending:
            self.step = self.envs.receive()
            self._track(self.step)
        return self.step

    def begin_anew(self) -> None:
        """Start a new episode in every environment, unless all of them just did."""
        if not self._current().is_first.all():
            self.step = self.envs.reset()
            self.returns[:], self.lengths[:] = 0.0, 0

    def wait(self) -> None:
        """Wait for the step that the environments work on, if they do."""
        if self.envs.pending:
            self._current()

    def agree(self) -> None:
        """Normalise from now on with what all processes have seen."""
        if world.size() > 1:
            self.envs.normalizer.agree()

    def statistics(self) -> dict[str, Any]:
        """Return what the environments normalize with, once they have done what they were sent."""
        self.wait()
        return self.envs.normalizer.get_state()

    def _track(self, step: Step) -> None:
        """Add rewards to the running episodes and take note of those that ended."""
        self.returns += self.envs.raw_reward
        self.lengths += ~step.is_first
        if np.count_nonzero(step.is_last):  # a fifth of the time of any()
            for i in np.flatnonzero(step.is_last):
                self.ended.returns.append(float(self.returns[i]))
                self.ended.lengths.append(int(self.lengths[i]))
            self.returns[step.is_last] = 0.0
            self.lengths[step.is_last] = 0
            self.ended.finals += self.envs.pop_finals()

    def _randomise(self, decision: Decision) -> Decision:
        """Replace the actions by uniformly random ones, from the collector's own generator."""
        spec, shape = self.envs.spec.action, tuple(decision.action.shape)
        if spec.classes is None:
            low, high = (
                spec.low if spec.low is not None else -1.0,
                spec.high if spec.high is not None else 1.0,
            )
            action = self.rng.uniform(low, high, shape).astype(np.float32)
        else:
            action = self.rng.integers(0, np.asarray(spec.classes), shape)
        chosen = torch.from_numpy(action).to(decision.action.device, decision.action.dtype)
        return self.workflow.with_action(decision, chosen)

    def get_state(self) -> dict[str, Any]:
        """Return environments, running episodes and the policy's private state as plain data."""
        self.wait()
        step = (
            None
            if self.step is None
            else {f.name: getattr(self.step, f.name) for f in fields(self.step)}
        )
        return {
            "envs": self.envs.get_state(),
            "step": tree_map(np.copy, step) if step is not None else None,
            "state": self.state,
            "returns": self.returns.copy(),
            "lengths": self.lengths.copy(),
            "ended": asdict(self.ended),
            "rng": random.generator_state(self.rng),
        }

    def set_state(self, state: dict[str, Any]) -> list[int]:
        """Continue from saved state; return the environments that had to start a new episode."""
        self.wait()
        random.set_generator_state(self.rng, state["rng"])
        self.ended = Collected(**state.get("ended", {}))  # older checkpoints have none
        self.state = tree_map(self._place, state["state"])
        self.returns, self.lengths = np.array(state["returns"]), np.array(state["lengths"])
        if state["step"] is None:
            return []
        saved = Step(**tree_map(np.array, state["step"]))
        self.step, lost = self.envs.set_state(state["envs"], saved)
        self.returns[lost], self.lengths[lost] = 0.0, 0
        return lost

    def _place(self, leaf: Any) -> Any:
        return leaf.to(self.workflow.device) if isinstance(leaf, Tensor) else leaf
