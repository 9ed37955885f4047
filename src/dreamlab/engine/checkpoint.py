"""Checkpoints: a folder each, whole or absent, verified before it is believed."""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from dreamlab.core import world
from dreamlab.core.clock import Clock
from dreamlab.core.errors import CheckpointError
from dreamlab.core.files import write_text
from dreamlab.core.limits import Natural, NonNegative, Positive, Range
from dreamlab.core.readers import FileError, read_pointer
from dreamlab.core.tree import to_plain
from dreamlab.engine.checkpoint_files import (
    FORMAT,
    Part,
    State,
    load_part,
    part_name,
    processes_of,
    read_meta,
    replace_folder,
    write_meta,
    write_part,
)
from dreamlab.engine.every import EveryConfig

CLEANED = "cleaned"
DAMAGED = "damaged_"
UNDONE = "undone_"
GONE = "the checkpoints of this run are missing: restore them from a backup."
NAME = re.compile(r"\d+(_\d+)?")
"""Name of a checkpoint (`Clock.name`)."""
AGAIN = "To start over use another run.dir."

Take = Callable[[State], None]


class NewerFormatError(CheckpointError):
    """A newer version wrote this checkpoint: nothing is wrong with it."""


@dataclass(frozen=True)
class CheckpointConfig(EveryConfig):
    """How often a run is saved and how much of the past is kept."""

    every_frames: Natural = 50_000
    every_updates: Natural = 10_000
    every_s: NonNegative = 600.0
    """Also save every so many seconds; 0: only by frames and updates."""
    deadline_s: Positive | None = None
    """Seconds to save and exit after SIGTERM or SIGUSR1; later, the previous checkpoint is kept.
    None: no limit."""
    keep: Annotated[int, Range(2)] = 2
    """Number of latest checkpoints to keep; at least 2, as a fallback for a corrupted one."""
    keep_best: bool = True
    """Save and keep the checkpoint of the best evaluation return (else of the best training
    return)."""
    keep_every_frames: Natural = 0
    """Permanently keep the first checkpoint after each multiple of this; 0 keeps none. Like the
    best, it can be evaluated, but the replay buffer stores only the steps that the latest ones
    need."""
    keep_every_updates: Natural = 0
    """The same for offline runs, in updates."""


