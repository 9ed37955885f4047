"""From data to policies on Pendulum: offline algorithms beside imitation, and PA-RL's two steps.

    python benchmarks/offline_rl.py --record [--minutes 35] [--seeds 1 2 3] [--jobs 2]
    python benchmarks/offline_rl.py                rewrite the page from the JSON file

The data is what a half-trained SAC of ours did, and as much of random play. Imitation, IQL, CQL,
Cal-QL and TD3+BC learn from it alone. PA-RL clones it, learns values from it, then goes online for
the same number of frames with each kind of policy: with neither of its steps, with each, and with
both. Everything is a plain `dreamlab train`; scores are means over 20 episodes with seeds nobody
learnt on.
`--minutes` scales how long is learnt; results go to results/offline_rl.json and .md.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from dreamlab import training
from dreamlab.config import compose, load_config
from dreamlab.runs.git_state import git_state
from dreamlab.runs.run import hardware

RESULTS = Path(__file__).parent / "results"
USUAL_MINUTES = 35.0
"""About what the lengths below take with two jobs on two quiet cores."""
TEACHER, FRAMES = 2_400, 8_000
"""Frames that SAC learns for, and frames of data: half of them random, half SAC's. Not scaled."""
UPDATES = 8_000
CLONE, VALUES, ONLINE = 2_000, 1_500, 800
GAMMA = 0.95
NETS = "hidden: [64, 64]"
POLICY, NET = f"workflow.policy={{{NETS}}}", f"workflow.critic={{{NETS}}}"
FAST = [f"workflow.gamma={GAMMA}", "workflow.optimizer={lr: 1e-3}"]
TAU = "workflow.tau=0.02"
CONSERVATIVE = "workflow.conservative={actions: 4, weight: 0.1"
OFFLINE = {
    "imitation": ["imitation_pendulum", "workflow.policy={obs_steps: 1, horizon: 1, execute: 1, "
                  f"{NETS}}}", "workflow.optimizer={lr: 1e-3}"],
    "IQL": ["iql_pendulum", POLICY, f"workflow.critic={{expectile: 0.9, tau: 0.02, q: {{{NETS}}}}}",
            "workflow.beta=0.3", "workflow.policy_optimizer={lr: 1e-3}", *FAST],
    "CQL": ["cal_ql_pendulum", POLICY, NET, CONSERVATIVE + ", calibrated: false}", TAU, *FAST],
    "Cal-QL": ["cal_ql_pendulum", POLICY, NET, CONSERVATIVE + "}", TAU, *FAST],
    "TD3+BC": ["td3_bc_pendulum", f"workflow.actor={{{NETS}}}", NET, "workflow.alpha=10",
               "workflow.actor_optimizer={lr: 1e-3}", TAU, *FAST],
}  # fmt: skip
"""Experiment and options of each algorithm that learns from the data alone."""
POLICIES = {
    "gaussian": f"{{_target_: gaussian, {NETS}}}",
    "diffusion": "{_target_: diffusion, levels: 5, betas: vp, "
    "net: {width: 64, blocks: 2, time_dim: 16}}",
    "autoregressive": "{_target_: autoregressive, bins: 65, dim: 32, heads: 2, layers: 2, "
    "obs_dim: 64}",
}
STEPS = {
    "none": "{samples: 1, keep: 1, steps: 0}",
    "global": "{samples: 8, keep: 4, steps: 0}",
    "local": "{samples: 1, keep: 1, steps: 3, step_size: 0.003}",
    "both": "{samples: 8, keep: 4, steps: 3, step_size: 0.003}",
}
"""PA-RL's two steps, each off and on."""
FIXED = ("device=cpu", "threads=1", "log.terminal=off", "eval.video=false", "eval.episodes=20",
         "eval.num_envs=20", "eval.every_frames=0", "eval.every_updates=0",
         "log.every_frames=0")  # fmt: skip


