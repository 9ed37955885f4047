"""DreamerV3 on DeepMind Control from joints: the published protocol, beside the published curves.

    python benchmarks/dmc_proprio.py FOLDER [--tasks walker_walk:300000 ...] [--seeds 1]
        [--minutes 9] [--together 1] [overrides ...]

Trains each task (12m parameters, action repeat 2, train ratio 512) in its own folder below FOLDER,
for so many env frames. After `--minutes` what still trains is told to save and stop; the same
command goes on from there. Then it records what is there: results/dreamer_<task>.json and .png.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

TASKS = ("walker_walk:300000", "cartpole_swingup:100000", "reacher_easy:100000",
         "cheetah_run:100000")  # fmt: skip
HERE = Path(__file__).parent


def command(folder: Path, task: str, frames: str, seed: int, overrides: list[str]) -> list[str]:
    """Return the command that trains a task, or goes on with it."""
    return [
        sys.executable, "-m", "dreamlab", "train", "+experiment=dreamer_walker",
        f"env.id={task}", f"name=dreamer_{task}", f"seed={seed}", f"run.dir={folder}",
        f"training.total_frames={frames}", "eval.video=false", "log.terminal=plain", *overrides,
    ]  # fmt: skip


def finished(folder: Path) -> bool:
    """Tell whether a run came to its end."""
    path = folder / "manifest.json"
    return path.exists() and json.loads(path.read_text()).get("status") == "finished"


def train(jobs: list[tuple[Path, list[str]]], together: int, until: float) -> None:
    """Run jobs, a few at a time, until all are done or the time is up."""
    waiting = [job for job in jobs if not finished(job[0])]
    running: list[subprocess.Popen[bytes]] = []
    while (waiting or running) and time.monotonic() < until:
        running = [p for p in running if p.poll() is None]
        while waiting and len(running) < together:
            folder, line = waiting.pop(0)
            folder.parent.mkdir(parents=True, exist_ok=True)
            with (folder.parent / f"{folder.name}.log").open("ab") as log:
                running.append(subprocess.Popen(line, stdout=log, stderr=log))
        time.sleep(1)
    for process in running:
        process.send_signal(signal.SIGINT)
    for process in running:
        process.wait()


def record(task: str, folders: list[Path]) -> None:
    """Write a task's result, and draw it over the published curve."""
    there = [str(f) for f in folders if (f / "metrics.jsonl").exists()]
    if there:
        against = f"dmc_proprio/dmc_{task}/dreamerv3"
        line = [sys.executable, str(HERE / "learning.py"), "--collect", f"dreamer_{task}"]
        subprocess.run([*line, *there, "--against", against], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("overrides", nargs="*", default=[])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--together", type=int, default=1, help="runs at the same time")
    options = parser.parse_intermixed_args()
    until = time.monotonic() + 60 * options.minutes
    folders: dict[str, list[Path]] = {}
    jobs: list[tuple[Path, list[str]]] = []
    for entry in options.tasks:
        task, _, frames = entry.partition(":")
        for seed in options.seeds:
            folder = options.folder / f"{task}_{seed}"
            folders.setdefault(task, []).append(folder)
            jobs.append((folder, command(folder, task, frames, seed, options.overrides)))
    train(jobs, options.together, until)
    for task, places in folders.items():
        record(task, places)


if __name__ == "__main__":
    main()
