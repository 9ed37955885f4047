"""The numbers that TD-MPC2, TD-M(PC)^2, TD-MPC and World Models were published with.

Every value is written out once more, so that a default that changes by accident, or an experiment
that changes one, fails here. Sections are those of the specification of control algorithms, which
has the values from the papers' code.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from tests.helpers import config_of

from dreamlab.components.tdmpc2_options import TDMPC2Config
from dreamlab.core.config import Part
from dreamlab.workflows.tdmpc import TDMPCConfig
from dreamlab.workflows.tdmpc_square import TDMPCSquareConfig
from dreamlab.workflows.world_models import WorldModelsConfig

# section 1.14; the widths of 5M in 1.3, optimizers in 1.6, the search in 1.7
TDMPC2: dict[str, Any] = {
    "size": "5m", "enc_layers": 2, "enc_dim": 256, "mlp_dim": 512, "latent_dim": 512,
    "channels": 32, "num_q": 5, "dropout": 0.01, "simnorm_dim": 8, "task_dim": 96,
    "bins/num": 101, "bins/low": -10.0, "bins/high": 10.0,
    "rho": 0.5, "tau": 0.01, "entropy": 1e-4, "scale_rate": 0.01, "log_std": (-10.0, 2.0),
    "scales/consistency": 20.0, "scales/reward": 0.1, "scales/value": 0.1,
    "scales/termination": 1.0, "episodic": False,
    "gamma": None, "discount/denom": 5.0, "discount/low": 0.95, "discount/high": 0.995,
    "optimizer/lr": 3e-4, "optimizer/clip": 20.0, "optimizer/eps": 1e-8,
    "optimizer/betas": (0.9, 0.999), "optimizer/groups/model.encoder/lr_scale": 0.3,
    "optimizer/warmup_steps": 0, "optimizer/agc": 0.0, "optimizer/ema": 0.0,
    "policy_optimizer/lr": 3e-4, "policy_optimizer/clip": 20.0, "policy_optimizer/eps": 1e-5,
    "policy_optimizer/betas": (0.9, 0.999), "policy_optimizer/groups": {},
    "mpc": True, "num_pi_plans": 24, "more_iterations": 2,
    "planner/horizon": 3, "planner/iterations": 6, "planner/samples": 512, "planner/elites": 64,
    "planner/temperature": 0.5, "planner/std": 2.0, "planner/min_std": 0.05,
    "planner/max_std": 2.0,
}  # fmt: skip

# section 2.3: beta, A / 61 of the code, the gate of S, the bound of std
SQUARE = {
    **TDMPC2, "prior_coef": 1.0, "prior_scale": "a_over_61", "prior_gate": 2.0,
    "prior_min_std": 0.05,
}  # fmt: skip

# section 2.6, left column; elites, iterations and temperature are those of 1.7
TDMPC: dict[str, Any] = {
    "latent_dim": 50, "mlp_dim": 512, "enc_dim": 256, "rho": 0.5, "gamma": 0.99,
    "scales/consistency": 2.0, "scales/reward": 0.5, "scales/value": 0.1,
    "tau": 0.01, "target_every": 2, "noise_clip": 0.3,
    "first_std": 0.5, "planner/min_std": 0.05, "anneal_updates": 25_000, "momentum": 0.1,
    "planner/horizon": 5, "planner/samples": 512 + 25, "num_pi_plans": 25,
    "planner/iterations": 6, "planner/elites": 64, "planner/temperature": 0.5,
    "planner/std": 2.0, "planner/max_std": 2.0, "mpc": True,
    "optimizer/lr": 1e-3, "optimizer/clip": 10.0,
    "policy_optimizer/lr": 1e-3, "policy_optimizer/clip": 10.0,
}  # fmt: skip

# sections 8.1 to 8.4 (CarRacing), the temperature of 8.6
WORLD_MODELS: dict[str, Any] = {
    "vae/latent": 32, "vae/channels": (32, 64, 128, 256), "vae/kernels": (5, 5, 6, 6),
    "vae/kl_scale": 1.0, "vae/free_nats": 0.5,
    "vae_optimizer/lr": 1e-4, "vae_optimizer/clip": 0.0,
    "mdn/hidden": 256, "mdn/mixtures": 5, "mdn/done_weight": 10.0,
    "mdn_optimizer/lr": 1e-3, "mdn_optimizer/clip": 0.0, "clip_value": 1.0,
    "controller/cell": False, "controller/rollouts": 16,
    "evolution/population": 64, "evolution/sigma": 0.1, "dream/temperature": 1.15,
}  # fmt: skip
ADAM = {
    "TD-MPC2": ("optimizer", "policy_optimizer"), "TD-M(PC)^2": ("optimizer", "policy_optimizer"),
    "TD-MPC": ("optimizer", "policy_optimizer"), "World Models": ("vae_optimizer", "mdn_optimizer"),
}  # fmt: skip
DEFAULTS = {
    "TD-MPC2": (TDMPC2Config, TDMPC2), "TD-M(PC)^2": (TDMPCSquareConfig, SQUARE),
    "TD-MPC": (TDMPCConfig, TDMPC), "World Models": (WorldModelsConfig, WORLD_MODELS),
}  # fmt: skip


def options_of(table: dict[str, Any]) -> dict[str, Any]:
    """Return a table of a workflow's options with their places in an experiment."""
    return {f"workflow/{k}": v for k, v in table.items()}


