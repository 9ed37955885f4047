"""One run in several processes: this one starts them, or is one of them, or is alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from dreamlab.config import LabConfig
from dreamlab.core import world
from dreamlab.core.errors import LabError
from dreamlab.engine import processes


@dataclass
class Here:
    """What this process has to do, and the exit code once that is done."""

    config: LabConfig
    mine: bool
    """Whether it trains itself: otherwise others have done so."""
    code: int = 0

    def ended(self, code: int) -> None:
        """Take note of how the training ended."""
        self.code = code


@contextmanager
def processes_of(config: LabConfig, words: Sequence[str]) -> Iterator[Here]:
    """Be one of a run's processes inside the block, or start them: each gets these words."""
    processes.check_devices(config.device, config.devices, config.processes)
    if processes.wants_launch(config.processes):
        yield Here(config, False, processes.launch(words, config.processes))
        return
    here = Here(config, True)
    options = config.distributed
    try:
        with processes.together(config.processes, config.device, options.timeout_s):
            yield here
    except (RuntimeError, world.PeerLostError) as error:
        if (gone := world.peer_lost(error)) is None:
            raise
        here.code = processes.lost(gone)
    except LabError as error:
        if not processes.told(error):
            raise
        here.code = 2
    here.code = processes.leave(here.code)
