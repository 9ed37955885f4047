"""Write the README's table of algorithms from the recorded results in `benchmarks/results`.

python scripts/results_table.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- results: scripts/results_table.py -->", "<!-- /results -->"
HEAD = """\
| algorithm | task | env frames | seeds | return: mean (lowest to highest) |
|---|---|---|---|---|
"""
# experiment: algorithm, its page, task
RECORDED = {
    "dreamer_cartpole": ("DreamerV3", "dreamer_v3", "CartPole-v1"),
    "dreamer_pixels": ("DreamerV3", "dreamer_v3", "a small image task; about 12 is perfect"),
    "dreamer_v3_cartpole_swingup": ("DreamerV3", "dreamer_v3", "cartpole_swingup (Control Suite)"),
    "dreamer_v2_cartpole_swingup": ("DreamerV2", "dreamer_v2", "cartpole_swingup (Control Suite)"),
    "dreamer_v1_cartpole_swingup": ("DreamerV1", "dreamer_v1", "cartpole_swingup (Control Suite)"),
    "planet_cartpole_swingup": ("PlaNet", "planet", "cartpole_swingup (Control Suite)"),
    "mpc_pendulum": ("MPC (PETS)", "mpc", "Pendulum-v1"),
    "mpc_tdmpc2_pendulum": ("MPC (TD-MPC2's latents)", "mpc", "Pendulum-v1"),
    "world_models_cartpole_iterative": ("World Models", "world_models", "CartPole-v1"),
    "world_models_carracing_cpu": ("World Models", "world_models", "CarRacing-v3; paper: 906"),
    "ppo_cartpole": ("PPO", "ppo", "CartPole-v1"),
    "ppo_acrobot": ("PPO", "ppo", "Acrobot-v1"),
    "ppo_lunarlander": ("PPO", "ppo", "LunarLander-v3"),
    "dqn_cartpole": ("DQN", "dqn", "CartPole-v1"),
    "sac_pendulum": ("SAC", "sac", "Pendulum-v1"),
    "sac_halfcheetah": ("SAC", "sac", "HalfCheetah-v5"),
}
# of benchmarks/world_models.py: controllers that only dreamt
DREAMT = {
    "world_models": "CartPole-v1, evolved in dreams alone",
    "world_models_pixels": "a small image task, evolved in dreams alone; about 12 is perfect",
}
PLANNED = {"TD-MPC2": "tdmpc2", "TD-M(PC)²": "tdmpc_square", "TD-MPC": "tdmpc"}
TASKS = {
    "pendulum": "Pendulum-v1",
    "cartpole_swingup": "cartpole_swingup (Control Suite)",
    "walker_walk": "walker_walk (Control Suite)",
}
ON_A_GPU = {"dreamer_v3": ("DreamerV3", "dreamer_v3"), "tdmpc2": ("TD-MPC2", "tdmpc2")}


def row(algorithm: str, page: str, task: str, frames: int, scores: list[float]) -> str:
    """Return a line of the table."""
    mean = f"{sum(scores) / len(scores):,.1f}"
    spread = f" ({min(scores):,.1f} to {max(scores):,.1f})" if len(scores) > 1 else ""
    cells = [f"[{algorithm}](docs/algorithms/{page}.md)", task, f"{frames:,}", str(len(scores))]
    return f"| {' | '.join(cells)} | {mean}{spread} |\n"


def evaluated_at(curve: list[dict[str, Any]]) -> int:
    """Return the env frames of the last evaluation: training may have gone on after it."""
    return [r["env_frames"] for r in curve if "eval/return" in r][-1]


def table() -> str:
    """Return the table: final evaluations of finished runs, and what was measured on a GPU."""
    lines: list[str] = []
    for name, about in RECORDED.items():
        runs: list[dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text())["runs"]
        frames = max(evaluated_at(r["curve"]) for r in runs)
        lines.append(row(*about, frames, [r["final"]["eval/return"] for r in runs]))
    for name, task in DREAMT.items():
        found = json.loads((RESULTS / f"{name}.json").read_text())
        scores = [r["real"]["return"] for r in found["seeds"].values()]
        lines.append(row("World Models", "world_models", task, int(found["frames"]), scores))
    planned: dict[str, Any] = json.loads((RESULTS / "planning.json").read_text())
    for task, named in planned.items():
        for name, page in PLANNED.items():
            if not (ends := [r["points"][-1] for r in named.get(name, [])]):
                continue
            scores = [e["eval/return"] for e in ends]
            lines.append(row(name, page, TASKS[task], max(e["env_frames"] for e in ends), scores))
    for found in json.loads((RESULTS / "gpu_learning.json").read_text())["table"]:
        if found["name"] in ON_A_GPU:
            task = f"{found['task']} (Control Suite)"
            if found["inside"] == "below":
                task += f"; published: {found['mean']:.0f} ± {found['std']:.0f}"
            scores = list(found["scores"].values())
            lines.append(row(*ON_A_GPU[found["name"]], task, found["frames"], scores))
    return HEAD + "".join(lines)


def placed(text: str) -> str:
    """Return the README with the table as it is now."""
    return re.sub(f"{BEGIN}.*?{END}", f"{BEGIN}\n{table()}{END}", text, flags=re.DOTALL)


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(placed(readme.read_text()))
