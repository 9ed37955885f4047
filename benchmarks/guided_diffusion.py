"""What each switch of diffusion-policy RL gives on Pendulum: ranking, guidance, RIC's two terms.

    python benchmarks/guided_diffusion.py FOLDER [--updates 8000] [--seeds 4 5 6] [--record]

The data is that of `benchmarks/offline_rl.py`, made in FOLDER/data if it is not there. Every run
learns from it alone. The policy of "none" is then measured with more samples, and with guidance by
its critics at several scales; that of "both" with guidance by RIC's model. FOLDER keeps the runs,
and the same command goes on with them; `--record` writes results/guided_diffusion.{json,md,png}.
"""

from __future__ import annotations

import argparse
import json
import shutil
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import offline_rl as offline

from dreamlab import build, training
from dreamlab.runs.git_state import git_state
from dreamlab.runs.run import hardware

RESULTS = Path(__file__).parent / "results"
SCALES = (0.0, 1.0, 3.0, 10.0, 30.0, 100.0)
RANKED = (1, 4, 16)
WEIGHT = 3.0
"""Of RIC's terms, chosen on another seed than those recorded."""
MODEL = "model: {latent_dim: 64, mlp_dim: 64}"
TERMS = {
    "none": "null",
    "constraint": f"{{constraint: {WEIGHT}, value: 0, {MODEL}}}",
    "value": f"{{constraint: 0, value: {WEIGHT}, {MODEL}}}",
    "both": f"{{constraint: {WEIGHT}, value: {WEIGHT}, {MODEL}}}",
}
"""RIC's terms in the policy's loss."""
GUIDED = ("none", "both")
"""Those that are measured with guidance: by IQL's critics, and by RIC's model."""


def options(terms: str, data: Path, seed: int, updates: int) -> list[str]:
    """Return the command of a run."""
    study = offline.phase(
        "study", f"duration_updates: {updates}", "update_critic, update_policy", "type: offline",
        "sources: {replay: 0.5, chance: 0.5}",
    )  # fmt: skip
    critic = f"{{expectile: 0.9, tau: 0.02, q: {{{offline.NETS}}}}}"
    return [
        "diffusion_rl_pendulum", f"seed={seed}",
        *offline.data_options(data, "replay"),
        "workflow.policy={net: {width: 64, blocks: 2, time_dim: 16}}",
        f"workflow.critic={critic}", "workflow.rank.samples=1", f"workflow.ric={TERMS[terms]}",
        "workflow.policy_optimizer.lr=1e-3", *offline.FAST,
        f"training.phases=[{study}]", "log.every_updates=500",
    ]  # fmt: skip


def measure(folder: Path, scale: float, samples: int) -> float:
    """Return what a run's policy scores with another guidance and as many samples."""
    trained = training.load_policy(folder)
    workflow, config = trained.workflow, trained.workflow.config
    rank = replace(config.rank, samples=samples, keep=1)
    workflow.config = replace(config, guidance_scale=scale, rank=rank)
    changed = replace(trained.config.eval, seed=30_000)
    evaluator = build.build_evaluator(replace(trained.config, eval=changed))
    return evaluator.run(workflow, trained.statistics).metrics()["eval/return"]


def one(folder: Path, terms: str, seed: int, updates: int) -> dict[str, Any]:
    """Train a run if it is not there; return all that is measured of it."""
    place = folder / f"{terms}_{updates}_{seed}"
    offline.run_one(place, options(terms, folder / "data", seed, updates))
    plain = measure(place, 0.0, 1)
    found: dict[str, Any] = {"return": plain}
    if terms in GUIDED:
        found["guided"] = {str(s): measure(place, s, 1) if s else plain for s in SCALES}
    if terms == "none":
        found["ranked"] = {str(n): measure(place, 0.0, n) if n > 1 else plain for n in RANKED}
    return found


