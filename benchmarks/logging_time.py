"""Share of the learner's time that records take in runs with actors, which log in a process.

    python benchmarks/logging_time.py [--only slow] [--inside]

`metrics.jsonl` and TensorBoard, at the default interval of 1,000 frames. From the first record (it
opens the files) to the last before the final evaluation: the time of each sink, and of everything
between the averages and the manifest (`record`). With `--inside` the sinks are in the learner, as
before there was that process. Prints a table; used by decision 016.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from typing import Any, cast

from dreamlab import build, training
from dreamlab.config import compose, load_config
from dreamlab.engine.actors.records import RemoteSink
from dreamlab.engine.logger import Record, Sink
from dreamlab.engine.observer import Observer
from dreamlab.engine.orchestrator import Orchestrator
from dreamlab.engine.terminal import Terminal

RUNS = {
    "sac_pendulum": ["+experiment=sac_pendulum", "actors=4", "training.total_frames=6000"],
    "dreamer_cartpole": ["+experiment=dreamer_cartpole", "actors=2", "training.total_frames=3000"],
    "slow": ["+experiment=sac_pendulum", "actors=8", "training.total_frames=5100",
             "env.suite=dummy", "env.id=slow", "env.options={seconds: 0.05, length: 20}",
             "workflow.actor.hidden=[32,32]", "workflow.critic.hidden=[32,32]",
             "buffers.replay.batch=32", "training.phases.1.train_ratio=16"],
    "dqn_cartpole": ["+experiment=dqn_cartpole", "actors=4", "training.total_frames=50000"],
}  # fmt: skip
QUIET = [
    "eval.every_frames=0", "eval.episodes=1", "eval.video=false", "checkpoint.every_s=0",
    "log.tensorboard=true", "log.terminal=off", "device=cpu", "threads=1",
]  # fmt: skip


class Timed:
    """A sink, and the seconds of each of its records."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.name = self.state_key = getattr(sink, "state_key", type(sink).__name__)
        self.seconds: list[float] = []

    def write(self, record: Record) -> None:
        began = time.perf_counter()
        self.sink.write(record)
        self.seconds.append(time.perf_counter() - began)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sink, name)


class RecordTimes(Observer):
    """When each record began and ended."""

    def __init__(self) -> None:
        self.spans: list[tuple[float, float]] = []

    def flushing(self, record: dict[str, float]) -> None:
        self.began = time.perf_counter()

    def flushed(self, record: dict[str, float]) -> None:
        self.spans.append((self.began, time.perf_counter()))


def sinks_of(loop: Orchestrator, inside: bool) -> list[Sink]:
    """Return the sinks of a run: those of its process, or the same in this one."""
    sinks = loop.parts.logger.sinks
    remote = next(s.remote for s in sinks if isinstance(s, RemoteSink))
    if not inside:
        return sinks
    return [*remote.make(), *(s for s in sinks if not isinstance(s, RemoteSink))]


def measure(name: str, inside: bool) -> str:
    """Train, and return the row of a run: shares of the time, and milliseconds per record."""
    with tempfile.TemporaryDirectory() as scratch:
        config = load_config(compose([*RUNS[name], *QUIET, f"run.dir={scratch}/run"]))
        with training.open_run(config) as opened:
            loop = build.build(opened.config, opened.run, Terminal("off", config.name))
            opened.keep()
            times, sinks = RecordTimes(), [Timed(s) for s in sinks_of(loop, inside)]
            loop.observers.add(times)
            loop.parts.logger.sinks = cast("list[Sink]", sinks)
            loop.run()
    inner = slice(1, -1)  # the first one opens files, the last one has the final evaluation
    total = times.spans[-2][1] - times.spans[0][1]
    spent = {s.name: s.seconds[inner] for s in sinks}
    spent["record"] = [end - began for began, end in times.spans[inner]]
    cells = [name, str(len(spent["record"])), f"{total:.0f}"]
    for part in ("Jsonl", "TensorBoard", "record"):
        each = 1e3 * sum(spent[part]) / len(spent[part])
        cells.append(f"{sum(spent[part]) / total:.2%} ({each:.2f} ms)")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--inside", action="store_true")
    given = parser.parse_args()
    print("| run | records | s | metrics.jsonl | TensorBoard | whole record |", flush=True)
    print("|---|---|---|---|---|---|", flush=True)
    for name in given.only:
        print(measure(name, given.inside), flush=True)


if __name__ == "__main__":
    main()
