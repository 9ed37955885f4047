"""Configurations of older schemas mean what they meant."""

from __future__ import annotations

from typing import Any

import pytest

from dreamlab.config import migrate
from dreamlab.core.config import dump, load
from dreamlab.core.locate import locate

LAPROP = {
    "lr": 4e-5, "agc": 0.3, "warmup": 1000, "schedule": "const", "optimizer": "laprop",
    "deter": None, "hidden": None, "classes": None, "depth": None, "units": None, "stoch": 32,
    "blocks": 8, "mults": [2, 3, 4, 4], "layers": 3, "num_bins": 255, "norm": "rms",
    "bins": "symexp", "unimix": 0.01, "actor_unimix": 0.0, "free_nats": 1.0,
}  # fmt: skip
PARTS_OF_V3 = ("rssm", "encoder", "decoder", "reward", "cont", "actor", "critic")
RATES = {"eps": 1e-7, "clip": 100.0, "model_lr": 6e-4, "actor_lr": 8e-5, "critic_lr": 8e-5}
V2 = {"eps": 1e-5, "decay": 1e-6, "model_lr": 2e-4, "actor_lr": 4e-5, "critic_lr": 1e-4}
ADAM_OF = {"lr": 3e-4, "max_grad_norm": 10.0, "adam_eps": 1e-8}
PLANET = {
    "deter": 200, "hidden": 200, "stoch": 30, "depth": 32, "vector_layers": 2, "symlog": False,
    "kl_scale": 1.0, "free_nats": 3.0, "noise": 0.3,
}  # fmt: skip
DREAMS = {"gamma": 0.99, "lam": 0.95, "imagine": 15, "imagine_last": 0, "units": 400}
FLAT: dict[str, dict[str, Any]] = {
    "planet.PlaNet": {
        **PLANET, "bits": 5, "units": 300, "reward_layers": 3, "reward_scale": 10.0,
        "planner": {"horizon": 12, "iterations": 10, "samples": 1000, "elites": 100, "std": 1.0},
    },
    "dreamer_v1.DreamerV1": {
        **PLANET, **DREAMS, "reward_layers": 2, "cont_layers": 3, "value_layers": 3,
        "actor_layers": 4, "cont_scale": 0.0, "init_std": 5.0, "mode_samples": 100,
    },
    "dreamer_v2.DreamerV2": {
        **DREAMS, "deter": 600, "hidden": 600, "stoch": 32, "classes": 32, "depth": 48, "layers": 4,
        "symlog": False, "squash_reward": False, "kl_scale": 0.1, "kl_balance": 0.8,
        "free_nats": 0.0, "cont_scale": 5.0, "gamma": 0.999, "actor_grad": "auto",
        "actor_mix": 0.1, "entropy": 1e-3, "slow_every": 100,
    },
}  # fmt: skip
"""Every option, as it was written then: none was nested."""
OF_PARTS: dict[str, dict[str, Any]] = {
    "ppo.PPO": {"lam": 0.95},
    "sac.SAC": {"hidden": [256, 256], "act": "relu", "num_critics": 2},
}
"""What has moved into a part's own options since."""
NEW = {"ppo.PPO": ("returns",), "sac.SAC": ("actor", "critic")}
OLD: dict[str, dict[str, Any]] = {
    "ppo.PPO": {"lr": 3e-4, "anneal_lr": True, "max_grad_norm": 0.5, "adam_eps": 1e-5},
    "dqn.DQN": {**ADAM_OF, "target_every": 1_000},
    "sac.SAC": {"lr": 3e-4, "actor_lr": None, "alpha_lr": None},
    "planet.PlaNet": {"lr": 1e-3, "eps": 1e-4, "clip": 1000.0},
    "dreamer_v1.DreamerV1": RATES,
    "dreamer_v2.DreamerV2": {**RATES, **V2},
    "dreamer_v3.DreamerV3": LAPROP,
    "r2_dreamer.R2Dreamer": LAPROP,
    "plan2explore.Plan2Explore": {**LAPROP, "ensemble_lr": 3e-4},
}
"""The defaults of schema 1 that are elsewhere now."""


def moved(name: str, **changes: Any) -> Any:
    """Return the config that a run of schema 1 with its defaults, but for changes, has today."""
    cls = locate(f"dreamlab.workflows.{name}", "workflow")
    plain = FLAT.get(name) or {k: v for k, v in dump(cls.Config()).items() if "optimizer" not in k}
    plain = {k: v for k, v in plain.items() if k not in NEW.get(name, ())} | OF_PARTS.get(name, {})
    plain.pop("target_every_gradient_steps", None)
    if OLD[name].items() >= LAPROP.items():
        plain = {k: v for k, v in plain.items() if k not in PARTS_OF_V3}
    if "scales" in plain:
        plain["scales"].pop("redundancy", None)
        plain["scales"]["repval"] = 0.3
    old = {"_target_": f"dreamlab.workflows.{name}", **plain, **OLD[name], **changes}
    node = migrate({"schema": 1, "workflow": old})["workflow"]
    return load(cls.Config, {k: v for k, v in node.items() if k != "_target_"}, "workflow")


@pytest.mark.parametrize("name", sorted(OLD))
def test_the_defaults_of_schema_1_are_those_of_today(name):
    found, today = dump(moved(name)), dump(type(moved(name))())
    if name == "plan2explore.Plan2Explore":  # written out: it is the one of everything
        assert found.pop("explorer_optimizer") == today["optimizer"]
        today.pop("explorer_optimizer")
    assert found == today