def record(folder: Path, seeds: list[int], updates: int, jobs: int) -> dict[str, Any]:
    """Train and measure everything."""
    folder.mkdir(parents=True, exist_ok=True)
    data = offline.make_data(folder / "data")
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        waiting = {(t, s): pool.submit(one, folder, t, s, updates) for s in seeds for t in TERMS}
        found = {key: job.result() for key, job in waiting.items()}
    runs: dict[str, dict[str, Any]] = {t: {} for t in TERMS}
    for (terms, seed), scores in found.items():
        runs[terms][str(seed)] = scores
    given = " ".join(map(str, seeds))
    return {
        "command": "python benchmarks/guided_diffusion.py FOLDER "
        f"--updates {updates} --seeds {given}",
        "commit": git_state().get("commit", "")[:10], "updates": updates, "data": data,
        "weight": WEIGHT,
        "hardware": f"{hardware()['cpu']}, {hardware()['cpus']} cores", "runs": runs,
    }  # fmt: skip


def cell(values: list[float]) -> str:
    return f"{np.mean(values):.0f} ({', '.join(f'{v:.0f}' for v in values)})"


def page(r: dict[str, Any]) -> str:
    """Return the results as a page."""
    runs = r["runs"]
    lines = [
        "# Diffusion-policy RL: what each switch gives", "",
        f"`{r['command']} --record` at {r['commit']}, {r['hardware']}. Pendulum, "
        f"{2 * offline.EPISODES * 200:,} frames of `dreamlab data record` (a SAC that explores, "
        f"{r['data']['play']:.0f} an episode, and as much random play, {r['data']['chance']:.0f}), "
        f"{r['updates']:,} updates, nothing online; mean return over seeds (each seed), 20 "
        "episodes.", "",
        f"| RIC's terms in the loss, weight {r['weight']:g} | return |", "|---|---|",
        *(f"| {t} | {cell([s['return'] for s in runs[t].values()])} |" for t in TERMS), "",
        "| best of so many samples, by IQL's critics | return |", "|---|---|",
        *(f"| {n} | {cell([s['ranked'][str(n)] for s in runs['none'].values()])} |"
          for n in RANKED), "",
        "| guidance_scale | by IQL's critics | by RIC's model, both terms on |", "|---|---|---|",
    ]  # fmt: skip
    for scale in SCALES:
        cells = [cell([s["guided"][str(scale)] for s in runs[t].values()]) for t in GUIDED]
        lines.append(f"| {scale:g} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", "![guidance](guided_diffusion.png)", ""])


def draw(r: dict[str, Any], path: Path) -> None:
    """Draw returns against the scale of guidance."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6, 4), dpi=120)
    for terms, name in zip(GUIDED, ("IQL's critics", "RIC's model"), strict=True):
        lines = np.array([[s["guided"][str(k)] for k in SCALES] for s in r["runs"][terms].values()])
        (drawn,) = axis.plot(range(len(SCALES)), lines.mean(0), lw=2, label=f"guided by {name}")
        for line in lines:
            axis.plot(range(len(SCALES)), line, lw=0.8, alpha=0.5, color=drawn.get_color())
    axis.set_xticks(range(len(SCALES)), [f"{s:g}" for s in SCALES])
    axis.set(xlabel="guidance_scale", ylabel="return", title="Pendulum, learnt from data alone")
    axis.grid(alpha=0.3)
    axis.legend()
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[4, 5, 6])
    parser.add_argument("--updates", type=int, default=8_000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--record", action="store_true")
    given = parser.parse_args()
    result = record(given.folder, given.seeds, given.updates, given.jobs)
    name = "guided_diffusion"
    (given.folder / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    (given.folder / f"{name}.md").write_text(page(result))
    draw(result, given.folder / f"{name}.png")
    if given.record:
        for kind in ("json", "md", "png"):
            shutil.copy(given.folder / f"{name}.{kind}", RESULTS)
    print(page(result))


if __name__ == "__main__":
    main()
