"""Brings configurations of older schemas into today's form.

Nothing is imported for it: a configuration may be untrusted and not checked yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dreamlab.core.errors import ConfigError
from dreamlab.core.limits import shown

SCHEMA = 3
Node = dict[str, Any]


def migrate(node: Node) -> Node:
    """Return a configuration of an older schema in today's form, or say why it cannot be read."""
    version = node.get("schema", SCHEMA)
    if isinstance(version, bool) or not isinstance(version, int):
        raise ConfigError(f"schema: expected int, got {shown(version)}")
    if not 0 <= version <= SCHEMA:
        raise ConfigError(
            f"schema: this configuration has version {version}, but this dreamlab reads up to "
            f"{SCHEMA}; use the newer dreamlab that wrote it"
        )
    node = dict(node)
    for step in range(version, SCHEMA):
        node = MIGRATIONS[step](node)
    node["schema"] = SCHEMA
    return node


def mapping(node: Any, where: str) -> Mapping[str, Any]:
    """Return a section that must be a mapping."""
    if not isinstance(node, Mapping):
        raise ConfigError(f"{where}: expected a mapping, got {shown(node)}")
    return node


# -- before 0.1 -----------------------------------------------------------------------------------


def _from_schema_0(node: Node) -> Node:
    """Before 0.1: `experiment: {name, seed}`, `training.total_timesteps`, `replay_ratio`."""
    out = {k: v for k, v in node.items() if k != "experiment"}
    old = mapping(node.get("experiment", {}), "experiment")
    out |= {k: v for k, v in old.items() if k in ("name", "seed", "device")}
    training = dict(mapping(out.get("training", {}), "training"))
    if "total_timesteps" in training:
        training["total_frames"] = training.pop("total_timesteps")
    renamed = {"replay_ratio": "train_ratio"}
    phases = training.get("phases", [])
    if not isinstance(phases, list):
        raise ConfigError(f"training.phases: expected a list, got {shown(phases)}")
    training["phases"] = [
        {renamed.get(k, k): v for k, v in mapping(p, f"training.phases[{i}]").items()}
        for i, p in enumerate(phases)
    ]
    return {**out, "training": training}


# -- options of optimizers and of parts were the workflow's ---------------------------------------


def _from_schema_1(node: Node) -> Node:
    """Move what workflows said of optimizers and parts; what was `tiny` was shrunk when saved."""
    out = {**node, "shrunk": True} if node.get("tiny") else dict(node)
    workflow = node.get("workflow")
    if isinstance(workflow, Mapping):
        out["workflow"] = _moved(dict(workflow))
    return out


def _moved(workflow: Node) -> Node:
    """Return a workflow's options, recognized by those it has: a saved run has every one."""
    for marks, change in _WORKFLOWS_1:
        if set(marks) <= workflow.keys():
            return change(workflow)
    return workflow


def _ppo(w: Node) -> Node:
    schedule = "linear" if w.pop("anneal_lr") else "constant"
    w["returns"] = {"_target_": "gae", "lam": w.pop("lam")}
    return _with_adam(w, schedule=schedule)


def _dqn(w: Node) -> Node:
    w["target_every_gradient_steps"] = w.pop("target_every")
    return _with_adam(w)


def _with_adam(w: Node, **more: Any) -> Node:
    lr, eps, clip = (w.pop(k) for k in ("lr", "adam_eps", "max_grad_norm"))
    return {**w, "optimizer": {"_target_": "adam", "lr": lr, "eps": eps, "clip": clip, **more}}


def _sac(w: Node) -> Node:
    rates = {"optimizer": w.pop("lr")}
    rates |= {"actor_optimizer": w.pop("actor_lr"), "alpha_optimizer": w.pop("alpha_lr")}
    w["actor"] = {k: w.pop(k) for k in ("hidden", "act")}
    w["critic"] = {"num_critics": w.pop("num_critics"), **w["actor"]}
    return w | {k: None if v is None else {"_target_": "adam", "lr": v} for k, v in rates.items()}


def _planet(w: Node) -> Node:
    options = {k: w.pop(k) for k in ("lr", "eps", "clip")}
    w["optimizer"] = {"_target_": "adam", **options}
    units, layers = w.pop("units"), w.pop("vector_layers")
    w["reward"] = {"units": units, "layers": w.pop("reward_layers")}
    return _with_model(w, units, layers)


def _dreamer_v1(w: Node) -> Node:
    common: Node = {"_target_": "adam", "eps": w.pop("eps"), "clip": w.pop("clip")}
    if "decay" in w:  # of DreamerV2
        common["_target_"] = "adamw"
        common |= {"weight_decay": w.pop("decay"), "decay_follows_lr": False}
    names = ("model", "actor", "critic")
    w |= {f"{k}_optimizer": {**common, "lr": w.pop(f"{k}_lr")} for k in names}
    w["returns"] = {"_target_": "lambda_return", "lam": w.pop("lam")}
    units = w.pop("units")
    if "layers" in w:  # of DreamerV2
        layers = vector = w.pop("layers")
        heads = dict.fromkeys(("reward", "cont", "actor", "critic"), layers)
    else:
        vector = w.pop("vector_layers")
        heads = {k: w.pop(f"{k}_layers") for k in ("reward", "cont", "actor")}
        heads["critic"] = w.pop("value_layers")
    w |= {k: {"units": units, "layers": n} for k, n in heads.items()}
    if "init_std" in w:  # of DreamerV1
        w["actor"] |= {k: w.pop(k) for k in ("init_std", "mode_samples")}
    return _with_model(w, units, vector)


