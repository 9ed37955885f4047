"""Walks the way of an observation to the gradient and back: which files it passes, in order.

    python benchmarks/walk.py [EXPERIMENT] [key=value ...]

One tick and one update of a small run on the CPU, with the call of every function of the package
recorded: what AGENTS.md describes by hand is counted here.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

from dreamlab import training
from dreamlab.build import build
from dreamlab.config import compose, load_config
from dreamlab.engine.orchestrator import Orchestrator
from dreamlab.engine.terminal import Terminal

PACKAGE = str(Path(training.__file__).parent)


class Walk:
    """Records the files that calls lead into."""

    def __init__(self) -> None:
        self.way: list[str] = []

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        name = frame.f_code.co_filename
        if event != "call" or not name.startswith(PACKAGE):
            return
        file = str(Path(name).relative_to(PACKAGE))
        if not self.way or self.way[-1] != file:
            self.way.append(file)

    def tell(self, title: str) -> None:
        """Print the files in the order they were first entered."""
        files = list(dict.fromkeys(self.way))
        print(f"{title}: {len(files)} files")
        print("  " + " > ".join(files))


def ready(loop: Orchestrator) -> None:
    """Go on until the first update is over."""
    while loop.counters.updates == 0:
        loop._do(str(loop.scheduler.next_action()))


def walked(loop: Orchestrator, action: str) -> Walk:
    """Return the way of one action."""
    while loop.scheduler.next_action() != action:
        loop._do(str(loop.scheduler.next_action()))
    walk = Walk()
    sys.setprofile(walk)
    try:
        loop._do(action)
    finally:
        sys.setprofile(None)
    return walk


def main(arguments: list[str]) -> None:
    """Walk a tick and an update."""
    named = arguments and "=" not in arguments[0]
    name, *rest = arguments if named else ["dreamer_cartpole", *arguments]
    options = [name, "tiny=true", "device=cpu", "log.terminal=off", *rest]
    with tempfile.TemporaryDirectory() as scratch:
        config = load_config(compose([*options, f"run.dir={scratch}/run"]))
        with training.open_run(config) as opened:
            loop = build(opened.config, opened.run, Terminal("off", "walk"))
            ready(loop)
            update, collect = walked(loop, "update"), walked(loop, "collect")
    collect.tell("an observation to the replay")
    update.tell("a batch to the gradient and back")
    both = dict.fromkeys(collect.way + update.way)
    print(f"together {len(both)} files")


if __name__ == "__main__":
    main(sys.argv[1:])
