"""Resume with another number of processes: what is kept, redistributed or reset."""

from __future__ import annotations

import re
import shutil
import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from dreamlab.core import rng as random
from dreamlab.core import world
from dreamlab.data.regroup import keep_place
from dreamlab.data.source import Buffer

if TYPE_CHECKING:
    from dreamlab.engine.checkpoint import Checkpoints
    from dreamlab.engine.loop_parts import RunLog
    from dreamlab.engine.orchestrator import Orchestrator

State = dict[str, Any]
ALWAYS = ("running episodes", "random streams")
"""Always lost: environments and random streams depend on the number of processes."""
OF_OTHERS = ("metrics of ranks above 0 since the last record",)
"""Lost if there were several: all begin with those of rank 0, or none."""


def share(buffers: Mapping[str, Buffer], parts: Sequence[State]) -> list[str]:
    """Load this process's share of all buffers; return the names of what could not be kept."""
    lost: list[str] = []
    for name, buffer in buffers.items():
        states = [p["buffers"][name] for p in parts]
        # external data: each process reads all of it, in its own order
        divide: Any = getattr(buffer, "regroup", None) or partial(keep_place, buffer)
        if missing := divide(states, world.rank(), world.size()):
            lost.append(f"{missing} of buffer {name!r}")
    return lost


def begin_anew(loop: Orchestrator, state: State) -> None:
    """Start new episodes and random streams, keep the statistics, and report what is lost."""
    then, collector = len(state["parts"]), loop.parts.collector
    if collector is not None:
        collector.envs.normalizer.set_state(_agreed(state["collector"]["envs"]["normalizer"]))
    seed = zlib.crc32(state["rng"]["torch"].numpy().tobytes())
    random.seed_all(random.derive(seed, world.size(), world.rank()))
    found = list(dict.fromkeys(x for lost in world.gather(state["lost"]) for x in lost))
    lost = [*ALWAYS, *(OF_OTHERS if then > 1 else ()), *found]
    told = {"from": then, "to": world.size(), "lost": lost}
    number = f"{world.size()} process{'es' if world.size() > 1 else ''}"
    text = (
        f"continuing with {number} instead of {then}: weights, optimizers, "
        f"counters and replay are kept; not kept: {', '.join(lost)}"
    )
    loop.say_and_record(text)
    remember(loop.run_log, "regrouped", told)
    loop.run_log.event("resumed", **loop.now(), regrouped=told)


def remember(run_log: RunLog, name: str, change: State) -> None:
    """Append to the changes of this name in the manifest, and call the run no longer exact.

    A manifest of an older version holds the last change alone.
    """
    before = run_log.manifest.get(name, [])
    before = [before] if isinstance(before, dict) else before
    repeated = change in before[-1:]  # it ended before it could save
    listed = before if repeated else [*before, change]
    run_log.update(exact_resume=False, **{name: listed})


def drop_gone(checkpoints: Checkpoints) -> None:
    """Delete stored steps of ranks that no checkpoint that can be resumed has any more."""
    if not world.is_main():
        return
    most = checkpoints.most_processes()
    for folder in (checkpoints.folder.parent / "buffers").glob("*/rank*"):
        found = re.fullmatch(r"rank(\d+)", folder.name)
        if found and int(found[1]) >= most:
            shutil.rmtree(folder, ignore_errors=True)


def _agreed(state: State) -> State:
    """Return the statistics shared by all processes, without local ones since the last sync."""
    shared: State = state.get("shared", {})
    obs = {k: shared[k]["agreed"] if k in shared else v for k, v in state["obs"].items()}
    reward = shared[""]["agreed"] if "" in shared else state["reward"]
    return {k: v for k, v in state.items() if k != "shared"} | {"obs": obs, "reward": reward}
