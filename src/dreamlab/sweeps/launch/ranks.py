"""One run on several processes and machines: the command that starts torchrun's elastic agent."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from dreamlab.sweeps.job import program


@dataclass(frozen=True)
class Ranks:
    """The processes of one run, as seen by one of its machines."""

    nodes: int = 1
    processes: int = 1
    """Processes per node."""
    node: int = 0
    """Index of this node; the first one records the job's outcome."""
    address: str = ""
    """Rendezvous address: host:port of the first node."""
    id: str = "dreamlab"
    """Rendezvous id, unique at its address."""
    grace_s: float = 30.0
    """Seconds for processes to save before the agent kills them."""

    @property
    def several(self) -> bool:
        """Return whether there is more than one process."""
        return self.nodes * self.processes > 1

    def wrap(self, command: Sequence[str]) -> list[str]:
        """Return the command that starts `command` on this machine."""
        if not self.several:
            return list(command)
        own = list(command[len(program()) :])
        agent = [sys.executable, "-m", "torch.distributed.run", *self._options()]
        return [*agent, "-m", "dreamlab", *own]

    def _options(self) -> list[str]:
        shared = [f"--nproc-per-node={self.processes}", f"--shutdown-timeout={self.grace_s:.0f}"]
        if self.nodes == 1:
            return ["--standalone", *shared]
        return [
            f"--nnodes={self.nodes}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={self.address}",
            f"--rdzv-id={self.id}",
            f"--rdzv-conf=is_host={int(self.node == 0)}",  # host names are not always reliable
            *shared,
        ]