class Checkpoints:
    """The folder `checkpoints/` of a run.

    000000050000/{state.pt, meta.json}   written under another name, then renamed
                 state_rank1.pt          environments, replay and random numbers of rank 1
    latest                               the name of the newest
    best                                 the name of the best
    undone_000000050000/                 set aside by a run that went back to an earlier one
    damaged_000000050000/                set aside by the process that trains, once it continues
    cleaned                              there instead of `latest` once they were removed for good
    """

    def __init__(self, folder: Path, config: CheckpointConfig, say: Callable[[str], None]) -> None:
        self.folder, self.config, self.say = folder, config, say
        self.held: set[str] = set()
        """Names that are kept for now, whatever else: their score is not known yet."""

    def score(self, name: str, value: float) -> None:
        """Take note of the score of a checkpoint that is kept, measured after it was saved."""
        meta = read_meta(self.folder / name)
        if meta is None:
            return
        is_best = self.would_be_best(value)
        meta["score"] = value
        write_meta(self.folder / name, meta)
        if is_best:
            write_text(self.folder / "best", name + "\n")

    def save(
        self, state: dict[str, Any], clock: Clock, score: float | None, marks: dict[str, Any]
    ) -> Path:
        """Write a checkpoint and make it the latest; drop those that are no longer kept.

        `marks` say, per buffer, how much of its files this checkpoint needs. Of several processes
        each gives its own part; rank 0 makes a checkpoint of them once all are written.
        """
        name = clock.name
        final, temporary = self.folder / name, self.folder / f".{name}.{os.getpid()}.tmp"
        if world.is_main():
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
        temporary = self.folder / world.broadcast(temporary.name)
        try:
            part = Part(write_part(temporary / part_name(world.rank()), to_plain(state)), marks)
            parts = world.gather(part)
            if world.is_main():
                self._complete(temporary, final, clock, score, parts)
        finally:
            if world.is_main():
                shutil.rmtree(temporary, ignore_errors=True)
        world.barrier()
        return final

    def _complete(
        self, temporary: Path, final: Path, clock: Clock, score: float | None, parts: list[Part]
    ) -> None:
        """Make a checkpoint of what every process has written."""
        meta: dict[str, Any] = {
            "format": FORMAT,
            "clock": {"unit": clock.unit, "count": clock.count, "updates": clock.updates},
            "score": score,
            "sha256": parts[0].sha256,
            "marks": parts[0].marks,
        }
        if len(parts) > 1:
            meta["ranks"] = [asdict(p) for p in parts[1:]]
        write_meta(temporary, meta)
        replace_folder(temporary, final)
        write_text(self.folder / "latest", final.name + "\n")
        if self.would_be_best(score):
            write_text(self.folder / "best", final.name + "\n")
        self._retain()

    def would_be_best(self, score: float | None) -> bool:
        """Return whether a checkpoint with this score would be kept as the best."""
        best = self.named("best")
        if score is None or not math.isfinite(score) or not self.config.keep_best:
            return False
        known = (read_meta(best) or {}).get("score") if best is not None else None
        return known is None or not math.isfinite(known) or score >= known

    def names(self) -> list[str]:
        """Return the names of all checkpoints, newest first."""
        if not self.folder.exists():
            return []
        return sorted(
            (p.name for p in self.folder.iterdir() if p.is_dir() and NAME.fullmatch(p.name)),
            reverse=True,
        )

    def named(self, pointer: str) -> Path | None:
        """Return the checkpoint that `latest` or `best` points to, if it is there."""
        try:
            name = read_pointer(self.folder / pointer)
        except FileError:
            return None
        return path if name and (path := self.folder / name).is_dir() else None

    def load(self, which: str = "latest", device: str = "cpu") -> State | None:
        """Return the newest state that is whole, or the one requested; None if none was saved.

        A checkpoint that is corrupted is passed over, with a message, for the one before it.
        Nothing is changed: whoever only reads may do so while the run trains.
        """
        self._refuse_cleaned()
        if which == "latest":
            state, _, passed = self._newest(lambda state: None, device)
            for error in passed.values():
                self.say(f"{error}; falling back to the previous checkpoint")
            return state
        return self._read(self._find(which), device)

    def restore(self, take: Take, saved: bool, which: str = "latest") -> State | None:
        """Give the newest state that is whole to `take` and return it; None if none was `saved`.

        `take` may refuse a state by a CheckpointError: then the one before it is tried. Those that
        were passed over are set aside once another is taken, and so only by the process that
        trains. As long as none is whole, everything stays as it is. Asked for another than the
        latest, it is that one or none; what came after it is set aside.
        """
        self._refuse_cleaned()
        if world.is_main():
            self._tidy()
        world.barrier()
        if which != "latest":
            return self._go_back(take, which)
        state, name, passed = self._newest(take, "cpu", together=True)
        if world.is_main():
            for bad, error in passed.items():
                self.say(f"{error}; falling back to the previous checkpoint")
                self._set_aside(bad)
            if passed:
                write_text(self.folder / "latest", f"{name}\n")
        world.barrier()
        if state is None and saved:
            raise CheckpointError(f"{self.folder}: {GONE} {AGAIN}")
        return state

    def _go_back(self, take: Take, which: str) -> State:
        path = self._find(which)
        state, problem = self._try(path.name, take, "cpu", together=True)
        if state is None:
            raise CheckpointError(problem)
        if world.is_main():
            self._forget_after(path)
        world.barrier()
        return state

    def _forget_after(self, path: Path) -> None:
        """Set aside what came after a checkpoint."""
        for name in self.names():
            if name > path.name:
                self._set_aside(name, UNDONE)
        write_text(self.folder / "latest", f"{path.name}\n")
        if self.named("best") is None:
            scores = {n: (read_meta(self.folder / n) or {}).get("score") for n in self.names()}
            known = {n: s for n, s in scores.items() if s is not None and math.isfinite(s)}
            (self.folder / "best").unlink(missing_ok=True)
            if known:
                write_text(self.folder / "best", f"{max(known, key=known.__getitem__)}\n")

    def _find(self, which: str) -> Path:
        path = self.named(which) or self.folder / which
        if path.name not in self.names():
            raise CheckpointError(
                f"{self.folder}: there is no checkpoint {which!r}; available: {self.names()}"
            )
        return path

    def _newest(
        self, take: Take, device: str, together: bool = False
    ) -> tuple[State | None, str, dict[str, str]]:
        """Return the newest state that is whole and taken, its name, and what was passed over."""
        passed: dict[str, str] = {}
        for name in world.broadcast(self.names()) if together else self.names():
            state, problem = self._try(name, take, device, together)
            if state is not None:
                return state, name, passed
            passed[name] = problem
        if passed:
            raise CheckpointError(
                f"{self.folder}: all checkpoints {list(passed)} are corrupted or incomplete: "
                f"{'; '.join(passed.values())}. Nothing was changed: restore the files from a "
                f"backup. {AGAIN}"
            )
        if left := self.traces():
            raise CheckpointError(f"{self.folder}: {GONE} Only {left} is left. {AGAIN}")
        return None, "", passed

    def _try(self, name: str, take: Take, device: str, together: bool) -> tuple[State | None, str]:
        """Return a state that is whole and taken, by all processes, or what is wrong with it."""
        state, problem = None, ""
        try:
            state = self._read(self.folder / name, device)
            state = self._with_parts(self.folder / name, state) if together else state
            take(state)
        except NewerFormatError:
            raise
        except CheckpointError as error:
            text = str(error)
            problem = text if name in text else f"checkpoint {name} is unusable: {text}"
        problems = [p for p in world.gather(problem) if p] if together else [problem]
        return (None, problems[0]) if any(problems) else (state, "")

    def _with_parts(self, path: Path, state: State) -> State:
        """Return a state with this process's own part, or, for another number of processes, with
        the parts of all that saved it, as `parts`."""
        ranks: list[dict[str, Any]] = (read_meta(path) or {}).get("ranks", [])
        if len(ranks) + 1 == world.size():
            own = world.rank()
            return {**state, **self._read_part(path, own, ranks[own - 1])} if own else state
        others = [self._read_part(path, i + 1, known) for i, known in enumerate(ranks)]
        return {**state, "parts": [state, *others]}

    def _read_part(self, path: Path, number: int, known: dict[str, Any]) -> State:
        return load_part(path, part_name(number), known["sha256"], "cpu")

    def traces(self) -> list[str]:
        """Return the evidence that checkpoints existed, if there are none any more."""
        if not self.folder.exists():
            return []
        names = sorted(p.name for p in self.folder.iterdir())
        return [n for n in names if n in ("latest", "best") or n.startswith(DAMAGED)]

    def _refuse_cleaned(self) -> None:
        if (self.folder / CLEANED).exists():
            raise CheckpointError(
                f"{self.folder.parent}: `dreamlab cleanup` has deleted the checkpoints of this "
                f"run; its metrics were kept. {AGAIN}"
            )

    def _tidy(self) -> None:
        """Finish what a killed process was about to do: rename a checkpoint, or remove one."""
        for path in self.folder.glob(".*") if self.folder.exists() else ():
            if old := re.fullmatch(r"\.([\d_]+)\.old", path.name):
                if not (self.folder / old[1]).exists():
                    path.rename(self.folder / old[1])
                    continue
            elif not re.fullmatch(r"\.[\d_]+\.\d+\.tmp", path.name):
                continue
            shutil.rmtree(path, ignore_errors=True)

    def _set_aside(self, name: str, why: str = DAMAGED) -> None:
        """Rename a checkpoint so that it is neither loaded nor overwritten."""
        target, number = self.folder / f"{why}{name}", 1
        while target.exists():
            number += 1
            target = self.folder / f"{why}{name}_{number}"
        (self.folder / name).rename(target)

    def _read(self, path: Path, device: str) -> State:
        meta = read_meta(path)
        if meta is None:
            raise CheckpointError(
                f"checkpoint {path.name} is incomplete: its meta.json is missing or invalid"
            )
        if meta["format"] > FORMAT:
            raise NewerFormatError(
                f"checkpoint {path.name} was written by a newer version of dreamlab (format "
                f"{meta['format']}; this one reads {FORMAT}). Nothing was changed: use that version"
            )
        return load_part(path, "state.pt", meta["sha256"], device)

    def marks(self) -> list[dict[str, Any]]:
        """Return what the latest checkpoints need of the buffers' files."""
        metas = [read_meta(self.folder / name) for name in self.names()[: max(2, self.config.keep)]]
        own, found = world.rank(), [meta for meta in metas if meta is not None]
        if own == 0:
            return [meta["marks"] for meta in found]
        ranks = [meta.get("ranks", []) for meta in found]
        return [known[own - 1]["marks"] for known in ranks if len(known) >= own]

    def most_processes(self) -> int:
        """Return the largest number of processes that one of the latest checkpoints is of."""
        names = self.names()[: max(2, self.config.keep)]
        return max((processes_of(self.folder / name) for name in names), default=1)

    def _retain(self) -> None:
        names, best = self.names(), self.named("best")
        kept = {*names[: max(2, self.config.keep)], *self._milestones(names), *self.held}
        for name in names:
            if name not in kept and (best is None or name != best.name):
                shutil.rmtree(self.folder / name, ignore_errors=True)

    def _milestones(self, names: list[str]) -> list[str]:
        """Return the first checkpoint after each multiple of what is kept for good."""
        period, passed = self.config.keep_every_frames or self.config.keep_every_updates, 0
        out: list[str] = []
        for name in reversed(names) if period > 0 else ():
            if (count := int(name.split("_")[0])) // period > passed:
                passed = count // period
                out.append(name)
        return out
