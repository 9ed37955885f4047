"""Starts a run with what another one has learned: its weights, or its whole state."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from dreamlab.config import StartConfig
from dreamlab.core import sharding
from dreamlab.core.affine import Affine, Scaling
from dreamlab.core.errors import CheckpointError, ConfigError, unknown
from dreamlab.core.files import write_text
from dreamlab.core.readers import FileError
from dreamlab.engine.checkpoint import CheckpointConfig, Checkpoints
from dreamlab.engine.orchestrator import Orchestrator
from dreamlab.runs.readers import read_manifest
from dreamlab.runs.run import Run

RECORDS = {"metrics.jsonl": "Jsonl", "chain.jsonl": "Chain"}
"""Record files, and the sink whose state says how much of each belongs to a checkpoint."""
State = dict[str, Any]


def begin_from(start: StartConfig, loop: Orchestrator, run: Run) -> None:
    """Give a run that has just started what a checkpoint of another one holds; note its parent."""
    folder = Path(start.run)
    checkpoints = Checkpoints(folder / "checkpoints", CheckpointConfig(), loop.parts.terminal.say)
    name = _name_of(checkpoints, start)
    state = checkpoints.load(name)
    assert state is not None
    if start.load == "weights":
        load_weights(loop, state, start)
    else:
        _copy_run(folder, run.folder, name, state)
        _take_all(loop, start)
    parent = {"run": start.run, "id": _id_of(folder), "checkpoint": name, "load": start.load}
    run.update(parent=parent)
    run.event("started_from", **parent)


def _name_of(checkpoints: Checkpoints, start: StartConfig) -> str:
    """Return the name of the checkpoint that is meant."""
    names = checkpoints.names()
    if not names:
        raise ConfigError(f"start.run: {start.run} has no checkpoint")
    path = checkpoints.named(start.checkpoint) or checkpoints.folder / start.checkpoint
    if path.name not in names:
        known = [*names, "latest", "best"]
        raise ConfigError(unknown("checkpoint", start.checkpoint, known, "start.checkpoint"))
    return path.name


def _id_of(folder: Path) -> str | None:
    try:
        return read_manifest(folder).get("id")
    except FileError:
        return None


# -- weights --------------------------------------------------------------------------------------


def load_weights(loop: Orchestrator, state: State, start: StartConfig) -> None:
    """Take over parameters and buffers, and what observations were normalized with.

    Optimizers, counters, random numbers and data start over.
    """
    workflow = loop.workflow
    found: State = {k: v for k, v in state["workflow"].items() if isinstance(v, Tensor)}
    known = {workflow.former_names.get(k, k): v for k, v in found.items()}
    theirs = sharding.own_weights(workflow, known)
    ours = workflow.state_dict()
    wanted = _wanted({k: v for k, v in ours.items() if isinstance(v, Tensor)}, start)
    _check_fit(wanted, theirs, start)
    if not start.modules:
        _check_scaling(state, loop.parts.scaling, start)
    workflow.load_state_dict(ours | {k: theirs[k] for k in wanted})
    collector = loop.parts.collector
    if collector is not None and state["collector"] and not start.modules:
        statistics, normalizer = state["collector"]["envs"]["normalizer"], collector.envs.normalizer
        if statistics["obs"].keys() == normalizer.get_state()["obs"].keys():
            normalizer.set_state(statistics)


def _check_scaling(state: State, ours: Scaling, start: StartConfig) -> None:
    """Raise if weights that learned from normalized data would see it normalized otherwise."""
    theirs = {k: Affine.of_state(a) for k, a in state.get("scaling", {}).items()}
    for name in sorted(theirs.keys() | ours.keys()):
        if name not in theirs or name not in ours or theirs[name].differs(ours[name]):
            raise ConfigError(
                f"start.run: {start.run} was trained with another normalization of {name!r}: "
                "use the same dataset in buffers, with the same normalize"
            )


def _wanted(ours: Mapping[str, Tensor], start: StartConfig) -> dict[str, Tensor]:
    """Return the tensors that are to be taken over."""
    if not start.modules:
        return dict(ours)
    out: dict[str, Tensor] = {}
    for module in start.modules:
        found = {k: v for k, v in ours.items() if f"{k}.".startswith(f"{module}.")}
        if not found:
            known = dict.fromkeys(k.split(".")[0] for k in ours)
            raise ConfigError(unknown("module", module, known, "start.modules"))
        out |= found
    return out


def _check_fit(wanted: Mapping[str, Tensor], theirs: State, start: StartConfig) -> None:
    for name, tensor in wanted.items():
        has = tuple(theirs[name].shape) if name in theirs else None
        if has != tuple(tensor.shape):
            what = "is missing there" if has is None else f"is {list(has)} there"
            raise ConfigError(
                f"start.run: the weights of {start.run} do not fit: {name!r} {what}, here it is "
                f"{list(tensor.shape)}. List the modules that fit in start.modules"
            )


# -- everything -----------------------------------------------------------------------------------


def _copy_run(source: Path, target: Path, name: str, state: State) -> None:
    """Copy a checkpoint, its buffers and the records up to it; the checkpoint comes last."""
    if (source / "buffers").is_dir():
        shutil.copytree(
            source / "buffers", target / "buffers", copy_function=_link, dirs_exist_ok=True
        )
    for file, sink in RECORDS.items():
        known = state["logger"]["sinks"].get(sink)
        if known is not None and (source / file).exists():
            with (source / file).open("rb") as records:
                (target / file).write_bytes(records.read(int(known["bytes"])))
    folder = target / "checkpoints"
    temporary = folder / f".{name}.{os.getpid()}.tmp"
    shutil.copytree(source / "checkpoints" / name, temporary, dirs_exist_ok=True)
    temporary.rename(folder / name)
    write_text(folder / "latest", f"{name}\n")


def _link(source: str, target: str) -> None:
    """Give a file that is never changed in place a second name, or copy it to another disk."""
    Path(target).unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _take_all(loop: Orchestrator, start: StartConfig) -> None:
    """Continue from the checkpoint that was copied."""
    try:
        loop.load()
    except (RuntimeError, KeyError) as error:
        text = " ".join(str(error).split())
        raise ConfigError(
            f"start.run: the state of {start.run} does not fit this configuration; load=weights "
            f"loads only the weights: {text}"
        ) from error
    if loop.scheduler.index >= len(loop.scheduler.phases):
        raise CheckpointError(f"start.run: {start.run} was in a phase that is not listed here")


__all__ = ["begin_from", "load_weights"]
