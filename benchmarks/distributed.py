"""Throughput of one run in 1 and 2 processes, and where the time goes.

    python benchmarks/distributed.py            # minutes; writes results/distributed.{json,md}

Each process has the same number of environments and the same batch, so that two of them collect
and learn from twice as much per update. Times are of rank 0, from a few seconds after the first
update on, so that neither the start nor an evaluation is in them. `reduce` is spent in reductions
of gradients and statistics, within collect and update. `wait` is spent in the small agreements of
the loop (the other process is not there yet): within collect, or outside of both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from dreamlab.runs.git_state import git_state
from dreamlab.runs.run import hardware

RESULTS = Path(__file__).parent / "results"
RUNS = {"PPO": "ppo_cartpole", "SAC": "sac_pendulum", "DreamerV3": "dreamer_cartpole"}
WARM_S, MEASURED_S = 3.0, 20.0
CORES = 2
"""For as many processes as are measured."""
COMMON = (
    "device=cpu", "threads=1", "log.terminal=off", "log.every_frames=0", "log.every_updates=0",
    "eval.episodes=1", "eval.every_frames=0", "eval.video=false", "checkpoint.every_s=0",
    "checkpoint.every_frames=0", "report.every_frames=0",
)  # fmt: skip


Times = dict[str, float]


def worker(out: str, words: list[str]) -> None:
    """Train as one of the processes and write down where the time went."""
    from dreamlab import build, training
    from dreamlab.config import compose, load_config
    from dreamlab.core import world
    from dreamlab.engine import processes
    from dreamlab.engine.observer import StageTimes, StopWhen
    from dreamlab.engine.terminal import Terminal

    spent = {"reduce": 0.0, "wait": 0.0}
    for name, kind in (("_reduce", "reduce"), ("agree", "wait"), ("gather", "wait")):
        _timed(world, name, kind, spent)
    config = load_config(compose(words))
    with processes.together(config.processes, "cpu", 600.0), training.open_run(config) as opened:
        loop = build.build(opened.config, opened.run, Terminal("off", config.name))
        stages = StageTimes()

        def now() -> Times:
            counted = {"frames": loop.counters.env_frames, "updates": loop.counters.updates}
            return {"s": time.perf_counter(), **counted, **stages.seconds, **spent}

        seen: list[Times] = []

        def measured(_: Any) -> bool:
            """Note where the run stands; tell whether that was long enough."""
            here = now()
            if here["updates"] and (not seen or here["s"] > seen[0]["s"] + WARM_S):
                seen.append(here)
            return len(seen) > 1 and here["s"] > seen[1]["s"] + MEASURED_S

        loop.observers.add(stages)
        loop.observers.add(StopWhen(measured))
        opened.keep()
        loop.run()
    if world.launched() is None or os.environ["RANK"] == "0":
        begun, ended = seen[1], seen[-1]
        Path(out).write_text(json.dumps({k: v - begun.get(k, 0.0) for k, v in ended.items()}))


def _timed(module: Any, name: str, kind: str, spent: dict[str, float]) -> None:
    """Add up the seconds of a function: a benchmark's own instrument, nothing else is changed."""
    before = getattr(module, name)

    def timed(*args: Any) -> Any:
        began = time.perf_counter()
        out = before(*args)
        spent[kind] += time.perf_counter() - began
        return out

    setattr(module, name, timed)


def measure(experiment: str, num: int) -> dict[str, Any]:
    """Return the times of one run in `num` processes."""
    with tempfile.TemporaryDirectory() as folder:
        words = [experiment, *COMMON]
        words += [f"run.dir={folder}/run", f"distributed.processes={num}"]
        out = f"{folder}/out.json"
        start = [sys.executable]
        if num > 1:
            start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num)]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*start, __file__, "--worker", out, *words],
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(done.stderr[-2_000:])
        return {"processes": num, **json.loads(Path(out).read_text())}


def _made(rows: list[dict[str, Any]]) -> str:
    """Return where the rows come from; older ones do not say."""
    made = {f"{r['commit']}, {r['machine']}" if r["commit"] else "not written down" for r in rows}
    return f"Commit and machine: {'; '.join(sorted(made))}."


def page(rows: list[dict[str, Any]]) -> str:
    """Return the table as a page."""
    lines = [
        "# One run in 1 and 2 processes",
        "",
        f"{CORES} cores, gloo, one thread each. Each process has the environments and the "
        "batch of the experiment, so that two learn from twice as much per update. Measured for "
        f"{MEASURED_S:.0f} s of training, {WARM_S:.0f} s after the first update. `load` is the "
        "machine's load average (1 min) when a row was begun: where it is above the number of "
        "cores, others used them as well, processes waited for each other, and a row tells more "
        "of the machine than of the program. `python benchmarks/distributed.py` writes this page. "
        + _made(rows),
        "",
        "| workflow | processes | load | frames/s | updates/s | collect | update "
        "| neither | of all: reduce | wait |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        share = {k: r.get(k, 0.0) / r["s"] for k in ("collect", "update", "reduce", "wait")}
        neither = 1 - share["collect"] - share["update"]
        lines.append(
            f"| {r['workflow']} | {r['processes']} | {r['load']:.0f} | {r['frames'] / r['s']:,.1f} "
            f"| {r['updates'] / r['s']:.2f} | {share['collect']:.0%} | {share['update']:.0%} "
            f"| {neither:.0%} | {share['reduce']:.0%} | {share['wait']:.0%} |"
        )
    return "\n".join([*lines, ""])


def main() -> None:
    rows: list[dict[str, Any]] = []
    machine, commit = hardware(), str(git_state().get("commit"))[:10]
    about = {"commit": commit, "machine": f"{machine.get('cpu')}, {machine.get('cpus')} cores"}
    for workflow, experiment in RUNS.items():
        for num in (1, 2):
            load = os.getloadavg()[0]
            rows.append({"workflow": workflow, **about, "load": load, **measure(experiment, num)})
            print(json.dumps(rows[-1]), flush=True)
            (RESULTS / "distributed.json").write_text(json.dumps(rows, indent=1) + "\n")
            (RESULTS / "distributed.md").write_text(page(rows))


if __name__ == "__main__":
    if "--worker" in sys.argv:
        worker(sys.argv[2], sys.argv[3:])
        os._exit(0)  # as a worker of `dreamlab train` ends
    else:
        main()
