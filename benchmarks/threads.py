"""Updates per second by the number of threads, on an idle machine and beside other work.

    python benchmarks/threads.py [--experiments sac_pendulum dreamer_pixels] [--seconds 12]
        [--rounds 3] [--busy 1] [--record]

Each setting trains in a process of its own, as `dreamlab train` does, in turn, several rounds; the
figure is the median. `beside` is measured while `--busy` other processes compute without a pause.
Run it on a machine that does nothing else. `spinning` is what torch does if it is not told
otherwise: threads that wait for each other burn their core for a millisecond or more.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

RECORDS = {"sac_pendulum": 20, "dreamer_pixels": 32, "dqn_cartpole": 200}
"""Env frames between two records: a few each second."""
SETTINGS = {
    "unset": ([], {}),
    "1": (["threads=1"], {}),
    "2": (["threads=2"], {}),
    "2, spinning": (["threads=2"], {"GOMP_SPINCOUNT": "300000"}),
}
RESULT = Path(__file__).parent / "results" / "threads.md"


@contextmanager
def other_work(processes: int) -> Iterator[None]:
    """Keep so many cores busy inside the block."""
    line = [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(line) for _ in range(processes)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def updates_per_s(experiment: str, setting: str, seconds: float) -> float:
    """Train for so many seconds after the first update; return the speed of the second half."""
    options, extra = SETTINGS[setting]
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "run" / "metrics.jsonl"
        line = [
            sys.executable, "-m", "dreamlab", "train", f"+experiment={experiment}",
            f"run.dir={path.parent}", f"log.every_frames={RECORDS[experiment]}", "log.chain=false",
            "eval.every_frames=0", "checkpoint.every_frames=0", "checkpoint.every_s=0",
            "log.terminal=off", "device=cpu", "seed=1", *options,
        ]  # fmt: skip
        child = subprocess.Popen(line, env={**os.environ, **extra})
        while not any(r["updates"] for r in read(path)):
            if child.poll() is not None:
                raise SystemExit(f"{experiment} ended before its first update")
            time.sleep(0.2)
        time.sleep(seconds)
        child.send_signal(signal.SIGINT)
        child.wait()
        records = [r for r in read(path) if r["updates"]]
    first, last = records[(len(records) - 1) // 2], records[-1]
    spent = last["time/wall_s"] - first["time/wall_s"]
    return (last["updates"] - first["updates"]) / spent if spent else 0.0


def read(path: Path) -> list[dict[str, float]]:
    """Return the whole lines of a run's metrics so far."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def measure(experiment: str, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the median speed of every setting, alone and beside other work."""
    found: dict[str, dict[str, list[float]]] = {s: {"alone": [], "beside": []} for s in SETTINGS}
    for _ in range(options.rounds):
        for setting in SETTINGS:
            for where, processes in (("alone", 0), ("beside", options.busy)):
                with other_work(processes):
                    speed = updates_per_s(experiment, setting, options.seconds)
                found[setting][where].append(speed)
                print(f"{experiment:16s} {setting:12s} {where:7s} {speed:8.1f}", flush=True)
    return {s: {k: statistics.median(v) for k, v in f.items()} for s, f in found.items()}


def table(results: dict[str, dict[str, dict[str, float]]]) -> str:
    """Return the speeds, each beside its share of the best one in the same situation."""
    rows = ["| experiment | threads | alone | of the best | beside | of the best |"]
    rows.append("|---|---|---|---|---|---|")
    for experiment, speeds in results.items():
        best = {k: max(s[k] for s in speeds.values()) for k in ("alone", "beside")}
        for setting, speed in speeds.items():
            cells = [f"{speed[k]:.1f} | {speed[k] / best[k]:.0%}" for k in ("alone", "beside")]
            rows.append(f"| {experiment} | {setting} | {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiments", nargs="+", default=list(RECORDS)[:2], choices=RECORDS)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--busy", type=int, default=1, help="processes that compute meanwhile")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    text = table({name: measure(name, options) for name in options.experiments})
    print(text)
    if options.record:
        import torch

        line = f"python benchmarks/threads.py --rounds {options.rounds} --busy {options.busy}"
        where = f"{os.cpu_count()} cores, Python {platform.python_version()}, torch "
        where += f"{torch.__version__}"
        about = "Updates per second; `beside`: while another process computes on one core."
        RESULT.write_text(f"# Threads\n\n`{line} --record`, {where}.\n\n{about}\n\n{text}\n")


if __name__ == "__main__":
    main()
