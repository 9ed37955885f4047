"""The observers that a run's own options request."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dreamlab.core import world
from dreamlab.engine.digest_chain import Chain
from dreamlab.engine.norms import Norms
from dreamlab.engine.profiler import Profiler
from dreamlab.engine.same_weights import CHECK_EVERY, SameWeights
from dreamlab.engine.shards import TellsShards
from dreamlab.engine.system import System
from dreamlab.engine.unlearnt_ends import TellsUnlearntEnds

if TYPE_CHECKING:
    from dreamlab.engine.orchestrator import Orchestrator


def add_default_observers(loop: Orchestrator, say: Callable[[str], None]) -> None:
    """Let those watch a loop that its configuration names."""
    log, folder = loop.config.log, loop.run_log.folder
    if every := _checks_weights(loop):
        loop.observers.add(SameWeights(every))
    if not world.is_main():
        return
    if loop.workflow.sharded:
        loop.observers.add(TellsShards(bool(every)))
    if remedy := loop.workflow.blind_to_ends():
        name = type(loop.workflow).__name__
        loop.observers.add(TellsUnlearntEnds(name, remedy, loop.say_and_record))
    if log.chain and not loop.config.actors.num:  # nobody could repeat what actors did
        _add_sink(loop, Chain(folder / "chain.jsonl", loop.workflow))
    if log.system:
        loop.observers.add(System(loop.workflow.device))
    if log.norms:
        _add_sink(loop, Norms(loop.workflow))
    if wanted := loop.config.watch.profile_updates:
        loop.observers.add(Profiler(wanted, folder / "report" / "trace.json", say))


def _checks_weights(loop: Orchestrator) -> int:
    """Return after how many updates the weights of all processes are compared; 0: never."""
    wanted = loop.config.distributed.check_every_updates
    usual = CHECK_EVERY if loop.config.watch.check_every_update else 0
    return (usual if wanted is None else wanted) if world.size() > 1 else 0


def _add_sink(loop: Orchestrator, observer: Chain | Norms) -> None:
    """Let an observer take part in the records as well: its state goes into checkpoints."""
    loop.parts.logger.sinks.append(observer)
    loop.observers.add(observer)
