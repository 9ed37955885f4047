"""LeRobot's diffusion policy: its files, its options and its weights as ours.

Weights are in `model.safetensors`, options in `config.json`. Normalization is inside of the weights
(`normalize_inputs.buffer_*`, versions before 0.4) or in the files of a preprocessor beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dreamlab.core.errors import CheckpointError, require
from dreamlab.core.readers import read_bytes, read_json
from dreamlab.core.types import ArraySpec, Spec
from dreamlab.nn.named import NamedModules

OBSERVATION, IMAGES = "observation.", "observation.images."
STATE, ENV_STATE, ACTION = "observation.state", "observation.environment_state", "action"
INSIDE = ("normalize_inputs.buffer_", "normalize_targets.buffer_", "unnormalize_outputs.buffer_")
EPS = 1e-8
UNET = {
    "diffusion_step_encoder": "time", "down_modules": "down", "mid_modules": "middle",
    "up_modules": "up", "final_conv": "out",
}  # fmt: skip
BLOCK = {
    "conv1.block": "first", "conv2.block": "second", "cond_encoder": "film",
    "residual_conv": "skip",
}  # fmt: skip
VISION = {
    "backbone": "body", "pool.nets": "pool.maps", "out": "head.0", "bn1": "norm1", "bn2": "norm2",
    "downsample": "skip",
}  # fmt: skip

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Checkpoint:
    """What a folder of LeRobot holds."""

    place: Path
    options: dict[str, Any]
    weights: Weights
    """Network weights by LeRobot's names."""
    statistics: dict[str, dict[str, Tensor]] = field(default_factory=dict[str, dict[str, Tensor]])
    """Dataset statistics by feature: mean and std, or min and max."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of what goes in, in LeRobot's order; images as channels first."""
        found = self.options.get("input_features") or self.options.get("input_shapes") or {}
        return {k: tuple(v["shape"] if isinstance(v, dict) else v) for k, v in found.items()}

    @property
    def cameras(self) -> list[str]:
        return [k for k, shape in self.shapes.items() if len(shape) == 3]

    @property
    def action_dim(self) -> int:
        found = self.options.get("output_features") or self.options.get("output_shapes") or {}
        action = found[ACTION]
        return int((action["shape"] if isinstance(action, dict) else action)[0])

    def spec(self) -> Spec:
        """Return what the policy sees and does, in our names and shapes."""
        obs = {
            short_name(k): ArraySpec((*shape[1:], shape[0]), "uint8", low=0.0, high=255.0)
            if len(shape) == 3
            else ArraySpec(shape)
            for k, shape in self.shapes.items()
        }
        return Spec(obs, ArraySpec((self.action_dim,)))


def short_name(feature: str) -> str:
    """Return what an observation is called here: the last word of its name."""
    return feature.removeprefix(IMAGES).removeprefix(OBSERVATION)


# -- reading --------------------------------------------------------------------------------------


def read_checkpoint(folder: Path) -> Checkpoint:
    """Return what is in a folder; a missing file, kind or statistic is an error that names it."""
    for name in ("config.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise CheckpointError(
                f"import: {folder} has no {name}: expected a `pretrained_model` folder"
            )
    options = read_json(folder / "config.json")
    if options.get("type", "diffusion") != "diffusion":
        raise CheckpointError(f"import: {folder} is a policy of type {options['type']!r}")
    everything = read_safetensors(folder / "model.safetensors")
    inside = {k: v for k, v in everything.items() if k.startswith(INSIDE)}
    weights = {
        k.removeprefix("diffusion."): v for k, v in everything.items() if k not in inside
    }  # fmt: skip
    statistics = _inside(inside) if inside else _beside(folder)
    found = Checkpoint(folder, options, weights, statistics)
    _check(found)
    return found


def read_safetensors(path: Path) -> Weights:
    """Return the tensors of a file."""
    require("safetensors", "export")
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(read_bytes(path))
    except SafetensorError as error:
        raise CheckpointError(f"import: {path} is corrupted: {error}") from None


def _inside(found: Weights) -> dict[str, dict[str, Tensor]]:
    """Return statistics that are among the weights; dots of features are underscores there."""
    out: dict[str, dict[str, Tensor]] = {}
    for key, value in found.items():
        prefix = next(p for p in INSIDE if key.startswith(p))
        feature, _, name = key.removeprefix(prefix).rpartition(".")
        out.setdefault(feature, {})[name] = value
    return out


def _beside(folder: Path) -> dict[str, dict[str, Tensor]]:
    """Return statistics that a preprocessor and a postprocessor keep in their own files."""
    out: dict[str, dict[str, Tensor]] = {}
    for path in sorted(folder.glob("policy_*normalizer_processor.safetensors")):
        for key, value in read_safetensors(path).items():
            feature, _, name = key.rpartition(".")
            out.setdefault(feature.replace(".", "_"), {})[name] = value
    return out