@dataclass(frozen=True)
class Lengths:
    """How long everything is learnt."""

    scale: float

    def of(self, usual: int) -> int:
        return max(20, round(usual * self.scale))


def run_one(folder: Path, options: list[str]) -> dict[str, float]:
    """Train a run; return its scores at the end and the seconds it took."""
    began = time.monotonic()
    run, _ = training.train(load_config(compose([*options, *FIXED, f"run.dir={folder}"])))
    final = run.manifest["final_eval"]
    found = {"return": final["eval/return"], "seconds": time.monotonic() - began}
    if "eval/policy_return" in final:
        found["policy"] = final["eval/policy_return"]
    return found


def data_options(data: Path, name: str) -> str:
    return (
        f"buffers.{name}={{_target_: run_replay, run: {data}, batch: 128, length: 2, "
        f"windows: transitions, mc_gamma: {GAMMA}}}"
    )


def phase(name: str, length: str, hooks: str, *more: str) -> str:
    """Return a phase as YAML has it."""
    return f"{{name: {name}, {', '.join([length, *more])}, workflow_hooks: [{hooks}]}}"


def offline_options(which: str, data: Path, seed: int, lengths: Lengths) -> list[str]:
    """Return the command of an algorithm that learns from the data alone."""
    experiment, *more = OFFLINE[which]
    hook = "update_policy" if which == "imitation" else "update_controller"
    study = phase("study", f"duration_updates: {lengths.of(UPDATES)}", hook, "type: offline")
    return [experiment, *more, f"seed={seed}", data_options(data, "replay"),
            f"training.phases=[{study}]", "log.every_updates=500"]  # fmt: skip


def parl_options(policy: str, steps: str, data: Path, seed: int, lengths: Lengths) -> list[str]:
    """Return the command of PA-RL with this policy and these steps."""
    clone, values = (f"duration_updates: {lengths.of(n)}" for n in (CLONE, VALUES))
    online, from_data = f"duration_steps: {lengths.of(ONLINE)}", ("type: offline", "buffer: data")
    mixed = ("train_ratio: 256", "sources: {data: 0.5, replay: 0.5}")
    phases = [
        phase("clone", clone, "clone_policy", *from_data),
        phase("offline", values, "update_critic", *from_data),
        phase("online", online, "collect, update_critic, update_policy", *mixed,
              "proportional: [update_policy]"),
    ]  # fmt: skip
    critic = f"{{num_critics: 4, {NETS}, readout: mse}}"
    return [
        "pa_rl_pendulum", f"seed={seed}", data_options(data, "data"), f"workflow.critic={critic}",
        f"workflow.policy={POLICIES[policy]}", f"workflow.improve={STEPS[steps]}",
        CONSERVATIVE + "}", "workflow.policy_optimizer={lr: 3e-4}",
        "workflow.clone_optimizer={lr: 1e-3}", TAU, *FAST, f"buffers.replay.mc_gamma={GAMMA}",
        f"training.phases=[{', '.join(phases)}]",
        "eval.policy_alone=true", "log.every_updates=500", "log.every_frames=500",
    ]  # fmt: skip


def make_data(folder: Path) -> dict[str, float]:
    """Train SAC half way; keep what it then does, and as much of random play."""
    sac = ["sac_pendulum", f"workflow.actor={{{NETS}}}", NET]
    teacher = folder.with_name("teacher")
    run_one(teacher, [*sac, "seed=100", f"training.total_frames={TEACHER}"])
    half = f"duration_steps: {FRAMES // 2}"
    phases = [phase("any", half, "collect", "random_actions: true"), phase("play", half, "collect")]
    more = [f"+start.run={teacher}", f"training.phases=[{', '.join(phases)}]"]
    return run_one(folder, [*sac, "seed=101", *more])


def random_score(folder: Path) -> float:
    options = ["random_cartpole", "env.id=Pendulum-v1", "training.total_frames=200"]
    return run_one(folder, options)["return"]