def _with_model(w: Node, units: Any, layers: Any) -> Node:
    """Return the options with those of the RSSM and of the codec each in their own."""
    take = lambda *names: {k: w.pop(k) for k in names if k in w}  # noqa: E731
    codec = take("depth", "bits", "symlog") | {"units": units, "layers": layers}
    rssm = take("deter", "hidden", "stoch", "classes")
    return {**w, "rssm": rssm, "codec": codec}


def _dreamer_v3(w: Node) -> Node:
    kind, lr, agc, warmup = (w.pop(k) for k in ("optimizer", "lr", "agc", "warmup"))
    name = w.pop("schedule")
    schedule = "constant" if name == "const" else {"_target_": name, "final": 0.1}
    laprop = {"_target_": "laprop", "lr": lr, "eps": 1e-20, "agc": agc, "warmup_steps": warmup}
    laprop |= {"schedule": schedule}

    def adam(lr: Any, eps: float, clip: float) -> Node:
        return {"_target_": "adam", "lr": lr, "eps": eps, "clip": clip, "schedule": schedule}

    w["optimizer"] = laprop
    if kind == "adam":  # as in 2023
        w["optimizer"] = adam(lr, 1e-8, 1000.0)
        w |= {f"{k}_optimizer": adam(3e-5, 1e-5, 100.0) for k in ("actor", "critic")}
    if "ensemble_lr" in w:  # of Plan2Explore
        w["ensemble_optimizer"] = adam(w.pop("ensemble_lr"), 1e-5, 100.0)
        w["explorer_optimizer"] = laprop
        w["scales"] = {**mapping(w["scales"], "workflow.scales"), "repval": 0.0}
    if str(w.get("_target_")).endswith(".R2Dreamer"):  # its weight was a fraction of another
        scales = mapping(w["scales"], "workflow.scales")
        w["scales"] = {**scales, "redundancy": 0.05 * scales["rec"]}
    return _into_parts(w)


_CODEC, _HEADS = ("encoder", "decoder"), ("reward", "cont", "actor", "critic")
_PLACES = {
    **dict.fromkeys(("deter", "hidden", "stoch", "classes", "unimix", "free_nats"), ("rssm",)),
    **dict.fromkeys(("depth", "mults"), _CODEC),
    **dict.fromkeys(("num_bins", "bins"), ("reward", "critic")),
    "blocks": ("rssm", "decoder"),
    "layers": (*_CODEC, "actor", "critic"),
    "units": (*_CODEC, *_HEADS),
    "norm": ("rssm", *_CODEC, *_HEADS),
    "actor_unimix": ("actor",),
}
"""Former options of DreamerV3, and the components that have them now."""


_HIDDEN = {"1m": 64, "12m": 256, "25m": 384, "50m": 512, "100m": 768, "200m": 1024, "400m": 1536}
"""Width of each DreamerV3 size; the other sizes are multiples or fractions of it."""


def _into_parts(w: Node) -> Node:
    h = _HIDDEN.get(w["size"], 0)
    sizes = {"deter": 8 * h, "hidden": h, "classes": h // 16, "depth": h // 16, "units": h}
    if all(w[k] not in (None, n) for k, n in sizes.items()):
        w["size"] = None  # it had no effect
    for name, parts in _PLACES.items():
        value = w.pop(name)
        if value is not None:  # else it was that of the size, which says it still
            for part in parts:
                w.setdefault(part, {})[name.removeprefix("actor_")] = value
    return w


_WORKFLOWS_1 = (
    (("lr", "adam_eps", "max_grad_norm", "anneal_lr"), _ppo),
    (("lr", "adam_eps", "max_grad_norm", "target_every"), _dqn),
    (("lr", "actor_lr", "alpha_lr", "target_entropy"), _sac),
    (("lr", "eps", "clip", "planner", "reward_scale"), _planet),
    (("model_lr", "actor_lr", "critic_lr", "eps", "clip", "kl_scale"), _dreamer_v1),
    (("lr", "agc", "warmup", "schedule", "optimizer", "scales"), _dreamer_v3),
)

# -- what DQN predicts of returns was C51 or not ---------------------------------------------------


def _from_schema_2(node: Node) -> Node:
    """DQN's `c51` is one of several readouts."""
    workflow = node.get("workflow")
    if not isinstance(workflow, Mapping) or not {"c51", "dueling", "double"} <= workflow.keys():
        return node
    rest, c51 = dict(workflow), workflow["c51"]
    del rest["c51"]
    if c51 is not None:
        rest["readout"] = {"_target_": "c51", **mapping(c51, "workflow.c51")}
    return {**node, "workflow": rest}


MIGRATIONS = {0: _from_schema_0, 1: _from_schema_1, 2: _from_schema_2}

__all__ = ["SCHEMA", "mapping", "migrate"]
