"""From a checkpoint of the official DreamerV3 to a run of ours: read safely, checked, set up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from dreamlab.components.world_models.codec import width
from dreamlab.components.world_models.rssm import RSSMConfig
from dreamlab.config import LabConfig, compose, load_config
from dreamlab.core.config import convert
from dreamlab.core.errors import CheckpointError, ConfigError, LabError
from dreamlab.core.limits import Width
from dreamlab.core.types import Array, ArraySpec, Spec
from dreamlab.core.workflow import Workflow
from dreamlab.envs.vector import make_env, spec_of
from dreamlab.interop import dreamerv3
from dreamlab.interop.array_files import read_arrays
from dreamlab.interop.dreamerv3 import Weights
from dreamlab.workflows.dreamer_v3 import DreamerV3

TARGET = f"{DreamerV3.__module__}.{DreamerV3.__name__}"
MOST_FOLDERS = 8
# What a run needs to continue learning, unless an experiment says otherwise.
DEFAULTS: dict[str, Any] = {
    "name": "dreamerv3_import",
    "buffers": {"replay": {"length": 65, "context": 1, "sampler": "online", "min_steps": 1_088}},
    "training": {
        "phases": [
            {
                "name": "learn",
                "duration_steps": 1_000_000,
                "train_ratio": 512,
                "workflow_hooks": ["collect", "update_agent"],
            }
        ]
    },
}

# -- reading --------------------------------------------------------------------------------------


def find_file(path: Path) -> Path:
    """Return the file with the weights: given itself, or in a checkpoint or log folder."""
    here = path
    for _ in range(MOST_FOLDERS):
        if here.is_file():
            return here
        step = _next(here)
        if step is None:
            break
        here = step
    raise LabError(f"import: {path} is neither an agent.pkl, an .npz, nor a folder with one")


def _next(folder: Path) -> Path | None:
    """Return where the weights of a folder are, or where to look for them."""
    names = ["agent.pkl", "weights.npz"]
    if (folder / "latest").is_file():
        names.append(Path((folder / "latest").read_text(errors="replace").strip()).name)
    names += ["ckpt", "agent"]
    return next((folder / n for n in names if n and (folder / n).exists()), None)


def read_weights(path: Path) -> dict[str, Array]:
    """Return every array of a checkpoint by its name; nothing in the file is executed."""
    try:
        file = find_file(path)
    except (OSError, ValueError) as error:
        raise LabError(f"import: {path} cannot be read: {error}") from None
    found = read_arrays(file)
    found = found.get("params", found) if isinstance(found, dict) else found
    if not isinstance(found, dict) or "dyn/dynin0/kernel" not in found:
        raise CheckpointError(f"import: {file} is not a checkpoint of the official DreamerV3")
    weights: dict[str, Array] = {}
    for name, value in found.items():
        if not isinstance(value, np.ndarray | np.generic | int | float):
            raise CheckpointError(f"import: {file}: {str(name)[:80]!r} is not a numeric array")
        weights[str(name)] = np.asarray(value)
    return weights


# -- fitting --------------------------------------------------------------------------------------


def composed(
    overrides: Sequence[str], target: str, usual: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the configuration of these overrides, over what is usual, and its workflow alone."""
    node = compose(overrides)
    if node.get("tiny"):
        raise ConfigError(
            "import: tiny=true cannot be used: it would change the size of the imported network"
        )
    given: dict[str, Any] = convert(node.get("workflow", {}), dict[str, Any], "workflow")
    if given.get("_target_", target) != target:
        raise ConfigError(f"import: the experiment must be one of {target}")
    if "_target_" not in given:  # no experiment was named
        merged: Any = OmegaConf.to_container(OmegaConf.merge(usual, node))
        node = merged
    return node, given


