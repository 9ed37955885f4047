"""Options of actors, and which runs support them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Literal

from dreamlab.core.config import Part
from dreamlab.core.errors import ConfigError
from dreamlab.core.limits import Natural, NonNegative, Positive, PositiveInt, Range
from dreamlab.core.phase import Phase
from dreamlab.data.source import BufferConfig

NOT_EXACT = (
    "actors collect in separate processes: which weights decide a step depends on their timing"
)
"""Why such a run is not bit-reproducible."""


@dataclass(frozen=True)
class ActorsConfig:
    """Number of collecting processes, where they run, and how far they may lag the learner.

    `actors=4` is short for `actors.num=4`.
    """

    num: Annotated[int, Range(0, 10_000)] = 0
    """Number of actors, each with its own `env.num_envs` environments; 0 collects in the learner.
    """
    where: Literal["local", "ray"] = "local"
    """`local`: processes on this machine; `ray`: actors on a Ray cluster."""
    weights_age_s: NonNegative = 1.0
    """Send new weights once those of the actors have been outdated for this long."""
    block_ticks: PositiveInt = 16
    """Maximum ticks per block sent to the learner."""
    block_s: NonNegative = 0.05
    """Send a block earlier after this long."""
    queue_ticks: PositiveInt = 64
    """Maximum ticks that an actor may be ahead of the learner before it waits."""
    restarts: Natural = 5
    """Restarts of an actor that dies without a step before the run ends."""
    address: str | None = None
    """The Ray cluster (`auto`, `host:port`, `ray://host:port`); None starts one on this machine,
    for this run."""
    cpus: Positive = 1.0
    """CPUs that a Ray actor requests."""
    wait_s: Positive = 60.0
    """Time limit for a Ray actor to return a block, or to be placed in the cluster; then the run
    ends.
    """
    linger_s: NonNegative = 0.0
    """How long the actors of a cluster wait for a learner that died: the same command takes them
    over. 0: they end with it.
    """

    def __post_init__(self) -> None:
        if self.queue_ticks < self.block_ticks:
            raise ValueError(
                f"queue_ticks={self.queue_ticks} must hold a block: block_ticks={self.block_ticks}"
            )
        if not self.num:
            self._refuse([f.name for f in fields(self)], "without actors.num")
        if self.where == "local":
            self._refuse(["address", "cpus", "wait_s", "linger_s"], "without actors.where=ray")
        if self.address is None:
            self._refuse(["linger_s"], "without actors.address: the cluster ends with the learner")

    def _refuse(self, names: Sequence[str], why: str) -> None:
        """Raise if one of these options was changed where it has no effect."""
        for name in names:
            if getattr(self, name) != getattr(type(self), name):
                raise ValueError(f"{name} has no effect {why}")


def check_actors(
    config: ActorsConfig, phases: Sequence[Phase], buffers: Mapping[str, Part]
) -> None:
    """Raise if a run cannot use actors: it trains on its newest steps only, or collects none.

    Names of buffers were checked before.
    """
    if not config.num:
        return
    collecting = [p for p in phases if p.collects]
    if not collecting:
        raise ConfigError("actors.num has no effect: no phase collects")
    for phase in collecting:
        where = f"actors.num: phase {phase.name!r}"
        options = buffers[phase.buffer].config
        if isinstance(options, BufferConfig) and options.window() is None:
            raise ConfigError(
                f"{where} is on-policy: buffers.{phase.buffer} holds what the newest weights did, "
                "and is used once; actors act with older weights. Remove actors, and use "
                "env.num_envs with env.vector=async instead."
            )
        if phase.fresh_episodes:
            raise ConfigError(
                f"{where} has fresh_episodes: actors do not stop between two collections, so "
                f"their episodes cannot start with each. Remove one of them."
            )
