"""Memory over 2,000 updates, and how busy training keeps the GPU.

    python benchmarks/gpu_soak.py [--parts memory busy] [--updates 2000] [--seconds 40] [--record]
    python benchmarks/gpu_soak.py --device cpu --updates 3 --seconds 1 --tiny

`memory`: the updates of a run (captured on a GPU) on random batches, for DreamerV3 12m with vectors
and with images and TD-MPC2 5m, each in a process of its own, all at once; what torch has allocated
and reserved on the GPU and what the process has in RAM is read after 100 updates and at the end.
`busy`: an ordinary run of walker_walk and one of an Atari game at size 12m, one after the other.
Counted are so many seconds once updates are replayed: utilization of the GPU as nvidia-smi reports
it five times a second, if it is there, and how long the host spent in each stage (where it waits
for the GPU, that is the stage that waits). `--tiny` is for trying it out; `--record` writes table
and numbers, and keeps those of parts that were not measured.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from recorded import place, with_earlier

RESULTS = Path(__file__).parent / "results"
EARLY = 100
"""Updates after which all memory should have been taken."""
BATCHES = 16
IN_FLIGHT = 20
"""Updates between two waits for the GPU, so that its queue does not fill."""
MEMORY = {
    "dreamer-vectors": ("DreamerV3", "12m", "vectors"),
    "dreamer-images": ("DreamerV3", "12m", "images"),
    "tdmpc2": ("TD-MPC2", "5m", "vectors"),
}
BUSY = {
    "walker_walk": ("+experiment=dreamer_walker",),
    "atari": ("+experiment=dreamer_atari100k", "env.id=boxing", "workflow.size=12m"),
}
QUIET = (
    "eval.every_frames=0", "eval.video=false", "report.every_frames=0", "log.every_frames=500",
    "checkpoint.every_frames=0", "checkpoint.every_s=0", "log.terminal=off",
)  # fmt: skip
REPLAYED = 200
"""Updates of a run before it is watched: by then they are compiled and captured."""
MIB = 2**20


# -- memory ---------------------------------------------------------------------------------------


def make(name: str, args: argparse.Namespace) -> tuple[Any, Any, list[Any]]:
    """Return a workflow as a run would have it, the context it computes in, and batches."""
    algorithm, size, kind = MEMORY[name]
    size = "1m" if args.tiny else size
    precision = "bf16" if args.device == "cuda" else "fp32"
    if algorithm == "TD-MPC2":
        import tdmpc2_update as of

        workflow, autocast = of.make(size, args.device, precision, args.device == "cuda")
    else:
        import dreamer_update as of

        workflow, autocast = of.make(
            of.asked(size, kind, args.device), precision, args.device == "cuda"
        )
    count = min(BATCHES, args.updates)
    return workflow, autocast, [of.random_batch(workflow, i) for i in range(count)]


def memory_now(device: str) -> dict[str, float]:
    """Return MiB of the process and of torch on the GPU."""
    import torch

    from dreamlab.engine.system import rss

    gc.collect()
    found = {"rss": rss() / MIB}
    if device == "cuda":
        torch.cuda.synchronize()
        found["allocated"] = torch.cuda.memory_allocated() / MIB
        found["reserved"] = torch.cuda.memory_reserved() / MIB
    return found


def soak(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return the memory early and at the end of many updates."""
    import torch

    workflow, autocast, batches = make(name, args)
    early = min(EARLY, max(args.updates // 2, 1))
    looks: dict[int, dict[str, float]] = {}
    metrics: Any = {}
    for i in range(1, args.updates + 1):
        with autocast():
            metrics = workflow.update(batches[i % len(batches)])
        if args.device == "cuda" and i % IN_FLIGHT == 0:
            torch.cuda.synchronize()
        if i in (early, args.updates):
            looks[i] = memory_now(args.device)
    metrics = metrics[0] if isinstance(metrics, tuple) else metrics
    algorithm, size, kind = MEMORY[name]
    return {
        "part": "memory", "algorithm": algorithm, "size": "1m" if args.tiny else size,
        "input": kind, "looks": looks, "loss": float(metrics["loss"]), **place(args.device),
    }  # fmt: skip


# -- busy -----------------------------------------------------------------------------------------


class Meter:
    """Utilization of the GPU, as nvidia-smi reports it, while it is on."""

    def __init__(self, folder: Path, device: str) -> None:
        self.path, self.device = folder / "utilization", device
        self.process: subprocess.Popen[bytes] | None = None
        self.read: list[int] = []

    def start(self) -> None:
        if self.device != "cuda" or shutil.which("nvidia-smi") is None:
            return
        query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        with self.path.open("wb") as out:
            self.process = subprocess.Popen([*query, "-lms", "200"], stdout=out)

    def stop(self) -> list[int]:
        """Return every percentage that was read."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait()
            self.process = None
            lines = self.path.read_text().splitlines()
            self.read = [int(x) for x in lines if x.strip().isdigit()]
        return self.read


def train(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Train, watch so many seconds of it, and return how they were spent."""
    os.environ.setdefault("MUJOCO_GL", "disable")
    from dreamlab import build, training
    from dreamlab.config import compose, load_config
    from dreamlab.engine.observer import StageTimes, StopWhen
    from dreamlab.engine.terminal import Terminal

    folder = Path(args.folder)
    small = ("tiny=true", f"device={args.device}", "env.vector=sync") if args.tiny else ()
    given = [w for w in BUSY[name] if not (args.tiny and w.startswith("workflow.size"))]
    words = [*given, *QUIET, *small, f"run.dir={folder / name}"]
    config = load_config(compose(words))
    stages, meter = StageTimes(), Meter(folder, args.device)
    mark: dict[str, Any] = {}
    replayed = 3 if args.tiny else REPLAYED

    def enough(loop: Any) -> bool:
        counters, now = loop.counters, time.perf_counter()
        if not mark and counters.updates >= replayed:
            mark.update(at=now, frames=counters.env_frames, updates=counters.updates)
            stages.seconds.clear()
            meter.start()
        if not mark or now - mark["at"] < args.seconds:
            return False
        meter.stop()  # before the last checkpoint is written
        return True

    with training.open_run(config) as opened:
        loop = build.build(opened.config, opened.run, Terminal("off", config.name))
        loop.observers.add(stages)
        loop.observers.add(StopWhen(enough))
        opened.keep()
        began = time.perf_counter()
        loop.run()
    used, counters = meter.stop(), loop.counters
    took = sum(stages.seconds.values())
    shares = {k: v / took for k, v in sorted(stages.seconds.items())}
    return {
        "part": "busy", "task": name, "size": config.workflow.config.size, "watched_s": took,
        "frames_per_s": (counters.env_frames - mark["frames"]) / took,
        "updates_per_s": (counters.updates - mark["updates"]) / took,
        "stages": shares, "before_s": mark["at"] - began,
        "utilization": sum(used) / len(used) / 100 if used else None, "readings": len(used),
        "lowest": min(used) / 100 if used else None, **place(args.device),
    }  # fmt: skip


# -- the command ----------------------------------------------------------------------------------


def child(name: str, args: argparse.Namespace) -> subprocess.Popen[str]:
    """Start one measurement in a process of its own."""
    words = ["--device", args.device, "--updates", str(args.updates), "--folder", args.folder,
             "--seconds", str(args.seconds), *(["--tiny"] if args.tiny else [])]  # fmt: skip
    command = [sys.executable, __file__, "--one", name, *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def rows_of(children: dict[str, subprocess.Popen[str]]) -> list[dict[str, Any]]:
    """Return what processes measured; say which failed."""
    rows: list[dict[str, Any]] = []
    for name, process in children.items():
        said = process.communicate()[0].splitlines()
        if process.returncode == 0 and said and said[-1].startswith("{"):
            rows.append(json.loads(said[-1]))
        else:
            print(f"FAILED {name}: exit code {process.returncode}", flush=True)
    return rows


def measure_all(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return all rows: memory side by side, training one after the other."""
    rows: list[dict[str, Any]] = []
    if "memory" in args.parts:
        rows += rows_of({name: child(name, args) for name in args.memory})
    if "busy" in args.parts:
        if args.device == "cuda" and shutil.which("nvidia-smi") is None:
            print("nvidia-smi is missing: utilization is not read", flush=True)
        for name in args.busy:
            rows += rows_of({name: child(name, args)})
    return rows


def memory_table(rows: list[dict[str, Any]]) -> str:
    names = ("allocated", "reserved", "rss")
    head = ["algorithm", "size", "input", "updates", *(f"{n}, MiB" for n in names), "growth, MiB"]
    head += ["commit"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for r in rows:
        (early, first), (late, last) = min(looks(r)), max(looks(r))
        cells = [r["algorithm"], r["size"], r["input"], f"{early} to {late:,}"]
        cells += [f"{first[n]:,.1f} to {last[n]:,.1f}" if n in first else "" for n in names]
        grown = [f"{n} {last[n] - first[n]:+.1f}" for n in names if n in first]
        lines.append(f"| {' | '.join([*cells, ', '.join(grown), r['commit']])} |")
    return "\n".join(lines)


def looks(row: dict[str, Any]) -> list[tuple[int, dict[str, float]]]:
    return [(int(k), v) for k, v in row["looks"].items()]


def busy_table(rows: list[dict[str, Any]]) -> str:
    head = ("task", "size", "seconds", "GPU busy", "frames/s", "updates/s", "host's time",
            "commit")  # fmt: skip
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for r in rows:
        share = r["utilization"]
        busy = "" if share is None else f"{share:.0%} of {r['readings']} readings"
        host = ", ".join(f"{k} {v:.0%}" for k, v in r["stages"].items())
        cells = (r["task"], r["size"], f"{r['watched_s']:.0f}", busy, f"{r['frames_per_s']:.0f}",
                 f"{r['updates_per_s']:.1f}", host, r["commit"])  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def tables(rows: list[dict[str, Any]]) -> str:
    """Return a table for each part that was measured."""
    kinds = {"memory": memory_table, "busy": busy_table}
    mine = {k: [r for r in rows if r["part"] == k] for k in kinds}
    return "\n\n".join(kinds[k](found) for k, found in mine.items() if found)


def record(rows: list[dict[str, Any]], device: str) -> None:
    """Write the tables and the numbers where the pages link."""
    name = "gpu_soak" if device == "cuda" else "gpu_soak_cpu"
    path = RESULTS / f"{name}.json"
    rows = with_earlier(path, rows, ("part", "task", "algorithm", "input"))
    path.write_text(json.dumps(rows, indent=1) + "\n")
    intro = (
        f"{rows[-1]['place']}, torch {rows[-1]['torch']}. Updates are those of a run, on random "
        "batches; utilization is nvidia-smi's, while training. "
        "`python benchmarks/gpu_soak.py --record` makes this."
    )
    text = f"# Long training on a GPU: memory, and how busy it is\n\n{intro}\n\n{tables(rows)}\n"
    (RESULTS / f"{name}.md").write_text(text)


def main() -> int:
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    parser.add_argument("--parts", nargs="+", default=["memory", "busy"])
    parser.add_argument("--memory", nargs="+", default=list(MEMORY), choices=MEMORY)
    parser.add_argument("--busy", nargs="+", default=list(BUSY), choices=BUSY)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--updates", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--tiny", action="store_true", help="the smallest sizes")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    parser.add_argument("--folder", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps((soak if args.one in MEMORY else train)(args.one, args)), flush=True)
        return 0
    with tempfile.TemporaryDirectory(prefix="soak_") as args.folder:
        rows = measure_all(args)
    if rows:
        print(tables(rows))
    if rows and args.record:
        record(rows, args.device)
    wanted = len(args.memory) * ("memory" in args.parts) + len(args.busy) * ("busy" in args.parts)
    return wanted - len(rows)


if __name__ == "__main__":
    raise SystemExit(main())