def test_what_was_chosen_in_schema_1_stays():
    ppo = dump(moved("ppo.PPO", lr=1e-2, anneal_lr=False))["optimizer"]
    assert (ppo["lr"], ppo["schedule"]) == (1e-2, {"_target_": "constant"})
    sac = dump(moved("sac.SAC", alpha_lr=1e-2))
    assert (sac["alpha_optimizer"]["lr"], sac["actor_optimizer"]) == (1e-2, None)
    fall = {"_target_": "linear", "final": 0.1, "steps": None}
    assert dump(moved("dreamer_v3.DreamerV3", schedule="linear"))["optimizer"]["schedule"] == fall
    form_of_2023 = dump(moved("dreamer_v3.DreamerV3", optimizer="adam", lr=1e-4))
    chosen = [form_of_2023[f"{k}optimizer"] for k in ("", "actor_", "critic_")]
    assert [(o["lr"], o["eps"], o["clip"]) for o in chosen] == [
        (1e-4, 1e-8, 1000.0), (3e-5, 1e-5, 100.0), (3e-5, 1e-5, 100.0),
    ]  # fmt: skip


def test_flat_sizes_of_schema_1_go_where_they_are_used_now():
    planet = dump(moved("planet.PlaNet", deter=7, units=9, bits=4, vector_layers=1))
    assert planet["rssm"] | {"deter": 7, "cell": "reset_before"} == planet["rssm"]
    assert planet["codec"] | {"units": 9, "bits": 4, "layers": 1, "act": "relu"} == planet["codec"]
    head = {"_target_": "normal", "norm": "none", "act": "relu"}
    assert planet["reward"] == {**head, "units": 9, "layers": 3}
    v1 = dump(moved("dreamer_v1.DreamerV1", value_layers=5, actor_layers=6, init_std=2.0, lam=0.5))
    assert (v1["critic"]["layers"], v1["actor"]["layers"], v1["actor"]["init_std"]) == (5, 6, 2.0)
    assert v1["returns"] == {"_target_": "lambda_return", "lam": 0.5}
    v2 = dump(moved("dreamer_v2.DreamerV2", layers=1, units=3, classes=0))
    heads = ("codec", "reward", "cont", "actor", "critic")
    assert {(v2[k]["units"], v2[k]["layers"]) for k in heads} == {(3, 1)}
    assert v2["rssm"]["classes"] == 0
    sac = dump(moved("sac.SAC", hidden=[3], act="elu", num_critics=5))
    assert sac["actor"] == {"hidden": [3], "act": "elu"}
    assert sac["critic"].items() >= {"num_critics": 5, "hidden": [3], "act": "elu"}.items()
    assert dump(moved("ppo.PPO", lam=0.5))["returns"] == {"_target_": "gae", "lam": 0.5}


def test_what_dreamer_v3_said_itself_is_said_to_its_parts():
    numbers = {"units": 64, "layers": 2, "num_bins": 63, "blocks": 4, "depth": 8, "mults": [2, 4]}
    switches = {"norm": "layer", "bins": "symlog", "actor_unimix": 0.01, "unimix": 0.02}
    found = dump(moved("dreamer_v3.DreamerV3", size="12m", **numbers, **switches))
    parts = {k: found[k] for k in PARTS_OF_V3}
    at = lambda key: {k: p[key] for k, p in parts.items() if key in p}  # noqa: E731
    assert at("norm") == dict.fromkeys(PARTS_OF_V3, "layer")
    assert at("units") == dict.fromkeys(PARTS_OF_V3[1:], 64)
    assert at("layers") == {
        "encoder": 2,
        "decoder": 2,
        "reward": 1,
        "cont": 1,
        "actor": 2,
        "critic": 2,
    }
    assert at("depth") == {"encoder": 8, "decoder": 8}
    assert at("mults") == {"encoder": [2, 4], "decoder": [2, 4]}
    assert at("blocks") == {"rssm": 4, "decoder": 4}
    assert at("num_bins") == {"reward": 63, "critic": 63}
    assert at("bins") == {"reward": "symlog", "critic": "symlog"}
    assert at("unimix") == {"rssm": 0.02, "actor": 0.01}
    assert at("deter") == {"rssm": 2048}  # of the size
    assert found["size"] == "12m"


def test_a_size_that_had_no_effect_is_not_said_again():
    given = {"deter": 128, "hidden": 32, "classes": 8, "depth": 8, "units": 32}
    assert dump(moved("dreamer_v3.DreamerV3", size="1m", **given))["size"] is None
    kept = dump(moved("dreamer_v3.DreamerV3", size="1m", **{**given, "units": 64}))
    assert (kept["size"], kept["rssm"]["deter"], kept["actor"]["units"]) == ("1m", 128, 64)


def test_the_workflow_of_somebody_else_is_left_alone():
    theirs = {"_target_": "their.Thing", "lr": 1e-3, "eps": 1e-4, "clip": 3.0, "optimizer": "own"}
    assert migrate({"schema": 1, "workflow": theirs})["workflow"] == theirs


def test_what_was_tiny_in_schema_1_is_not_shrunk_again():
    assert migrate({"schema": 1, "tiny": True})["shrunk"] is True
    assert "shrunk" not in migrate({"schema": 1, "tiny": False})
    assert "shrunk" not in migrate({"schema": 2, "tiny": True})


@pytest.mark.parametrize("schema", [1, 2])
def test_c51_is_a_readout(schema):
    options = {"double": True, "dueling": False, "c51": {"low": 0, "high": 100, "atoms": 21}}
    old = {"_target_": "dreamlab.workflows.dqn.DQN", **options}
    node = migrate({"schema": schema, "workflow": old})["workflow"]
    assert "c51" not in node
    assert node["readout"] == {"_target_": "c51", "low": 0, "high": 100, "atoms": 21}
    plain = migrate({"schema": schema, "workflow": {**old, "c51": None}})["workflow"]
    assert not {"c51", "readout"} & plain.keys()
    assert plain["double"] is True
