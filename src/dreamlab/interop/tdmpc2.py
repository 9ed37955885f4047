"""Weights of the official TD-MPC2 (nicklashansen/tdmpc2), under its own names, in our agent.

Its releases differ in how they name the critics: `_Qs.params.N` (2023; N counts weight, bias and
the norm's two of each layer) or `_Qs.params.L.weight` (2024 on). Both are brought to the latter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dreamlab.core.config import load
from dreamlab.core.errors import CheckpointError
from dreamlab.core.types import Array, ArraySpec, Spec, TaskSpec
from dreamlab.workflows.tdmpc2 import TDMPC2, TDMPC2Config

Weights = Mapping[str, Array]
FIELDS = ("weight", "bias", "ln.weight", "ln.bias")
ONLINE, TARGET = "_Qs.params", "_target_Qs_params"
NOT_WEIGHTS = re.compile(r"_detach_Qs[._]params\..*|log_std_(min|dif)|_action_masks")
LOG_STD = ("log_std_min", "log_std_dif")
NOT_TENSORS = re.compile(r".*\.__(batch_size|device)|_(detach_|target_)?Qs\.module\..*")
# ours, theirs; the number of a layer follows, that of the last one too
NETS = {
    "model.encoder.net": "_encoder.state", "model.dynamics": "_dynamics",
    "model.reward": "_reward", "model.termination": "_termination", "prior.net": "_pi",
}  # fmt: skip
NORMS = {"scale": "ln.weight", "shift": "ln.bias"}
FIRST_CONV = 2
"""The official encoder has two layers without weights before the convolutions: shift and scale."""


def canonical(found: Mapping[str, Any]) -> dict[str, Array]:
    """Return the weights of a checkpoint under the newer names, and nothing else of it."""
    out: dict[str, Array] = {}
    for name, value in found.items():
        if NOT_TENSORS.fullmatch(name):
            continue
        if not isinstance(value, np.ndarray):
            raise CheckpointError(f"import: {name[:80]!r} is not a tensor")
        out[_newer(name)] = value
    if not any(k.startswith(TARGET) for k in out):  # it starts as the critics are
        out |= {TARGET + k[len(ONLINE) :]: v for k, v in out.items() if k.startswith(ONLINE)}
    return out


def _newer(name: str) -> str:
    """Return what a weight is called since 2024."""
    old = re.fullmatch(r"(_Qs\.params|_target_Qs\.params)\.(\d+)", name)
    if old is None:  # some of 2024 and 2025 have the target critics under both names
        return re.sub(r"^_target_Qs\.params", TARGET, name)
    layer, field = divmod(int(old[2]), len(FIELDS))
    return f"{ONLINE if old[1] == ONLINE else TARGET}.{layer}.{FIELDS[field]}"


# -- names ----------------------------------------------------------------------------------------


def official_names(agent: TDMPC2) -> dict[str, str]:
    """Return the original's name of each of our parameters."""
    return {name: _official(agent, name) for name, _ in agent.named_parameters()}


def _official(agent: TDMPC2, name: str) -> str:
    if name == "model.tasks.weight":
        return "_task_emb.weight"
    if match := re.fullmatch(r"model\.encoder\.net\.convs\.(\d+)\.(\w+)", name):
        return f"_encoder.rgb.{int(match[1]) + FIRST_CONV}.{match[2]}"
    if match := re.fullmatch(r"(critics|target)\.(linears|norms)\.(\d+)\.(\w+)", name):
        leaf = NORMS.get(match[4], match[4])
        return f"{ONLINE if match[1] == 'critics' else TARGET}.{match[3]}.{leaf}"
    match = re.fullmatch(r"(.+?)\.(?:hidden\.(\d+)|out)(?:\.(linear|norm))?\.(\w+)", name)
    assert match is not None, name
    net: Any = agent.get_submodule(match[1])
    layer = len(net.hidden) if match[2] is None else int(match[2])
    return f"{NETS[match[1]]}.{layer}.{NORMS.get(match[4], match[4])}"


def to_ours(value: Array, like: Tensor, name: str) -> Tensor:
    """Return an original tensor in our layout."""
    _check_shape(value, like, name)  # before it is copied
    with np.errstate(over="ignore"):  # it is infinite then
        tensor = torch.from_numpy(np.array(value, np.float32))
    if not tensor.isfinite().all():
        raise CheckpointError(f"import: {name!r} has numbers that are infinite or not a number")
    return _arranged(tensor, like, name).contiguous()


def _arranged(tensor: Tensor, like: Tensor, name: str) -> Tensor:
    if name.startswith((ONLINE, TARGET)):
        tensor = tensor.transpose(1, 2) if tensor.ndim == 3 else tensor
        tensor = tensor[:, None] if like.ndim == 3 and tensor.ndim == 2 else tensor
        tensor = tensor.flatten() if like.ndim == 1 else tensor
    return tensor


def _check_shape(value: Array, like: Tensor, name: str) -> None:
    if _arranged(torch.empty(value.shape, device="meta"), like, name).shape != like.shape:
        raise CheckpointError(
            f"import: {name!r} has the shape {tuple(value.shape)}, which does not fit"
        )


def to_theirs(value: Tensor, name: str, critics: int) -> Array:
    """Return one of our tensors in the original's layout."""
    out = value.detach().cpu()
    if name.startswith((ONLINE, TARGET)):
        out = out.view(critics, -1) if out.ndim == 1 else out
        bias = out.ndim == 3 and name.endswith(".bias")
        out = out[:, 0] if bias else out.transpose(1, 2) if out.ndim == 3 else out
    return out.contiguous().numpy()


