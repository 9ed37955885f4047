"""What a run with sharded weights says of itself when it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dreamlab.core import sharding
from dreamlab.core.workflow import Workflow
from dreamlab.engine.observer import Observer

if TYPE_CHECKING:
    from dreamlab.engine.orchestrator import Orchestrator

GIB = 2**30


def cost_of_whole(workflow: Workflow[Any], assembles: bool) -> list[str]:
    """Return what rank 0 needs where it holds all weights at once, and how to do without."""
    whole, state = sharding.assembled_bytes(workflow), sharding.state_bytes(workflow)
    saved = f"{state / GIB:.3f} GiB of host memory on rank 0 while a checkpoint is written"
    if not assembles:
        return ["distributed.assemble=false: no evaluations, no reports", saved]
    return [
        f"{whole / GIB:.3f} GiB on rank 0 while it evaluates or reports "
        "(distributed.assemble=false: neither)",
        saved,
    ]


def share_of(workflow: Workflow[Any]) -> tuple[int, int]:
    """Return how many weights this process holds, and how many there are."""
    weights = list(workflow.parameters())
    return sum(p.numel() for p in sharding.parts(weights)), sum(p.numel() for p in weights)


class TellsShards(Observer):
    """Says what a process holds, what rank 0 needs besides, and what is compared."""

    def __init__(self, compares: bool) -> None:
        self.compares = compares

    def started(self, loop: Orchestrator) -> None:
        workflow, say = loop.workflow, loop.parts.terminal.say
        own, every = share_of(workflow)
        say(f"sharded: this process holds {own:,} of {every:,} weights")
        for line in cost_of_whole(workflow, loop.config.distributed.assemble):
            say(f"  {line}")
        if self.compares:
            whole = sum(p.numel() for p in workflow.parameters() if not hasattr(p, "part"))
            loop.say_and_record(
                f"compared between processes: the {whole:,} weights that are not sharded, buffers "
                "and their optimizer states; of the others no process has a second copy"
            )
