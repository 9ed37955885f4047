"""What the composition root hands to the loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from dreamlab.core.affine import Scaling
from dreamlab.core.errors import ConfigError
from dreamlab.core.workflow import Workflow
from dreamlab.data.source import Buffer
from dreamlab.engine.accelerate import ComputeConfig, check_several
from dreamlab.engine.actors.background import BackgroundEvaluator
from dreamlab.engine.actors.collector import RemoteCollector
from dreamlab.engine.actors.options import ActorsConfig
from dreamlab.engine.checkpoint import CheckpointConfig
from dreamlab.engine.collector import Collector
from dreamlab.engine.evaluator import EvalConfig, Evaluator
from dreamlab.engine.logger import LogConfig, Logger
from dreamlab.engine.observer import Observers
from dreamlab.engine.processes import DistributedConfig
from dreamlab.engine.report import Known, ReportConfig
from dreamlab.engine.terminal import Terminal
from dreamlab.engine.watch import Floor, WatchConfig


class RunLog(Protocol):
    """The run directory, as the loop sees it."""

    folder: Path
    manifest: dict[str, Any]

    @property
    def saved(self) -> bool:
        """Return whether a checkpoint was ever saved."""
        ...

    def event(self, kind: str, **data: Any) -> None: ...
    def update(self, **data: Any) -> None: ...


@dataclass(frozen=True)
class EngineConfig(ComputeConfig):
    """Options of the loop itself."""

    log: LogConfig = field(default_factory=LogConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    report: ReportConfig = field(default_factory=ReportConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    watch: WatchConfig = field(default_factory=WatchConfig)
    actors: ActorsConfig = field(default_factory=ActorsConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)

    @property
    def processes(self) -> int:
        """Return how many processes are to train, whichever option says so."""
        return max(self.devices, self.distributed.processes)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.devices > 1 and self.distributed.processes not in (1, self.devices):
            raise ConfigError(
                f"devices={self.devices} and distributed.processes={self.distributed.processes} "
                "contradict each other: leave one of them out"
            )
        check_several(self.device, self.processes)
        if self.actors.num and self.processes > 1:
            raise ConfigError(
                "actors.num: actors feed one learner; remove it, or distributed.processes"
            )
        if self.distributed.shard and self.processes > 1:
            self._check_shard()

    def _check_shard(self) -> None:
        """Raise on what does not go together with sharded weights."""
        if self.compile:
            raise ConfigError("compile: sharded weights are gathered outside of compiled code")
        if self.log.norms:
            raise ConfigError("log.norms: with distributed.shard no process has whole weights")


@dataclass
class LoopParts:
    """Everything that a loop drives."""

    workflow: Workflow[Any]
    collector: Collector | RemoteCollector | None
    """None if no phase collects."""
    buffers: Mapping[str, Buffer]
    evaluator: Evaluator | None
    """None if there is no environment."""
    logger: Logger
    terminal: Terminal
    run: RunLog
    known: Known = field(default_factory=Known)
    floor: Floor = lambda frames: None
    observers: Observers = field(default_factory=Observers)
    scaling: Scaling = field(default_factory=Scaling)
    """Normalization of the training data, also needed to act."""
    background: BackgroundEvaluator | None = None
    """Where a run with actors is measured; None without them."""
