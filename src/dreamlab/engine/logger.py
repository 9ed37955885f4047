"""Metrics: gathered while the loop runs, flushed to every sink at once."""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from torch import Tensor

from dreamlab.core import world
from dreamlab.core.clock import moment_of
from dreamlab.core.errors import require
from dreamlab.core.limits import Natural
from dreamlab.engine.every import EveryConfig

Record = dict[str, float]
MACHINE = ("time/", "system/")
"""What these begin is up to the clock and the machine: equal runs differ in it."""


@dataclass(frozen=True)
class LogConfig(EveryConfig):
    """Where metrics go and how often; `metrics.jsonl` is always written."""

    every_frames: Natural = 1_000
    every_updates: Natural = 100
    terminal: Literal["auto", "live", "plain", "off"] = "auto"
    """auto: a live view on a terminal, plain lines elsewhere."""
    chain: bool = True
    """Write `chain.jsonl`, by which `dreamlab verify` compares a second run with this one."""
    system: bool = True
    """Add memory, cores and GPU to every record, under `system/`."""
    norms: bool = False
    """Add norms of gradients, weights and their changes by module, under `norms/`."""
    tensorboard: bool = False
    wandb: bool = False
    wandb_project: str = "dreamlab"
    wandb_mode: Literal["online", "offline"] = "offline"


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
        """Forget every record: the run begins from nothing."""
        ...

    def close(self) -> None: ...


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


class TensorBoard:
    """Event files; on resume, later points are marked as purged, so that the curve has one line."""

    def __init__(self, folder: Path) -> None:
        require("tensorboard", "tensorboard")
        self.folder, self.at = folder, 0
        self.writer: Any = None

    def _open(self, purge: int | None) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(self.folder), purge_step=purge)

    def write(self, record: Record) -> None:
        self.writer = self.writer or self._open(None)
        self.at = moment_of(record)
        for name, value in record.items():
            self.writer.add_scalar(name, value, self.at)
        self.writer.flush()

    def get_state(self) -> dict[str, Any]:
        return {"frames": self.at}

    def set_state(self, state: dict[str, Any]) -> None:
        self.at = int(state["frames"])
        self.writer = self._open(self.at + 1)

    def restart(self) -> None:
        self.set_state({"frames": -1})

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


class WandB:
    """Weights & Biases; offline by default, the same run id after a resume."""

    def __init__(self, folder: Path, config: LogConfig, name: str) -> None:
        self.wandb: Any = require("wandb", "wandb")
        self.folder, self.config, self.name = folder, config, name
        self.run: Any = None
        self.id, self.at = secrets.token_hex(4), -1

    def _open(self) -> Any:
        return self.wandb.init(
            project=self.config.wandb_project,
            name=self.name,
            id=self.id,
            dir=str(self.folder),
            mode=self.config.wandb_mode,
            resume="allow",
            settings=self.wandb.Settings(silent=True, console="off"),
        )

    def write(self, record: Record) -> None:
        self.run = self.run or self._open()
        self.at = moment_of(record)
        self.run.log(record, step=self.at)

    def get_state(self) -> dict[str, Any]:
        return {"id": self.id, "frames": self.at}

    def set_state(self, state: dict[str, Any]) -> None:
        self.id, self.at = str(state["id"]), int(state["frames"])

    def restart(self) -> None:
        self.id = secrets.token_hex(4)

    def close(self) -> None:
        if self.run is not None:
            self.run.finish()


class Logger:
    """Averages what was reported since the last flush and hands it to every sink.

    Tensors are added up where they are and read when flushed: reporting never waits for a GPU.
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
            "sinks": {type(s).__name__: s.get_state() for s in self.sinks},
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue as if nothing had been reported after that state."""
        self.sums, self.counts = dict(state["sums"]), dict(state["counts"])
        for sink in self.sinks:
            if type(sink).__name__ in state["sinks"]:
                sink.set_state(state["sinks"][type(sink).__name__])

    def restart(self) -> None:
        """Forget every record, in every sink."""
        for sink in self.sinks:
            sink.restart()

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()
