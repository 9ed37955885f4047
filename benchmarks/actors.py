"""Env frames per second by the number of actors, where a step of the environment takes long.

    python benchmarks/actors.py [--actors 0 1 2 4 8] [--seconds 20] [--step-s 0.05] [--rounds 2]
    python benchmarks/actors.py --draw       rewrite the page from the JSON file

SAC on an environment that sleeps for 50 ms in every step, one environment per actor; 0 actors is
the plain loop. `light`: a small update per 4 decisions. `heavy`: so large that the learner
becomes the bottleneck. Sleeping costs no core, so that few cores are enough to see how it scales.
Each row is a `dreamlab train` of its own; its speed is the median over the records (one a second)
after the first quarter of its time, and of several rounds the fastest counts: other work on the
machine only ever slows one down.
Results go to results/actors.json and .md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from dreamlab.runs.git_state import git_state
from dreamlab.runs.run import hardware

RESULTS = Path(__file__).parent / "results"
FILL = 100
LEARNERS = {
    "light": ["workflow.actor.hidden=[32,32]", "workflow.critic.hidden=[32,32]",
              "buffers.replay.batch=32", "training.phases.1.train_ratio=16"],
    "heavy": ["workflow.actor.hidden=[512,512]", "workflow.critic.hidden=[512,512]",
              "buffers.replay.batch=512", "training.phases.1.train_ratio=1024"],
}  # fmt: skip


def measure(learner: str, actors: int, seconds: float, step_s: float) -> dict[str, float]:
    """Train for about so many seconds and return what the run says of its speed."""
    frames = FILL + int(seconds / step_s) * max(1, actors)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        line = [
            sys.executable, "-m", "dreamlab", "train", "+experiment=sac_pendulum",
            "env.suite=dummy", "env.id=slow", f"env.options={{seconds: {step_s}, length: 20}}",
            f"training.total_frames={frames}", f"log.every_frames={max(1, actors) * 20}",
            "eval.every_frames=0", "eval.episodes=1", "eval.num_envs=1", "eval.video=false",
            "checkpoint.every_s=0", "log.terminal=off", "device=cpu", "threads=1", "seed=1",
            f"run.dir={folder}", *LEARNERS[learner], *([f"actors={actors}"] if actors else []),
        ]  # fmt: skip
        subprocess.run(line, check=True)
        lines = (folder / "metrics.jsonl").read_text().splitlines()
    return {"actors": actors, **speed([json.loads(x) for x in lines])}


def speed(records: list[dict[str, float]]) -> dict[str, float]:
    """Return what a run was like from the first quarter of its learning to its last record but one.

    The last one holds the evaluation at the end.
    """
    learning = [r for r in records[:-1] if r["updates"]]
    used = learning[len(learning) // 4 :]
    first, last = used[0], used[-1]
    spent = last["time/wall_s"] - first["time/wall_s"]
    frames = last["env_frames"] - first["env_frames"]
    typical = statistics.median(r["time/frames_per_s"] for r in used[1:])
    out = {"frames_per_s": typical, "mean_frames_per_s": frames / spent}
    for name in ("decisions", "updates"):  # as many of them as of frames
        out[f"{name}_per_s"] = typical * (last[name] - first[name]) / frames
    for name in ("learner_waited", "queue_ticks", "weights_age_s", "weights_age_updates"):
        values = [r[f"actors/{name}"] for r in used if f"actors/{name}" in r]
        out[name] = sum(values) / len(values) if values else 0.0
    out["weights_age_max_s"] = max(r.get("actors/weights_age_max_s", 0.0) for r in used)
    out["seconds"] = spent
    return out


def table(rows: list[dict[str, float]], step_s: float) -> str:
    """Return the speeds of one learner, beside the plain loop's and the most that could be."""
    plain = next((r["frames_per_s"] for r in rows if not r["actors"]), None)
    out = [
        "| actors | frames/s | times the plain loop | of what the environments could give "
        "| updates/s | learner waited | ticks in the queue | age of weights, mean and largest |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        most = max(1, row["actors"]) / step_s
        gain = f"{row['frames_per_s'] / plain:.2f}" if plain else "-"
        cells = [f"{row['actors']:.0f}", f"{row['frames_per_s']:.1f}", gain]
        cells += [f"{row['decisions_per_s'] / most:.0%}", f"{row['updates_per_s']:.1f}"]
        if row["actors"]:
            cells += [f"{row['learner_waited']:.0%}", f"{row['queue_ticks']:.1f}"]
            cells += [f"{row['weights_age_s']:.2f} s, {row['weights_age_max_s']:.2f} s"]
        else:
            cells += ["-", "-", "-"]
        out.append(f"| {' | '.join(cells)} |")
    return "\n".join(out)


def page(found: dict[str, Any]) -> str:
    """Return everything that was measured as a page."""
    about = f"Made by `{found['command']}` at {found['commit']}, {found['machine']}."
    text = ["# Actors on a slow environment", "", about]
    loaded = f"Other work shared the machine: a load of {found['load']:.1f} when it began"
    text += [f"{loaded}; the benchmark ran at priority (nice) {found['nice']}.", ""]
    text += [
        f"SAC; every step of the environment takes {1e3 * found['step_s']:.0f} ms, one environment "
        "per actor (0: the plain loop, which collects and learns in turn). A tick is stored when "
        "every actor has sent it, so an actor that is late holds up the others once their queues "
        "are full.",
        "",
    ]
    words = {
        "light": "One small update per 4 decisions (two layers of 32, 32 transitions).",
        "heavy": "One large update per decision (two layers of 512, 512 transitions).",
    }
    for learner, rows in found["rows"].items():
        text += [f"## {learner}", "", words[learner], "", table(rows, found["step_s"]), ""]
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--actors", type=int, nargs="+", default=[0, 1, 2, 4, 8])
    parser.add_argument("--learners", nargs="+", choices=LEARNERS, default=list(LEARNERS))
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--step-s", type=float, default=0.05)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--draw", action="store_true")
    options = parser.parse_args()
    path = RESULTS / "actors.json"
    if not options.draw:
        load, rows = os.getloadavg()[0], dict[str, list[dict[str, float]]]()
        for learner in options.learners:
            rows[learner] = []
            for actors in options.actors:
                tried: list[dict[str, float]] = []
                for _ in range(options.rounds):
                    tried.append(measure(learner, actors, options.seconds, options.step_s))
                    print(learner, json.dumps(tried[-1]), flush=True)
                rows[learner].append(max(tried, key=lambda r: r["frames_per_s"]))
        machine = hardware()
        given = f"--learners {' '.join(rows)} --seconds {options.seconds:g}"
        given += f" --rounds {options.rounds}"
        found = {
            "command": f"python benchmarks/actors.py {given}",
            "commit": str(git_state().get("commit"))[:10],
            "machine": f"{machine.get('cpu')}, {machine.get('cpus')} cores",
            "load": load, "nice": os.nice(0), "step_s": options.step_s, "rows": rows,
        }  # fmt: skip
        path.write_text(json.dumps(found, indent=1) + "\n")
    (RESULTS / "actors.md").write_text(page(json.loads(path.read_text())))


if __name__ == "__main__":
    main()