def seeded(frames: int, repeat: int) -> dict[str, Any]:
    """Return how TD-MPC2 is fed, by 1.8: batches of 256 slices of H + 1 steps, UTD 1.

    Five episodes of 500 decisions are seeds (at least 1,000), then as many updates follow.
    """
    return {
        "env/repeat": repeat, "eval/episodes": 10,
        "buffers/replay/batch": 256, "buffers/replay/length": 4,
        "buffers/replay/capacity": 1_000_000, "buffers/replay/windows": "inside",
        "training/phases/0/duration_steps": max(1_000, 5 * 500) * repeat,
        "training/phases/0/random_actions": True,
        "training/phases/1/duration_updates": max(1_000, 5 * 500),
        "training/phases/2/duration_steps": frames - 5_000,
        "training/phases/2/train_ratio": 256.0 * 4,
    }  # fmt: skip


EXPERIMENTS: dict[str, dict[str, Any]] = {
    "tdmpc2_dmc_proprio": {**options_of(TDMPC2), **seeded(1_000_000, 2)},
    "tdmpc_square_dmc_proprio": {**options_of(SQUARE), **seeded(1_000_000, 2)},
    # 1.3: three stacked frames; 1.8: the capacity is that of all decisions if these are fewer
    "tdmpc2_dmc_vision": {
        **options_of(TDMPC2), **seeded(1_000_000, 2), "buffers/replay/capacity": 500_000,
        "env/frame_stack": 3,
    },
    "tdmpc2_multitask": options_of(TDMPC2),
    # 2.6: PER of 0.6 and 0.4 that stays; a CPU's widths and searches are its own
    "tdmpc_pendulum": {
        "buffers/replay/length": 5 + 1, "buffers/replay/windows": "inside",
        "buffers/replay/sampler/exponent": 0.6, "buffers/replay/sampler/beta": 0.4,
        "buffers/replay/sampler/beta_final": 0.4,
        **{k: v for k, v in options_of(TDMPC).items() if k.split("/")[1] in (
            "rho", "gamma", "scales", "tau", "target_every", "noise_clip", "first_std", "momentum",
            "optimizer", "policy_optimizer")},
        "workflow/planner/horizon": 5, "workflow/planner/min_std": 0.05,
    },
    # 8.2: M is a memory only; 8.4: 64 candidates by 16 rollouts of 1,000 steps
    "world_models_carracing": {
        **options_of(WORLD_MODELS), "workflow/mdn/reward": False, "workflow/mdn/done": False,
        "env/size": (64, 64),
    },
}  # fmt: skip


def at(config: Any, path: str) -> Any:
    """Return what a path of names, keys and indices leads to; parts are looked through."""
    for name in path.split("/"):
        inner = config.config if isinstance(config, Part) else config
        if isinstance(inner, dict):
            config = inner[name]
        else:
            config = inner[int(name)] if isinstance(inner, tuple) else getattr(inner, name)
    return config


@pytest.mark.parametrize(
    ("name", "path", "value"), [(k, p, v) for k, (_, t) in DEFAULTS.items() for p, v in t.items()]
)
def test_a_default_is_the_published_one(name, path, value):
    assert at(DEFAULTS[name][0](), path) == value


@pytest.mark.parametrize("name", DEFAULTS)
def test_the_optimizers_are_adam(name):
    config = DEFAULTS[name][0]()
    assert [getattr(config, k).target for k in ADAM[name]] == ["adam", "adam"]


composed = cache(lambda name: config_of(f"+experiment={name}"))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_keeps_the_published_numbers(name):
    found = {path: at(composed(name), path) for path in EXPERIMENTS[name]}
    assert found == EXPERIMENTS[name]
