"""A phase: one stage of a training curriculum, written in YAML."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from dreamlab.core.limits import Items, Positive, PositiveInt, Share

ENGINE_HOOKS = ("collect", "evaluate", "checkpoint")


@dataclass(frozen=True)
class Phase:
    """Which hooks to call, on which buffer, and for how long.

    The hooks run in order, repeatedly (a cycle), until the duration is over. Exactly one duration
    is given: `duration_steps` counts env frames, `duration_updates` calls of update hooks,
    `duration_cycles` rounds through the hooks.
    """

    name: str
    workflow_hooks: Annotated[tuple[str, ...], Items()]
    type: Literal["online", "offline", "eval_only"] = "online"
    buffer: str = "replay"
    """The buffer that `collect` adds to and updates sample from."""
    sources: dict[str, Positive] | None = None
    """The buffers that updates sample from instead, each with its share of a batch."""
    proportional: tuple[str, ...] = ()
    """Update hooks that sample these sources in proportion to their stored steps."""
    duration_steps: PositiveInt | None = None
    duration_updates: PositiveInt | None = None
    duration_cycles: PositiveInt | None = None
    collect_ticks: PositiveInt = 1
    """Vector ticks per `collect`; for a rollout buffer, its length."""
    train_ratio: Positive | None = None
    """Replayed steps per decision. None: every update hook runs once per cycle."""
    random_actions: bool = False
    """Collect with uniformly random actions instead of the policy's."""
    fresh_episodes: bool = False
    """Reset all environments at every `collect`; unfinished episodes are dropped."""
    progress: Share = field(default=0.0, init=False)
    """Progress of training, 0 to 1; set by the scheduler, read by hooks."""

    def at(self, progress: float) -> Phase:
        """Return this phase at `progress` of training."""
        seen = object.__new__(Phase)  # several per step: copy.copy takes five times as long
        seen.__dict__.update(self.__dict__, progress=progress)
        return seen

    @property
    def collects(self) -> bool:
        return "collect" in self.workflow_hooks

    @property
    def draws_from(self) -> tuple[str, ...]:
        """Return the names of the buffers that batches are sampled from."""
        return (self.buffer,) if self.sources is None else tuple(self.sources)

    @property
    def update_hooks(self) -> tuple[str, ...]:
        return tuple(h for h in self.workflow_hooks if h not in ENGINE_HOOKS)
