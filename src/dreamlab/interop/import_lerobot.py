"""From a checkpoint of LeRobot's diffusion policy to a run of ours: read, checked, set up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dreamlab.config import LabConfig, load_config
from dreamlab.core.errors import ConfigError
from dreamlab.core.types import Spec
from dreamlab.core.workflow import Workflow
from dreamlab.envs.vector import make_env, spec_of
from dreamlab.interop import lerobot
from dreamlab.interop.import_run import composed, odd_shapes
from dreamlab.interop.lerobot import Checkpoint
from dreamlab.workflows.imitation import Imitation

TARGET = f"{Imitation.__module__}.{Imitation.__name__}"
# An imported policy is measured; to continue learning, name a dataset and a phase.
DEFAULTS: dict[str, Any] = {
    "name": "lerobot_import",
    "training": {
        "phases": [
            {
                "name": "measure",
                "type": "eval_only",
                "duration_cycles": 1,
                "workflow_hooks": ["evaluate"],
            }
        ]
    },
}


def read_weights(path: Path) -> Checkpoint:
    """Return a checkpoint; nothing in its files is executed."""
    with odd_shapes():
        return lerobot.read_checkpoint(path)


def config_for(weights: Checkpoint, overrides: Sequence[str]) -> LabConfig:
    """Return the configuration of these overrides, with the policy that the weights have."""
    node, given = composed(overrides, TARGET, DEFAULTS)
    with odd_shapes():
        policy = lerobot.policy_options(weights)
    env = {**node.get("env", {}), "scale_actions": False}  # it acts in the units of its data
    return load_config(
        {**node, "env": env, "workflow": {**given, "_target_": TARGET, "policy": policy}}
    )


def check_fit(weights: Checkpoint, config: LabConfig) -> None:
    """Raise one error that names everything in which environment and weights differ."""
    env = make_env(config.env, 0, 0)
    spec = spec_of(env)
    env.close()
    if found := misfits(weights.spec(), spec):
        raise ConfigError(
            f"import: the weights do not fit the environment {config.env.id!r}:\n  "
            + "\n  ".join(found)
        )


def misfits(theirs: Spec, ours: Spec) -> list[str]:
    """Return in what weights and environment differ."""
    a, b = ({**{f"observation {k!r}": s.shape for k, s in x.obs.items()}, "action": x.action.shape}
            for x in (theirs, ours))  # fmt: skip
    return [
        f"{k}: the weights have {a.get(k, 'none')}, the environment {b.get(k, 'none')}"
        for k in sorted(a.keys() | b.keys())
        if a.get(k) != b.get(k)
    ]


def fill(agent: Workflow[Any], weights: Checkpoint) -> bool:
    """Copy weights; return whether the optimizer's moments were with them: they never are."""
    assert isinstance(agent, Imitation), type(agent)
    with odd_shapes():
        lerobot.load_weights(agent.policy, lerobot.converted(weights))
    return False