def record(seeds: list[int], minutes: float, jobs: int) -> dict[str, Any]:
    """Train everything and return what came of it."""
    commit, began = git_state().get("commit", "")[:10], time.monotonic()
    lengths = Lengths(minutes / USUAL_MINUTES)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        data = scratch / "data"
        behaviour = make_data(data)
        chance = random_score(scratch / "random")
        todo = {
            ("offline", k, str(s)): offline_options(k, data, s, lengths)
            for k in OFFLINE for s in seeds
        }  # fmt: skip
        todo |= {
            ("pa_rl", f"{p}/{k}", str(s)): parl_options(p, k, data, s, lengths)
            for p in POLICIES for k in STEPS for s in seeds
        }  # fmt: skip
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            waiting = {
                key: pool.submit(run_one, scratch / f"run{i}", options)
                for i, (key, options) in enumerate(todo.items())
            }
            found = {key: job.result() for key, job in waiting.items()}
    result: dict[str, Any] = {
        "command": f"python benchmarks/offline_rl.py --record --minutes {minutes:g} --seeds "
        + " ".join(map(str, seeds)),
        "commit": commit, "hardware": f"{hardware()['cpu']}, {hardware()['cpus']} cores",
        "seconds": time.monotonic() - began, "behaviour": behaviour, "random": chance,
        "frames": FRAMES, "updates": lengths.of(UPDATES),
        "clone": lengths.of(CLONE), "values": lengths.of(VALUES), "online": lengths.of(ONLINE),
        "offline": {}, "pa_rl": {},
    }  # fmt: skip
    for (part, what, seed), score in found.items():
        result[part].setdefault(what, {})[seed] = score
    return result


def cells(runs: dict[str, dict[str, float]], key: str = "return") -> str:
    values = [r[key] for r in runs.values()]
    return f"{np.mean(values):.0f} ({', '.join(f'{v:.0f}' for v in values)})"


def page(result: dict[str, Any]) -> str:
    """Return the results as a page."""
    r = result
    lines = [
        "# Offline algorithms and PA-RL on Pendulum", "",
        f"Made by `{r['command']}` at {r['commit']}, {r['hardware']}, in {r['seconds'] / 60:.0f} "
        "minutes. Mean return over seeds (each seed), 20 episodes each; a solved task is about "
        f"-145. The data: {r['frames']:,} frames, half of them random, half sampled from a SAC "
        f"that scores {r['behaviour']['return']:.0f}. Uniformly random actions score "
        f"{r['random']:.0f}.", "",
        f"## From the data alone, {r['updates']:,} updates", "",
        "| algorithm | return | seconds |", "|---|---|---|",
    ]  # fmt: skip
    for name, runs in r["offline"].items():
        lines.append(f"| {name} | {cells(runs)} | {cells(runs, 'seconds')} |")
    lines += [
        "", f"## PA-RL: cloned for {r['clone']:,} updates, values from {r['values']:,}, then "
        f"{r['online']:,} frames online", "",
        "What acts is the improved action; in the second table the policy alone, without critics.",
    ]  # fmt: skip
    for key, title in (("return", "improved"), ("policy", "policy alone")):
        lines += ["", f"| {title} | {' | '.join(STEPS)} |", "|---|" + "---|" * len(STEPS)]
        for policy in POLICIES:
            row = [cells(r["pa_rl"][f"{policy}/{k}"], key) for k in STEPS]
            lines.append(f"| {policy} | {' | '.join(row)} |")
    lines += ["", result["note"]] if "note" in result else []
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--minutes", type=float, default=USUAL_MINUTES)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=2, help="runs trained at the same time")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    path = options.out / "offline_rl.json"
    if options.record:
        result = record(options.seeds, options.minutes, options.jobs)
        path.write_text(json.dumps(result, indent=1) + "\n")
    result = json.loads(path.read_text())
    (options.out / "offline_rl.md").write_text(page(result))
    print(page(result))


if __name__ == "__main__":
    main()