REFUSED = {
    "use_group_norm": (True, "batch norm is not supported with averaged weights"),
    "use_film_scale_modulation": (True, "our U-Net always uses FiLM scaling"),
    "resize_shape": (None, "images are resized by the environment: set env.size"),
    "vision_backbone": ("resnet18", "it is the only one supported"),
    "clip_sample_range": (1.0, "actions are always clipped to 1"),
}


def _check(checkpoint: Checkpoint) -> None:
    """Raise if a checkpoint requests what we do not have, or lacks what it needs."""
    for name, (wanted, why) in REFUSED.items():
        value = checkpoint.options.get(name, wanted)
        asked = name not in ("use_group_norm", "resize_shape", "vision_backbone")
        if value != wanted and (asked or checkpoint.cameras):
            raise CheckpointError(f"import: {checkpoint.place}: {name}={value}: {why}")
    for feature in (*checkpoint.shapes, ACTION):
        scale_of(checkpoint, feature)


def scale_of(checkpoint: Checkpoint, feature: str) -> tuple[Tensor, Tensor]:
    """Return what is taken off a feature, and what it is then divided by."""
    mode = mode_of(checkpoint, feature)
    if mode == "identity":
        return torch.zeros(1), torch.ones(1)
    names = ("mean", "std") if mode == "mean_std" else ("min", "max")
    found = checkpoint.statistics.get(feature.replace(".", "_"), {})
    if missing := [n for n in names if n not in found]:
        raise CheckpointError(
            f"import: {checkpoint.place}: the {missing[0]} of {feature!r} is missing, which is "
            f"normalized by {mode}: neither model.safetensors nor a file "
            "policy_*normalizer_processor.safetensors has it"
        )
    low, high = (found[n].flatten().float() for n in names)
    if mode == "mean_std":
        return low, high + EPS
    return (high + low) / 2, ((high - low) / 2).clamp(min=EPS)


def mode_of(checkpoint: Checkpoint, feature: str) -> str:
    """Return how a feature is normalized, by its own entry or by that of its kind."""
    o = checkpoint.options
    old = {**o.get("input_normalization_modes", {}), **o.get("output_normalization_modes", {})}
    about = {**o.get("input_features", {}), **o.get("output_features", {})}.get(feature, {})
    kinds = o.get("normalization_mapping", {})
    mode = old.get(feature) or kinds.get(about.get("type"), "identity")
    if (mode := str(mode).lower()) not in ("mean_std", "min_max", "identity"):
        raise CheckpointError(f"import: {checkpoint.place}: {feature!r} is normalized by {mode}")
    return mode


# -- options --------------------------------------------------------------------------------------


