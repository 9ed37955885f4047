"""How long the index takes: listing, making it anew, and what a heartbeat costs training.

Makes run folders with a real configuration in a scratch folder, then measures `dreamlab list` in
processes of its own. Run it with `python benchmarks/index.py`, or small: `--runs 500`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dreamlab.config import compose, load_config, to_yaml
from dreamlab.runs import index
from dreamlab.runs.run import Run, hardware, versions

LIST = ("--filter", "algorithm=ppo", "--filter", "return>400", "--sort", "return", "--limit", "20")
RESULTS = Path(__file__).parent / "results" / "index.md"


def make_runs(root: Path, runs: int) -> None:
    """Write run folders as finished training leaves them, but for metrics and checkpoints."""
    config = to_yaml(load_config(compose(["+experiment=ppo_cartpole"])))
    about = {"versions": versions(), "hardware": hardware(), "name": "ppo_cartpole"}
    about |= {"created": "2026-01-01T00:00:00+0000", "status": "finished", "wall_s": 60.0}
    for number in range(runs):
        folder = root / f"ppo_cartpole_{number:06d}"
        folder.mkdir()
        mine = {"id": f"{number:016x}", "seed": number, "last_return": number % 500, **about}
        (folder / "manifest.json").write_text(json.dumps(mine))
        (folder / "config.yaml").write_text(config)


def seconds(work: Callable[[], Any], times: int = 1) -> tuple[float, float]:
    """Return the median time that `work` takes: on the clock, and of a processor."""
    clock: list[float] = []
    processor: list[float] = []
    for _ in range(times):
        start, before = time.perf_counter(), _processor()
        work()
        clock.append(time.perf_counter() - start)
        processor.append(_processor() - before)
    return statistics.median(clock), statistics.median(processor)


def _processor() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def command(*arguments: str) -> None:
    """Run a verb as a user would."""
    program = [sys.executable, "-m", "dreamlab", *arguments]
    subprocess.run(program, check=True, capture_output=True)


def heartbeats(root: Path, times: int) -> list[tuple[float, float]]:
    """Return the times of a manifest's update alone, and of a line in the index."""
    run = Run(next(p for p in root.iterdir() if p.is_dir()))
    run.update(status="running")

    def beat() -> None:
        run.entry.due = 0.0
        run.entry.write(run.manifest)

    run.entry.due = float("inf")
    return [seconds(lambda: run.update(env_frames=1), times), seconds(beat, times)]


def measure(runs: int, times: int) -> tuple[dict[str, tuple[float, float]], float]:
    """Return the times by name, and the size of the index in MiB."""
    root = Path(tempfile.mkdtemp())
    try:
        make_runs(root, runs)
        rebuild = seconds(lambda: command("index", "--rebuild", str(root)))
        plain = seconds(lambda: command("list", str(root), *LIST), times)
        extra = ("--filter", "workflow.optimizer.lr<=1e-3")
        option = seconds(lambda: command("list", str(root), *LIST, *extra), times)
        inside = seconds(lambda: index.read(root), times)
        update, beat = heartbeats(root, 50)
        size = (root / index.FILE).stat().st_size / 2**20
    finally:
        shutil.rmtree(root)
    return {
        f"`dreamlab list {' '.join(LIST)}`": plain,
        f"the same with `{' '.join(extra)}`": option,
        "the look at all folders and rows within it": inside,
        "`dreamlab index --rebuild`": rebuild,
        "writing a run's manifest": update,
        "a heartbeat in the index beside it": beat,
    }, size


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--record", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    found, size = measure(options.runs, options.times)
    lines = [
        f"# The index with {options.runs:,} runs",
        "",
        f"`python benchmarks/index.py --runs {options.runs} --times {options.times}`: medians of "
        f"whole processes; {platform.machine()}, {os.cpu_count()} cores, "
        f"load {os.getloadavg()[0]:.1f} by other work. The index has {size:.0f} MiB.",
        "",
        "| what | seconds | of a processor |",
        "|---|---|---|",
        *(
            f"| {name} | {clock:.3f} | {processor:.3f} |"
            for name, (clock, processor) in found.items()
        ),
        "",
    ]
    print("\n".join(lines))
    if options.record:
        RESULTS.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