def config_for(weights: Weights, overrides: Sequence[str]) -> LabConfig:
    """Return the configuration of these overrides, with the network that the weights have."""
    node, given = composed(overrides, TARGET, DEFAULTS)
    with odd_shapes():
        latents = weights["dyn/dynin1/kernel"].shape[0]
    rssm = convert(given.get("rssm", {}), dict[str, Any], "workflow.rssm")
    stoch = convert(rssm.get("stoch", RSSMConfig.stoch), Width, "workflow.rssm.stoch")
    if latents % stoch:
        raise ConfigError(
            f"import: a latent size of {latents} is not divisible by {stoch}: set "
            f"workflow.rssm.stoch"
        )
    with odd_shapes():
        sizes = dreamerv3.sizes_of(weights, stoch)
    parts = {k: {**_part(given.get(k, {}), k), **v} for k, v in sizes.items()}
    return load_config({**node, "workflow": {**given, "_target_": TARGET, **parts}})


def _part(node: Any, name: str) -> dict[str, Any]:
    """Return the options that were given for a part, by its name or as they are."""
    if isinstance(node, str):
        return {"_target_": node}
    return convert(node, dict[str, Any], f"workflow.{name}")


@contextmanager
def odd_shapes() -> Iterator[None]:
    """Turn errors from untrusted arrays into one line: any shape under any name is possible."""
    try:
        yield
    except KeyError as error:
        raise CheckpointError(f"import: the checkpoint lacks {error}") from None
    except (IndexError, TypeError, ValueError, RuntimeError, ArithmeticError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"import: the checkpoint has unexpected shapes: {reason}") from error


def check_fit(weights: Weights, config: LabConfig) -> None:
    """Raise one error that names everything in which environment and weights differ."""
    env = make_env(config.env, 0, 0)
    spec = spec_of(env)
    env.close()
    with odd_shapes():
        found = [*_action_misfits(weights, spec), *_vector_misfits(weights, spec)]
        found += _image_misfits(weights, spec)
    if found:
        raise ConfigError(
            f"import: the weights do not fit the environment {config.env.id!r}:\n  "
            + "\n  ".join(found)
        )


def _action_misfits(weights: Weights, spec: Spec) -> list[str]:
    theirs, ours = dreamerv3.action_of(weights), spec.action
    a, b = _kind(theirs), _kind(ours)
    return [] if a == b else [f"action: the policy has {a}, the environment {b}"]


def _kind(action: ArraySpec) -> str:
    if action.classes is None:
        return f"{action.size} dimensions"
    return f"{action.classes} classes"


def _vector_misfits(weights: Weights, spec: Spec) -> list[str]:
    """Compare what the decoder predicts beside images with what the environment shows."""
    ours = {k: width(s) for k, s in spec.obs.items() if not s.is_image}
    heads = [k.split("/") for k in weights if k.startswith("dec/vec/") and k.endswith("/kernel")]
    theirs = {key[2]: weights["/".join(key)].shape[1] for key in heads}
    return [
        f"observation {k!r}: the weights have {theirs.get(k, 'none')}, "
        f"the environment {ours.get(k, 'none')}"
        for k in sorted(ours.keys() | theirs.keys())
        if ours.get(k) != theirs.get(k)
    ]


def _image_misfits(weights: Weights, spec: Spec) -> list[str]:
    images = [s.shape for s in spec.obs.values() if s.is_image]
    if "enc/cnn0/kernel" not in weights:
        return [f"images: the weights have none, the environment {images}"] if images else []
    channels = weights["enc/cnn0/kernel"].shape[2]
    layers = len([k for k in weights if k.startswith("enc/cnn") and k.endswith("/kernel")])
    cells = weights["dec/sp0/bias"].size // weights["dec/spnorm/scale"].size
    shown = sum(shape[2] for shape in images)
    pixels = cells * 4**layers
    if shown == channels and all(h * w == pixels for h, w, _ in images):
        return []
    return [
        f"images: the weights have {channels} channels of {pixels} pixels, the environment "
        f"{', '.join('x'.join(map(str, s)) for s in images) or 'none'} (see env.size, env.gray)"
    ]


def fill(agent: Workflow[Any], weights: Weights) -> bool:
    """Copy weights and, where present, the optimizer's moments; return whether they were."""
    assert isinstance(agent, DreamerV3), type(agent)
    with odd_shapes():
        dreamerv3.load_weights(agent, weights)
        return dreamerv3.load_optimizer(agent, weights)