def check_weights(agent: TDMPC2, weights: Weights) -> None:
    """Raise unless names and shapes match one to one; the agent needs no memory (`meta`)."""
    names = official_names(agent)
    for ours, param in agent.named_parameters():
        theirs = names[ours]
        if theirs not in weights:
            raise CheckpointError(f"import: the checkpoint lacks {theirs!r}")
        _check_shape(weights[theirs], param, theirs)
    known = set(names.values())
    for name in weights:
        if name not in known and not NOT_WEIGHTS.fullmatch(name):
            raise CheckpointError(f"import: {name[:80]!r} has no counterpart in our agent")


@torch.no_grad()
def load_weights(agent: TDMPC2, weights: Weights) -> None:
    """Copy the official weights; names must match one to one."""
    check_weights(agent, weights)
    names = official_names(agent)
    for ours, param in agent.named_parameters():
        param.copy_(to_ours(weights[names[ours]], param, names[ours]))
    agent.model.limit_tasks()


def weights_of(agent: TDMPC2) -> dict[str, Array]:
    """Return our weights under the original's names."""
    params = dict(agent.named_parameters())
    num = agent.config.num_q
    return {v: to_theirs(params[k], v, num) for k, v in official_names(agent).items()}


# -- sizes ----------------------------------------------------------------------------------------


def config_of(weights: Weights, **more: Any) -> TDMPC2Config:
    """Return the config that weights have; `more` of its options are not of the network."""
    return load(TDMPC2Config, {**sizes_of(weights), **more}, "workflow")


def sizes_of(weights: Weights) -> dict[str, Any]:
    """Return the options inferred from the weights."""
    shape = {k: v.shape for k, v in weights.items()}
    latent = shape["_dynamics.2.weight"][0]
    out: dict[str, Any] = {
        "size": None,
        "latent_dim": latent,
        "mlp_dim": shape["_dynamics.0.weight"][0],
        "num_q": shape[f"{ONLINE}.0.weight"][0],
        "bins": {"num": shape["_reward.2.weight"][0]},
        "episodic": "_termination.0.weight" in shape,
    }
    layers = [k for k in shape if re.fullmatch(r"_encoder\.state\.\d+\.weight", k)]
    if layers:
        out |= {"enc_dim": shape["_encoder.state.0.weight"][0], "enc_layers": len(layers)}
    elif f"_encoder.rgb.{FIRST_CONV}.weight" not in shape:
        raise CheckpointError("import: the checkpoint lacks an encoder of vectors or of images")
    else:
        out["channels"] = shape[f"_encoder.rgb.{FIRST_CONV}.weight"][0]
    if "_task_emb.weight" in shape:
        out["task_dim"] = shape["_task_emb.weight"][1]
    if bounds := _log_std(weights):
        out["log_std"] = bounds
    return out


def _log_std(weights: Weights) -> tuple[float, float] | None:
    """Return the bounds of the policy's log-deviation; checkpoints of 2023 do not have them."""
    there = [k for k in LOG_STD if k in weights]
    if not there:
        return None
    if missing := [k for k in LOG_STD if k not in weights]:
        raise CheckpointError(
            f"import: the checkpoint lacks {missing[0]!r}, which belongs to its {there[0]!r}"
        )
    low, size = (float(weights[k]) for k in LOG_STD)
    return low, low + size


def action_dim(weights: Weights) -> int:
    """Return the entries of an action of the policy."""
    return weights["_pi.2.weight"].shape[0] // 2


def action_dims(weights: Weights) -> list[int]:
    """Return the entries of an action that each task has; none if the checkpoint does not tell."""
    masks = weights.get("_action_masks")
    if masks is None or "_task_emb.weight" not in weights:
        return []
    shape = (weights["_task_emb.weight"].shape[0], action_dim(weights))
    if masks.shape == shape:
        dims = masks.sum(-1, dtype=np.int64)
        if (masks == (np.arange(shape[1]) < dims[:, None])).all():
            return dims.tolist()
    raise CheckpointError(
        f"import: '_action_masks' must have the shape {shape}, and 1 in the first entries"
    )


def obs_dim(weights: Weights) -> int | None:
    """Return how many numbers the encoder reads; None if it reads images."""
    if "_encoder.state.0.weight" not in weights:
        return None
    tasks = weights["_task_emb.weight"].shape[1] if "_task_emb.weight" in weights else 0
    return weights["_encoder.state.0.weight"].shape[1] - tasks


def spec_of(weights: Weights, image: tuple[int, ...] = (64, 64, 9)) -> Spec:
    """Return the input sizes inferred from the weights."""
    dim, numbers = action_dim(weights), obs_dim(weights)
    seen = (
        {"image": ArraySpec(image, "uint8")}
        if numbers is None
        else {"state": ArraySpec((numbers,))}
    )
    tasks: tuple[TaskSpec, ...] = ()
    if "_task_emb.weight" in weights:
        count = weights["_task_emb.weight"].shape[0]
        dims = action_dims(weights)
        tasks = tuple(TaskSpec(str(i), n) for i, n in enumerate(dims or [dim] * count))
        seen["task"] = ArraySpec((), "int64", classes=count)
    return Spec(seen, ArraySpec((dim,), low=-1.0, high=1.0), None, tasks)