def policy_options(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the options of the same policy of ours, as YAML would give them."""
    o, prediction = checkpoint.options, checkpoint.options["prediction_type"]
    out: dict[str, Any] = {
        "_target_": "scaled_diffusion",
        "obs_steps": o["n_obs_steps"], "horizon": o["horizon"], "execute": o["n_action_steps"],
        "levels": o["num_train_timesteps"], "betas": o["beta_schedule"], "clip": o["clip_sample"],
        "prediction": "v" if prediction == "v_prediction" else prediction,
        "sampler": o["noise_scheduler_type"].lower(), "sample_steps": o.get("num_inference_steps"),
        "net": {
            "_target_": "unet1d", "widths": list(o["down_dims"]), "groups": o["n_groups"],
            "time_dim": o["diffusion_step_embed_dim"], "kernel_size": o["kernel_size"],
        },
    }  # fmt: skip
    if checkpoint.cameras:
        out["encoder"] = {"image": _vision(checkpoint)}
    return out


def _vision(checkpoint: Checkpoint) -> dict[str, Any]:
    o = checkpoint.options
    scales = [scale_of(checkpoint, k) for k in checkpoint.cameras]
    if any(not torch.equal(a, b) for s in scales for a, b in zip(s, scales[0], strict=True)):
        raise CheckpointError(f"import: {checkpoint.place}: its cameras are normalized differently")
    mean, std = (x.tolist() for x in scales[0])
    points = o["spatial_softmax_num_keypoints"]
    return {
        "_target_": "resnet18", "crop": o.get("crop_shape"), "keypoints": points,
        "out_dim": 2 * points, "mean": mean, "std": std,
    }  # fmt: skip


# -- weights --------------------------------------------------------------------------------------


def converted(checkpoint: Checkpoint) -> Weights:
    """Return every weight and statistic under the names of our policy."""
    out: Weights = {}
    order = cond_order(checkpoint)
    for key, value in checkpoint.weights.items():
        part, _, rest = key.partition(".")
        if part == "unet":
            name = f"net.{_unet_name(rest)}"
            out[name] = _reordered(value, order) if name.endswith("film.1.weight") else value
        elif part == "rgb_encoder":
            for camera, name in _camera_names(checkpoint, rest):
                out[f"encoder.images.{_held(camera)}.{name}"] = value
        else:
            raise CheckpointError(f"import: {checkpoint.place}: unknown key {key[:80]!r}")
    for feature in [k for k in checkpoint.shapes if k not in checkpoint.cameras]:
        out |= _scale(f"obs_scale.{_held(short_name(feature))}", checkpoint, feature)
    return out | _scale("action_scale", checkpoint, ACTION)


def _held(name: str) -> str:
    """Return the name under which a module of an observation is held."""
    (held,) = NamedModules({name: torch.nn.Identity()}).state_names()
    return held


def _scale(name: str, checkpoint: Checkpoint, feature: str) -> Weights:
    dim = checkpoint.action_dim if feature == ACTION else checkpoint.shapes[feature][0]
    shift, scale = (x.expand(dim).clone() for x in scale_of(checkpoint, feature))
    return {f"{name}.shift": shift, f"{name}.scale": scale}


def _unet_name(key: str) -> str:
    """Return our name of a weight of the U-Net."""
    part, *rest = key.split(".")
    name, tail = UNET[part], ".".join(rest)
    if part == "diffusion_step_encoder":
        return f"{name}.{tail}"
    if part == "final_conv":
        return f"{name}.{tail.replace('block.', '')}"
    stage, block, last = ("", *tail.split(".", 1)) if part == "mid_modules" else tail.split(".", 2)
    if block == "2":  # a convolution that changes the length, alone or in its own module
        return f"{name}.{stage}.resize.{last.removeprefix('conv.')}"
    for theirs, ours in BLOCK.items():
        last = last.replace(theirs, ours)
    return ".".join(x for x in (name, stage, ("one", "two")[int(block)], last) if x)


def _camera_names(checkpoint: Checkpoint, key: str) -> Iterator[tuple[str, str]]:
    """Yield our names of a weight of an encoder: one of all cameras, or one of each."""
    number, _, rest = key.partition(".")
    own = number.isdigit()
    cameras = [checkpoint.cameras[int(number)]] if own else checkpoint.cameras
    name = rest if own else key
    if name == "pool.pos_grid":  # it follows from the size
        return
    for theirs, ours in VISION.items():
        name = _renamed(name, theirs, ours)
    for camera in cameras:
        yield short_name(camera), name


def _renamed(name: str, theirs: str, ours: str) -> str:
    """Return a dotted name with one of its parts called otherwise."""
    return f".{name}.".replace(f".{theirs}.", f".{ours}.").strip(".")


def cond_order(checkpoint: Checkpoint) -> list[int]:
    """Return where in LeRobot's condition each entry of ours is, the time's embedding included.

    There it is state, images, environment; here images, then vectors, each by the alphabet.
    """
    o = checkpoint.options
    points = 2 * o.get("spatial_softmax_num_keypoints", 0)
    vectors = [k for k in (STATE, ENV_STATE) if k in checkpoint.shapes]
    theirs = [*vectors[:1], *checkpoint.cameras, *vectors[1:]]
    sizes = {k: points if k in checkpoint.cameras else checkpoint.shapes[k][0] for k in theirs}
    first = dict(zip(theirs, _sums([sizes[k] for k in theirs]), strict=True))
    ours = [*sorted(checkpoint.cameras, key=short_name), *sorted(vectors, key=short_name)]
    step = [first[k] + i for k in ours for i in range(sizes[k])]
    time = int(o["diffusion_step_embed_dim"])
    steps = range(int(o["n_obs_steps"]))
    return [*range(time), *(time + len(step) * t + i for t in steps for i in step)]


def _sums(sizes: Sequence[int]) -> list[int]:
    return [sum(sizes[:i]) for i in range(len(sizes))]


def _reordered(weight: Tensor, order: Sequence[int]) -> Tensor:
    if weight.shape[1] != len(order):
        raise CheckpointError(
            f"import: the U-Net takes a conditioning vector of size {weight.shape[1]}, but the "
            f"observations in config.json give {len(order)}"
        )
    return weight[:, torch.tensor(order)].contiguous()


def load_weights(policy: torch.nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy weights into a policy; one too many or too few is an error that names it."""
    own = policy.state_dict()
    for name in sorted((own.keys() - {"fixed_noise"}) ^ weights.keys()):
        where = "is missing" if name in own else "is unknown"
        raise CheckpointError(f"import: the weight {name!r} {where} in the checkpoint")
    policy.load_state_dict({**own, **weights})
