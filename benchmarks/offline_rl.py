"""From data to policies on Pendulum: offline algorithms beside imitation, and PA-RL's two steps.

    python benchmarks/offline_rl.py --record [--minutes 35] [--seeds 1 2 3] [--jobs 2] [--runs DIR]
    python benchmarks/offline_rl.py                rewrite the page from the JSON file

The data are two sets that `dreamlab data record` makes: what a half-trained SAC of ours does while
it explores, and as much of random play. Imitation, IQL, CQL, Cal-QL and TD3+BC learn from them
alone. PA-RL clones them, learns values from them, then goes online for the same number of frames
with each kind of policy: with neither of its steps, with each, and with both. Everything is a plain
`dreamlab train`; scores are means over 20 episodes with seeds nobody learnt on.
`--minutes` scales how long is learnt; results go to results/offline_rl.json and .md. With `--runs`
the runs stay in DIR, and the same command after an interruption trains only what is not there yet;
with `--finished` it trains nothing more, and what was not trained with every seed is left open.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from dreamlab import training
from dreamlab.cli import main as dreamlab
from dreamlab.commands.data import described
from dreamlab.config import compose, load_config
from dreamlab.data.datasets.opening import open_dataset
from dreamlab.runs.run import Run, hardware

RESULTS = Path(__file__).parent / "results"
USUAL_MINUTES = 35.0
"""About what the lengths below take with two jobs on two quiet cores."""
TEACHER, EPISODES = 2_400, 20
"""Frames that SAC learns for, and episodes of 200 frames in each set of data. Not scaled."""
SETS = ("play", "chance")
UPDATES = 8_000
CLONE, VALUES, ONLINE = 2_000, 1_000, 600
GAMMA = 0.95
Key = tuple[str, str, str]
"""Table, row, seed."""
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


def is_over(folder: Path) -> bool:
    return (folder / "manifest.json").exists() and "final_eval" in Run(folder).manifest


def made_at(folders: Iterable[Path]) -> str:
    """Return the commits that runs were made at, in order of time."""
    about = sorted(
        (m["created"], m["git"]["commit"][:10]) for f in folders if (m := Run(f).manifest)
    )
    return ", ".join(dict.fromkeys(commit for _, commit in about))


def run_one(folder: Path, options: list[str]) -> dict[str, float]:
    """Train a run, or take it as it is if it is over; return its last scores and its seconds."""
    if not is_over(folder):
        training.train(load_config(compose([*options, *FIXED, f"run.dir={folder}"])))
    manifest = Run(folder).manifest
    final = manifest["final_eval"]
    found = {"return": final["eval/return"], "seconds": manifest["wall_s"]}
    if "eval/policy_return" in final:
        found["policy"] = final["eval/policy_return"]
    return found


def data_options(data: Path, name: str) -> list[str]:
    """Return both sets as buffers: SAC's under a name that the experiment has, random play's."""
    form = f"batch: 128, length: 2, windows: transitions, mc_gamma: {GAMMA}"
    sets = [
        f"{{_target_: dataset, path: {data / each}, {form}, normalize: {{action: bounds}}}}"
        for each in SETS
    ]
    return [f"buffers.{name}={sets[0]}", f"+buffers.chance={sets[1]}", "env.scale_actions=false"]


def phase(name: str, length: str, hooks: str, *more: str) -> str:
    """Return a phase as YAML has it."""
    return f"{{name: {name}, {', '.join([length, *more])}, workflow_hooks: [{hooks}]}}"


def offline_options(which: str, data: Path, seed: int, lengths: Lengths) -> list[str]:
    """Return the command of an algorithm that learns from the data alone."""
    experiment, *more = OFFLINE[which]
    hook = "update_policy" if which == "imitation" else "update_controller"
    study = phase("study", f"duration_updates: {lengths.of(UPDATES)}", hook, "type: offline",
                  "sources: {replay: 0.5, chance: 0.5}")  # fmt: skip
    return [experiment, *more, f"seed={seed}", *data_options(data, "replay"),
            f"training.phases=[{study}]", "log.every_updates=500"]  # fmt: skip


def parl_options(policy: str, steps: str, data: Path, seed: int, lengths: Lengths) -> list[str]:
    """Return the command of PA-RL with this policy and these steps."""
    clone, values = (f"duration_updates: {lengths.of(n)}" for n in (CLONE, VALUES))
    online = f"duration_steps: {lengths.of(ONLINE)}"
    from_data = ("type: offline", "sources: {data: 0.5, chance: 0.5}")
    mixed = ("train_ratio: 256", "sources: {data: 0.25, chance: 0.25, replay: 0.5}")
    phases = [
        phase("clone", clone, "clone_policy", *from_data),
        phase("offline", values, "update_critic", *from_data),
        phase("online", online, "collect, update_critic, update_policy", *mixed,
              "proportional: [update_policy]"),
    ]  # fmt: skip
    critic = f"{{num_critics: 4, {NETS}, readout: mse}}"
    return [
        "pa_rl_pendulum", f"seed={seed}", *data_options(data, "data"), f"workflow.critic={critic}",
        f"workflow.policy={POLICIES[policy]}", f"workflow.improve={STEPS[steps]}",
        CONSERVATIVE + "}", "workflow.policy_optimizer={lr: 3e-4}",
        "workflow.clone_optimizer={lr: 1e-3}", TAU, *FAST, f"buffers.replay.mc_gamma={GAMMA}",
        f"training.phases=[{', '.join(phases)}]",
        "eval.policy_alone=true", "log.every_updates=500", "log.every_frames=500",
    ]  # fmt: skip


def make_data(folder: Path) -> dict[str, float]:
    """Train SAC half way; record what it does while exploring, and as much of random play."""
    sac = ["sac_pendulum", f"workflow.actor={{{NETS}}}", NET, "seed=100"]
    chance = ["random_cartpole", "env.id=Pendulum-v1", "training.total_frames=200"]
    scores = {
        "sac": run_one(folder / "sac", [*sac, f"training.total_frames={TEACHER}"])["return"],
        "random": run_one(folder / "random", chance)["return"],
    }
    for run, name, mode in (("sac", "play", "train"), ("random", "chance", "eval")):
        if not (folder / name).exists():
            words = ["data", "record", str(folder / run), str(folder / name), "--mode", mode]
            if dreamlab([*words, "--episodes", str(EPISODES)]):
                raise SystemExit(f"no data set in {folder / name}")
        scores[name] = described(open_dataset(folder / name))["return"]
    return scores


def all_runs(data: Path, seeds: list[int], lengths: Lengths) -> dict[Key, list[str]]:
    """Return the command of every run; what an interruption would leave out comes last."""
    todo: dict[Key, list[str]] = {
        ("offline", k, str(s)): offline_options(k, data, s, lengths)
        for k in OFFLINE for s in seeds
    }  # fmt: skip
    first, *rest = POLICIES
    ablated = [(first, k) for k in ("both", "none", "global", "local")]
    ablated += [(p, k) for p in rest for k in ("none", "both")]
    ablated += [(p, k) for p in rest for k in ("global", "local")]
    return todo | {
        ("pa_rl", f"{p}/{k}", str(s)): parl_options(p, k, data, s, lengths)
        for p, k in ablated for s in seeds
    }  # fmt: skip


def record(given: argparse.Namespace) -> dict[str, Any]:
    """Train everything, or what is not in `runs` yet, and return what came of it."""
    seeds, lengths = given.seeds, Lengths(given.minutes / USUAL_MINUTES)
    with tempfile.TemporaryDirectory() as name:
        scratch = given.runs or Path(name)
        behaviour = make_data(scratch / "data")
        todo = all_runs(scratch / "data", seeds, lengths)
        places = {key: scratch / "_".join(key).replace("/", "_") for key in todo}
        if given.finished:
            todo = {key: todo[key] for key, place in places.items() if is_over(place)}
        with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
            waiting = {k: pool.submit(run_one, places[k], options) for k, options in todo.items()}
            found = {key: job.result() for key, job in waiting.items()}
        commits = made_at(places[key] for key in found)
    result: dict[str, Any] = {
        "command": f"python benchmarks/offline_rl.py --record --minutes {given.minutes:g} --seeds "
        + " ".join(map(str, seeds)) + (" --runs DIR --finished" if given.finished else ""),
        "commit": commits, "hardware": f"{hardware()['cpu']}, {hardware()['cpus']} cores",
        "data": behaviour,
        "frames": 2 * EPISODES * 200, "updates": lengths.of(UPDATES),
        "clone": lengths.of(CLONE), "values": lengths.of(VALUES), "online": lengths.of(ONLINE),
        "offline": {}, "pa_rl": {},
    }  # fmt: skip
    for (part, what, seed), score in found.items():
        result[part].setdefault(what, {})[seed] = score
    for part in ("offline", "pa_rl"):  # fewer seeds than the others have compare with nothing
        result[part] = {k: v for k, v in result[part].items() if len(v) == len(seeds)}
    return result


def cells(runs: dict[str, dict[str, float]], key: str = "return") -> str:
    values = [r[key] for r in runs.values()]
    return f"{np.mean(values):.0f} ({', '.join(f'{v:.0f}' for v in values)})"


def page(result: dict[str, Any]) -> str:
    """Return the results as a page."""
    r = result
    lines = [
        "# Offline algorithms and PA-RL on Pendulum", "",
        f"Made by `{r['command']}` at {r['commit']}, {r['hardware']}. Mean return over "
        "seeds (each seed), 20 episodes each; a solved task is about "
        f"-145. The data: {r['frames']:,} frames by `dreamlab data record`, half of them random "
        f"play ({r['data']['chance']:.0f} an episode), half of a SAC that explores "
        f"({r['data']['play']:.0f}; measured without exploring {r['data']['sac']:.0f}). Uniformly "
        f"random actions score {r['data']['random']:.0f}.", "",
        f"## From the data alone, {r['updates']:,} updates", "",
        "| algorithm | return |", "|---|---|",
    ]  # fmt: skip
    for name, runs in r["offline"].items():
        lines.append(f"| {name} | {cells(runs)} |")
    lines += [
        "", f"## PA-RL: cloned for {r['clone']:,} updates, values from {r['values']:,}, then "
        f"{r['online']:,} frames online", "",
        "What acts is the improved action; in the second table the policy alone, without critics.",
    ]  # fmt: skip
    for key, title in (("return", "improved"), ("policy", "policy alone")):
        lines += ["", f"| {title} | {' | '.join(STEPS)} |", "|---|" + "---|" * len(STEPS)]
        for policy in POLICIES:
            found = [r["pa_rl"].get(f"{policy}/{k}") for k in STEPS]
            row = [cells(runs, key) if runs else "not run" for runs in found]
            lines.append(f"| {policy} | {' | '.join(row)} |")
    if len(r["pa_rl"]) < len(POLICIES) * len(STEPS):
        lines += ["", "`not run`: not trained with every seed when this was recorded."]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--minutes", type=float, default=USUAL_MINUTES)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=2, help="runs trained at the same time")
    parser.add_argument("--runs", type=Path, help="keep the runs here, and go on with them")
    parser.add_argument("--finished", action="store_true", help="take what --runs has, no more")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    path = options.out / "offline_rl.json"
    if options.record:
        result = record(options)
        path.write_text(json.dumps(result, indent=1) + "\n")
    result = json.loads(path.read_text())
    (options.out / "offline_rl.md").write_text(page(result))
    print(page(result))


if __name__ == "__main__":
    main()
