"""From a released checkpoint of TD-MPC2 to a run of ours: read safely, checked, set up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dreamlab.components.world_models.codec import width
from dreamlab.components.world_models.latent_mlp import TASK
from dreamlab.config import LabConfig, load_config
from dreamlab.core.config import convert
from dreamlab.core.errors import ConfigError, LabError
from dreamlab.core.types import Array, Spec
from dreamlab.core.workflow import Workflow
from dreamlab.envs.vector import make_env, spec_of
from dreamlab.interop import tdmpc2
from dreamlab.interop.import_run import composed, odd_shapes
from dreamlab.interop.parity_tdmpc2 import read_checkpoint
from dreamlab.interop.tdmpc2 import Weights
from dreamlab.workflows.tdmpc2 import TDMPC2

TARGET = f"{TDMPC2.__module__}.{TDMPC2.__name__}"
# What a run needs to continue learning, unless an experiment says otherwise.
DEFAULTS: dict[str, Any] = {
    "name": "tdmpc2_import",
    "buffers": {"replay": {"batch": 256, "length": 4, "windows": "inside", "min_steps": 1_000}},
    "training": {
        "phases": [
            {
                "name": "learn",
                "duration_steps": 1_000_000,
                "train_ratio": 1024,
                "workflow_hooks": ["collect", "update_agent"],
            }
        ]
    },
}


def read_weights(path: Path) -> dict[str, Array]:
    """Return the weights of a checkpoint; nothing in the file is executed."""
    if not path.is_file():
        raise LabError(f"import: {path} is not a file: expected a .pt checkpoint")
    return read_checkpoint(path)


def config_for(weights: Weights, overrides: Sequence[str]) -> LabConfig:
    """Return the configuration of these overrides, with the network that the weights have."""
    node, given = composed(overrides, TARGET, DEFAULTS)
    with odd_shapes():
        sizes = tdmpc2.sizes_of(weights)
    sizes["bins"] = {
        **convert(given.get("bins", {}), dict[str, Any], "workflow.bins"),
        **sizes["bins"],
    }
    config = load_config({**node, "workflow": {**given, "_target_": TARGET, **sizes}})
    order = given.get("obs_order") or obs_order(config)
    workflow = {**given, "_target_": TARGET, **sizes, "obs_order": order}
    return load_config({**node, "workflow": workflow})


def obs_order(config: LabConfig) -> list[str]:
    """Return the order in which the environment itself lists its observations, if it has one.

    The original reads them in that order, we in that of the alphabet.
    """
    env = make_env(config.env, 0, 0)
    try:
        return list(getattr(env.unwrapped, "obs_order", ()))
    finally:
        env.close()


def check_fit(weights: Weights, config: LabConfig) -> None:
    """Raise one error that names everything in which environment and weights differ."""
    env = make_env(config.env, 0, 0)
    spec = spec_of(env)
    env.close()
    with odd_shapes():
        found = misfits(weights, spec)
    if found:
        raise ConfigError(
            f"import: the weights do not fit the environment {config.env.id!r}:\n  "
            + "\n  ".join(found)
        )
    with odd_shapes(), torch.device("meta"):  # shapes are checked before there is room for them
        tdmpc2.check_weights(config.workflow.build(spec), weights)


def misfits(weights: Weights, spec: Spec) -> list[str]:
    """Return in what weights and environment differ."""
    tasks = weights["_task_emb.weight"].shape[0] if "_task_emb.weight" in weights else 0
    seen = {k: s for k, s in spec.obs.items() if not spec.tasks or k != TASK}
    channels = [s.shape[2] for s in seen.values() if s.is_image]
    conv = weights.get(f"_encoder.rgb.{tdmpc2.FIRST_CONV}.weight")
    pairs: dict[str, tuple[Any, Any]] = {
        "actions": (tdmpc2.action_dim(weights), spec.action.size),
        "tasks": (tasks, len(spec.tasks)),
        "observation dimensions": (
            tdmpc2.obs_dim(weights) or 0, sum(width(s) for s in seen.values() if not s.is_image)
        ),
        "image channels": (0 if conv is None else conv.shape[1], sum(channels)),
    }  # fmt: skip
    if dims := tdmpc2.action_dims(weights):
        pairs["entries of actions by task"] = (dims, [t.action_dim for t in spec.tasks])
    return [
        f"{name}: the weights have {theirs}, the environment {ours}"
        for name, (theirs, ours) in pairs.items()
        if theirs != ours
    ]


def fill(agent: Workflow[Any], weights: Weights) -> bool:
    """Copy weights; return whether the optimizer's moments were with them: they never are."""
    assert isinstance(agent, TDMPC2), type(agent)
    with odd_shapes():
        tdmpc2.load_weights(agent, weights)
    return False
