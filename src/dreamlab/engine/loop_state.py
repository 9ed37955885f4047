"""Save and load the whole state of a loop.

With several processes, rank 0 saves the shared state, and each process its own: environments,
buffers, random numbers and metrics since the last record.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dreamlab.core import rng as random
from dreamlab.core import sharding, world
from dreamlab.core.clock import Counters
from dreamlab.core.errors import CheckpointError
from dreamlab.engine import regrouping
from dreamlab.engine.watch import not_finite, private

if TYPE_CHECKING:
    from dreamlab.engine.orchestrator import Orchestrator

State = dict[str, Any]


def save(loop: Orchestrator) -> Path | None:
    """Write a checkpoint of everything the next step depends on; None if it is not finite."""
    loop.saved_at = time.monotonic()
    collector = loop.parts.collector.get_state() if loop.parts.collector is not None else {}
    workflow = sharding.whole_state(loop.workflow)
    found = world.gather(not_finite(loop.workflow, workflow, private(collector)))
    bad = next((b for b in found if b is not None), None)
    if not loop.watch.may_save(bad, loop.checkpoints.names(), loop.say_and_record):
        return None
    clock = loop.scheduler.clock()
    buffers = {name: buffer.save() for name, buffer in loop.parts.buffers.items()}
    state: State = {
        "collector": collector,
        "buffers": buffers,
        "logger": loop.parts.logger.get_state(),
        "rng": random.get_state(),
    }
    if world.is_main():
        state |= {"workflow": workflow, **_shared(loop), "at": clock.name}
    marks = {k: {m: v for m, v in s.items() if isinstance(v, int)} for k, s in buffers.items()}
    path = loop.checkpoints.save(state, clock, loop.score, marks)
    for name, buffer in loop.parts.buffers.items():
        buffer.prune([m[name] for m in loop.checkpoints.marks()])
    regrouping.drop_gone(loop.checkpoints)
    loop.run_log.update(saved_frames=loop.counters.env_frames)
    loop.saved_at = time.monotonic()
    for tell in loop.observers.saved:
        tell(path)
    return path


def _shared(loop: Orchestrator) -> State:
    """Return the state shared by all processes, without the weights."""
    return {
        "scheduler": loop.scheduler.get_state(),
        "counters": asdict(loop.counters),
        "watch": loop.watch.get_state(),
        "due": {name: due.get_state() for name, due in loop.dues().items()},
        "spec": asdict(loop.workflow.spec),
        "scaling": {k: a.get_state() for k, a in loop.parts.scaling.items()},
        "score": loop.score,
        "owed": loop.owed,
        "wall_s": loop.speed.wall_s,
        "cpu_s": loop.speed.cpu_s,
        "device": _device(loop),
        "sharding": _sharding(loop),
    }


def _device(loop: Orchestrator) -> str:
    """Return what kind of device the run is computed on."""
    return loop.workflow.device.type


def _sharding(loop: Orchestrator) -> str | None:
    """Return which weights the processes share out among them; None: there is one process."""
    options = loop.config.distributed
    if world.size() == 1:
        return None
    return f"shard=true shard_least={options.shard_least}" if options.shard else "shard=false"


def load(loop: Orchestrator, which: str = "latest") -> bool:
    """Restore the newest intact checkpoint, or the given one.

    Return False if none was ever saved: a run that died before its first checkpoint starts over,
    and so do its records.
    """
    state = loop.checkpoints.restore(lambda s: _take(loop, s), loop.run_log.saved, which)
    if state is None:
        loop.parts.logger.restart()
        return False
    loop.scheduler.set_state(state["scheduler"])
    loop.counters = Counters(**state["counters"])
    if "parts" not in state or world.is_main():  # metrics must be reported only once
        loop.parts.logger.set_state(state["logger"])
    loop.watch.set_state(state["watch"])
    for name, due in loop.dues().items():
        due.set_state(state["due"][name])
    loop.score = None if loop.evaluates() else state["score"]
    loop.owed = state.get("owed", False)  # missing in older checkpoints
    loop.speed.wall_s = state["wall_s"]
    loop.speed.cpu_s = state.get("cpu_s", 0.0)  # missing in older checkpoints
    _tell_moved(loop, state.get("device"))  # missing in older checkpoints
    _tell_sharding(loop, state.get("sharding"))  # missing in older checkpoints
    if "parts" in state:
        regrouping.begin_anew(loop, state)
        return True
    lost = loop.parts.collector.set_state(state["collector"]) if loop.parts.collector else []
    _tell_lost(loop, lost)
    random.set_state(state["rng"])
    return True


def _tell_moved(loop: Orchestrator, then: str | None) -> None:
    """Report that the run was computed on another kind of device before."""
    now = _device(loop)
    if then in (None, now):
        return
    loop.run_log.event("moved", **loop.now(), **{"from": then, "to": now})
    loop.say_and_record(
        f"continuing on {now} instead of {then}: rounding and random numbers of the device differ"
    )
    regrouping.remember(loop.run_log, "moved", {"from": then, "to": now})


def _tell_sharding(loop: Orchestrator, then: str | None) -> None:
    """Report that other weights were sharded before: gradients are summed in another order."""
    now = _sharding(loop)
    if None in (then, now) or then == now:
        return
    loop.say_and_record(
        f"continuing with {now} instead of {then}: sums of gradients round otherwise"
    )
    regrouping.remember(loop.run_log, "resharded", {"from": then, "to": now})


def _tell_lost(loop: Orchestrator, lost: list[int]) -> None:
    """Report which environments, of all processes, start a new episode."""
    for rank, mine in enumerate(found := world.gather(lost)):
        if mine:
            where = f" of rank {rank}" if len(found) > 1 else ""
            loop.say_and_record(
                f"environments {mine}{where} cannot be restored and start a new episode"
            )
    known = loop.run_log.manifest  # what was lost at an earlier resume stays lost
    kept = known.get("exact_resume") is not False and "regrouped" not in known
    loop.run_log.update(exact_resume=kept and not any(found))
    loop.run_log.event("resumed", **loop.now(), lost_envs=lost)


def _take(loop: Orchestrator, state: State) -> None:
    """Load the state; raise if it is corrupted or diverged."""
    bad = not_finite(loop.workflow, state["workflow"], private(state["collector"]))
    if bad is not None:
        raise CheckpointError(f"{bad}: the run had diverged")
    sharding.take_state(loop.workflow, state["workflow"])
    if "parts" in state:
        state["lost"] = regrouping.share(loop.parts.buffers, state["parts"])
        return
    for name, buffer in loop.parts.buffers.items():
        buffer.load(state["buffers"][name])
