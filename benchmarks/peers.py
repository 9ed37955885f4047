"""One measurement of a peer, run by vs_peers.py with the Python that has the peer installed.

    PYTHON benchmarks/peers.py sb3|sbx ppo|dqn|sac THREADS

Prints JSON: env steps per second, and the seconds before that (warm-up, compiling included). Needs
nothing of ours.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from importlib.metadata import version
from typing import Any

FRAMES = {"ppo": 30_000, "dqn": 12_000, "sac": 1_500}
WARM_UP = {"ppo": 2_560, "dqn": 3_000, "sac": 600}
PACKAGES = {"sb3": "stable_baselines3", "sbx": "sbx"}
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

# hyperparameters of rl-baselines3-zoo for each task: what the peers' own users run
OPTIONS: dict[str, dict[str, Any]] = {
    "ppo": {
        "n_steps": 32, "batch_size": 256, "n_epochs": 20, "gamma": 0.98, "gae_lambda": 0.8,
        "ent_coef": 0.0, "learning_rate": lambda left: left * 1e-3,
        "clip_range": lambda left: left * 0.2,
    },
    "dqn": {
        "learning_rate": 2.3e-3, "batch_size": 64, "buffer_size": 100_000,
        "learning_starts": 1_000, "gamma": 0.99, "target_update_interval": 10, "train_freq": 256,
        "gradient_steps": 128, "exploration_fraction": 0.16, "exploration_final_eps": 0.04,
        "policy_kwargs": {"net_arch": [256, 256]},
    },
    "sac": {"learning_rate": 1e-3},
}  # fmt: skip


def make(system: str, name: str) -> Any:
    """Return a peer's agent with its environment."""
    from stable_baselines3.common.env_util import make_vec_env

    cls = getattr(importlib.import_module(PACKAGES[system]), name.upper())
    env = make_vec_env("CartPole-v1", n_envs=8, seed=1) if name == "ppo" else None
    env = env or {"dqn": "CartPole-v1", "sac": "Pendulum-v1"}[name]
    where = {"device": "cpu"} if system == "sb3" else {}
    return cls("MlpPolicy", env, seed=1, **OPTIONS[name], **where)


def measure(system: str, name: str, threads: int) -> dict[str, float]:
    """Train a little, then train by the clock."""
    began = time.perf_counter()
    if system == "sbx" and threads == 1:
        os.environ["XLA_FLAGS"] = ONE_THREAD
    import torch

    torch.set_num_threads(threads)
    model = make(system, name)
    model.learn(WARM_UP[name])
    ready = time.perf_counter()
    model.learn(FRAMES[name], reset_num_timesteps=False)
    seconds = time.perf_counter() - ready
    return {"speed": FRAMES[name] / seconds, "warm_up_s": ready - began}


def versions() -> dict[str, str]:
    """Return what is installed."""
    return {p: version(p) for p in ("stable-baselines3", "sbx-rl", "jax", "torch", "gymnasium")}


if __name__ == "__main__":
    asked = sys.argv[1:]
    result = versions() if asked == ["versions"] else measure(asked[0], asked[1], int(asked[2]))
    print(json.dumps(result))
