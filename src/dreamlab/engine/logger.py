"""Metrics: gathered while the loop runs, flushed to every sink at once."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from torch import Tensor

from dreamlab.core import world
from dreamlab.core.clock import LATE
from dreamlab.core.limits import Natural
from dreamlab.engine.every import EveryConfig
from dreamlab.engine.media import Media

Record = dict[str, float]
MACHINE = ("time/", "system/")
"""Metrics with these prefixes depend on the machine: identical runs differ in them."""


@dataclass(frozen=True)
class LogConfig(EveryConfig):
    """Where metrics go and how often; `metrics.jsonl` is always written."""

    every_frames: Natural = 1_000
    every_updates: Natural = 100
    terminal: Literal["auto", "live", "plain", "off"] = "auto"
    """auto: a live view in a terminal, plain lines otherwise."""
    chain: bool = True
    """Write `chain.jsonl`, the digests that `dreamlab verify` compares."""
    system: bool = True
    """Log memory, CPU and GPU usage under `system/`."""
    norms: bool = False
    """Log norms of gradients, weights and weight changes by module under `norms/`."""
    tensorboard: bool = False
    wandb: bool = False
    wandb_project: str | None = None
    """None: WANDB_PROJECT, else dreamlab."""
    wandb_entity: str | None = None
    """None: WANDB_ENTITY, else that of the account."""
    wandb_group: str | None = None
    """None: WANDB_RUN_GROUP, else the name of the experiment."""
    wandb_name: str | None = None
    """None: WANDB_NAME, else the experiment and the run directory."""
    wandb_job_type: str | None = None
    """None: WANDB_JOB_TYPE, else train."""
    wandb_notes: str | None = None
    """None: WANDB_NOTES."""
    wandb_mode: Literal["online", "offline", "disabled"] | None = None
    """None: WANDB_MODE, else offline."""

    def __post_init__(self) -> None:
        given = [
            f.name
            for f in fields(self)
            if f.name.startswith("wandb_")
            and getattr(self, f.name) not in (None, OLDER_DEFAULTS.get(f.name))
        ]
        if given and not self.wandb:
            raise ValueError(f"{given[0]} has no effect without log.wandb=true")


OLDER_DEFAULTS = {"wandb_project": "dreamlab", "wandb_mode": "offline"}
"""What the configurations of older runs have written out."""


@dataclass(frozen=True)
class About:
    """What trackers are told of a run."""

    experiment: str
    folder: Path
    text: str = ""
    """The configuration as YAML."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Every option by its dotted name."""
    telling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Those of them that change what is learnt."""
    tags: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What the run is called: its folder's name, with the experiment's in it."""
        own = self.folder.resolve().name
        return own if self.experiment in own else f"{self.experiment} {own}"


class Sink(Protocol):
    """A place that metrics go to."""

    def write(self, record: Record) -> None:
        """Take one record; it has `env_frames`, `decisions` and `updates`."""
        ...

    def get_state(self) -> dict[str, Any]:
        """Return what leads back to the records written so far."""
        ...

    def set_state(self, state: dict[str, Any]) -> None:
        """Forget every record written after that state."""
        ...

    def restart(self) -> None:
        """Forget every record: the run starts from nothing."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Tracker(Protocol):
    """A sink that shows more than numbers."""

    def media(self, media: Media) -> None:
        """Show a film or a picture."""
        ...

    def ended(self, final: Record) -> None:
        """Hear what a run came to that finished."""
        ...


def _key(sink: Sink) -> str:
    """Return the name of a sink's state in checkpoints, the same wherever the sink is."""
    return getattr(sink, "state_key", type(sink).__name__)


class Jsonl:
    """`metrics.jsonl`: one line per record; cut back to the checkpoint when a run resumes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = path.open("ab")

    def write(self, record: Record) -> None:
        self.append({k: v if math.isfinite(v) else str(v) for k, v in record.items()})

    def append(self, line: dict[str, Any]) -> None:
        """Write any line of plain data."""
        self.file.write((json.dumps(line) + "\n").encode())
        self.file.flush()

    def get_state(self) -> dict[str, Any]:
        self.file.flush()
        os.fsync(self.file.fileno())
        return {"bytes": self.file.tell()}

    def set_state(self, state: dict[str, Any]) -> None:
        self.file.truncate(int(state["bytes"]))
        self.file.seek(0, os.SEEK_END)

    def restart(self) -> None:
        self.set_state({"bytes": 0})

    def close(self) -> None:
        self.file.close()


class Logger:
    """Averages what was reported since the last flush and hands it to every sink.

    Tensors are summed where they are and read when flushed: reporting never waits for a GPU.
    """

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self.sinks = list(sinks)
        self.sums: dict[str, Tensor | float] = {}
        self.counts: dict[str, int] = {}

    def add(self, metrics: dict[str, Tensor] | dict[str, float], prefix: str = "") -> None:
        """Report values; they are averaged until the next flush."""
        for key, given in metrics.items():
            name, value = f"{prefix}{key}", given
            if isinstance(given, Tensor):  # one on a GPU stays there: reading it would wait for it
                value = given.item() if given.device.type == "cpu" else given.detach()
            if name in self.sums:
                self.sums[name] = self.sums[name] + value
                self.counts[name] += 1
            else:
                self.sums[name], self.counts[name] = value, 1

    def flush(self, fixed: Record) -> Record:
        """Write the averages beside `fixed` values to every sink and return the record."""
        sums, counts = self._of_all()
        averages = {k: float(v) / counts[k] for k, v in sorted(sums.items())}
        record = {**fixed, **averages}
        self.sums, self.counts = {}, {}
        for sink in self.sinks:
            sink.write(record)
        return record

    def write_late(self, record: Record) -> None:
        """Write a record of an earlier moment than the last; what is reported now stays."""
        for sink in self.sinks:
            sink.write({**record, LATE: 1.0})

    def media(self, paths: Iterable[Path], at: int) -> None:
        """Show films and pictures to every tracker."""
        shown = [Media(path, at) for path in paths]
        for tracker in self._trackers():
            for media in shown:
                tracker.media(media)

    def ended(self, final: Record) -> None:
        """Tell every tracker what a run came to that finished."""
        for tracker in self._trackers():
            tracker.ended(final)

    def _trackers(self) -> list[Tracker]:
        return [s for s in self.sinks if isinstance(s, Tracker)]

    def _of_all(self) -> tuple[dict[str, Tensor | float], dict[str, int]]:
        """Return the sums and counts of all processes together."""
        if world.size() == 1:
            return self.sums, self.counts
        sums: dict[str, Tensor | float] = {}
        counts: dict[str, int] = {}
        own = {k: (float(v), self.counts[k]) for k, v in self.sums.items()}
        for theirs in world.gather(own):
            for name, (value, count) in theirs.items():
                sums[name] = sums.get(name, 0.0) + value
                counts[name] = counts.get(name, 0) + count
        return sums, counts

    def get_state(self) -> dict[str, Any]:
        """Return what was reported since the last flush, and where each sink stands."""
        return {
            "sums": dict(self.sums),
            "counts": dict(self.counts),
            "sinks": {_key(s): s.get_state() for s in self.sinks},
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue as if nothing had been reported after that state."""
        self.sums, self.counts = dict(state["sums"]), dict(state["counts"])
        for sink in self.sinks:
            if _key(sink) in state["sinks"]:
                sink.set_state(state["sinks"][_key(sink)])

    def restart(self) -> None:
        """Forget every record, in every sink."""
        for sink in self.sinks:
            sink.restart()

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()
