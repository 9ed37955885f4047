"""Weights of the official DreamerV3 (danijar/dreamerv3), under its own names, in our agent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dreamlab.core.config import load
from dreamlab.core.errors import LabError
from dreamlab.core.types import Array, ArraySpec, Spec
from dreamlab.workflows.dreamer_v3 import DreamerV3, DreamerV3Config

Weights = Mapping[str, Array]

# ours, theirs; the first that matches a parameter's name gives the original's module
MODULES: list[tuple[str, str]] = [
    (r"model\.encoder\.mlp\.(\d+)\.linear", r"enc/mlp\1"),
    (r"model\.encoder\.mlp\.(\d+)\.norm", r"enc/mlp\1norm"),
    (r"model\.encoder\.cnn\.convs\.(\d+)", r"enc/cnn\1"),
    (r"model\.encoder\.cnn\.norms\.(\d+)", r"enc/cnn\1norm"),
    (r"model\.rssm\.cell\.inputs\.(\d+)\.linear", r"dyn/dynin\1"),
    (r"model\.rssm\.cell\.inputs\.(\d+)\.norm", r"dyn/dynin\1norm"),
    (r"model\.rssm\.cell\.hidden\.(\d+)", r"dyn/dynhid\1"),
    (r"model\.rssm\.cell\.norms\.(\d+)", r"dyn/dynhid\1norm"),
    (r"model\.rssm\.cell\.gates", r"dyn/dyngru"),
    (r"model\.rssm\.prior_net\.(\d+)\.linear", r"dyn/prior\1"),
    (r"model\.rssm\.prior_net\.(\d+)\.norm", r"dyn/prior\1norm"),
    (r"model\.rssm\.prior_out", r"dyn/priorlogit"),
    (r"model\.rssm\.post_net\.(\d+)\.linear", r"dyn/obs\1"),
    (r"model\.rssm\.post_net\.(\d+)\.norm", r"dyn/obs\1norm"),
    (r"model\.rssm\.post_out", r"dyn/obslogit"),
    (r"model\.decoder\.mlp\.(\d+)\.linear", r"dec/mlp/linear\1"),
    (r"model\.decoder\.mlp\.(\d+)\.norm", r"dec/mlp/norm\1"),
    (r"model\.decoder\.out\.([^.]+)", r"dec/vec/\1"),
    (r"model\.decoder\.cnn\.from_deter", r"dec/sp0"),
    (r"model\.decoder\.cnn\.from_stoch\.0\.linear", r"dec/sp1"),
    (r"model\.decoder\.cnn\.from_stoch\.0\.norm", r"dec/sp1norm"),
    (r"model\.decoder\.cnn\.from_stoch\.1", r"dec/sp2"),
    (r"model\.decoder\.cnn\.norm", r"dec/spnorm"),
    (r"model\.decoder\.cnn\.convs\.(\d+)", r"dec/conv-\1"),
    (r"model\.decoder\.cnn\.norms\.(\d+)", r"dec/conv-\1norm"),
    (r"model\.decoder\.cnn\.out", r"dec/imgout"),
    (r"model\.reward\.net\.(\d+)\.linear", r"rew/mlp/linear\1"),
    (r"model\.reward\.net\.(\d+)\.norm", r"rew/mlp/norm\1"),
    (r"model\.reward\.out", r"rew/head/logits"),
    (r"model\.cont\.net\.(\d+)\.linear", r"con/mlp/linear\1"),
    (r"model\.cont\.net\.(\d+)\.norm", r"con/mlp/norm\1"),
    (r"model\.cont\.out", r"con/head/logit"),
    (r"actor\.net\.(\d+)\.linear", r"pol/mlp/linear\1"),
    (r"actor\.net\.(\d+)\.norm", r"pol/mlp/norm\1"),
    (r"actor\.(mean|stddev|logits)", r"pol/head/action/\1"),
    (r"critic\.net\.(\d+)\.linear", r"val/mlp/linear\1"),
    (r"critic\.net\.(\d+)\.norm", r"val/mlp/norm\1"),
    (r"critic\.out", r"val/head/logits"),
    (r"slow\.net\.(\d+)\.linear", r"slowval/mlp/linear\1"),
    (r"slow\.net\.(\d+)\.norm", r"slowval/mlp/norm\1"),
    (r"slow\.out", r"slowval/head/logits"),
]
LEAVES = {"weight": "kernel", "bias": "bias", "scale": "scale"}
FLAGS = ("reward", "is_first", "is_last", "is_terminal")


def official_names(agent: DreamerV3) -> dict[str, str]:
    """Return the original's name of each of our parameters."""
    return {name: _official(agent, name) for name, _ in agent.named_parameters()}


def _official(agent: DreamerV3, name: str) -> str:
    module, leaf = name.rsplit(".", 1)
    for ours, theirs in MODULES:
        if match := re.fullmatch(ours, module):
            path = match.expand(theirs)
            break
    else:
        raise LabError(f"interop: {name!r} has no counterpart in the original")
    if path.startswith("dec/conv-"):  # it counts its convolutions from the image inwards
        count = len(agent.config.decoder.config.mults) - 1
        path = re.sub(r"-(\d+)", lambda m: str(count - 1 - int(m[1])), path)
    if path.startswith("dec/vec/"):
        discrete = agent.spec.obs[path.split("/")[2]].is_discrete
        path += "/logits" if discrete else "/pred"
    return f"{path}/{LEAVES[leaf]}"


def to_ours(value: Array, like: Tensor) -> Tensor:
    """Return an original tensor in our layout."""
    tensor = torch.from_numpy(np.array(value, np.float32))
    if like.ndim == 2 and tensor.ndim == 2:
        tensor = tensor.T
    elif like.ndim == 4:
        tensor = tensor.permute(3, 2, 0, 1)
    return tensor.reshape(like.shape).contiguous()


def to_theirs(value: Tensor, name: str) -> Array:
    """Return one of our tensors in the original's layout."""
    tensor = value.detach().float().cpu()
    if name.endswith("/kernel") and tensor.ndim == 2:
        tensor = tensor.T
    elif tensor.ndim == 4:
        tensor = tensor.permute(2, 3, 1, 0)
    elif name.endswith("/bias"):
        tensor = tensor.flatten()
    return tensor.contiguous().numpy()


@torch.no_grad()
def load_weights(agent: DreamerV3, weights: Weights) -> None:
    """Copy every parameter and the return normaliser; raise naming what does not fit."""
    params = dict(agent.named_parameters())
    names = official_names(agent)
    missing = sorted(set(names.values()) - set(weights))
    if missing:
        raise LabError(
            f"interop: the checkpoint lacks {len(missing)} tensors, first {missing[0]!r}"
        )
    for ours, theirs in names.items():
        if weights[theirs].size != params[ours].numel():
            shape = weights[theirs].shape
            raise LabError(f"interop: {theirs!r} has shape {shape}, ours {params[ours].shape}")
        params[ours].copy_(to_ours(weights[theirs], params[ours]))
    for buffer, key in (
        (agent.return_low, "retnorm/lo/value"),
        (agent.return_high, "retnorm/hi/value"),
    ):
        if key in weights:
            buffer.fill_(float(weights[key]))


@torch.no_grad()
def load_optimizer(agent: DreamerV3, weights: Weights) -> bool:
    """Copy the optimizer's moments, if they are there; return whether they were."""
    if "opt/state/1/0" not in weights:
        return False
    opt = agent.optimizers["agent"]
    by_param = {id(p): n for n, p in agent.named_parameters()}
    names = official_names(agent)
    theirs = [names[by_param[id(p)]] for p in opt.params]
    get = lambda i, p, n: to_ours(weights[f"opt/state/{i}/1/{n}"], p)  # noqa: E731
    opt.inner.load_state_dict(
        {
            "count": torch.tensor(float(weights["opt/state/1/0"]), dtype=torch.float64),
            "mean": [get(2, p, n) for p, n in zip(opt.params, theirs, strict=True)],
            "square": [get(1, p, n) for p, n in zip(opt.params, theirs, strict=True)],
            "lr": opt.lr,
        }
    )
    return True


def config_of(weights: Weights, stoch: int, **more: Any) -> DreamerV3Config:
    """Return the config that weights have; `more` of its options are not of the network."""
    return load(DreamerV3Config, {**sizes_of(weights, stoch), **more}, "workflow")


def sizes_of(weights: Weights, stoch: int) -> dict[str, dict[str, Any]]:
    """Return the options of each part, inferred from the weights."""
    shape = {k: v.shape for k, v in weights.items()}
    deter, hidden = shape["dyn/dynin0/kernel"]
    blocks = shape["dyn/dynhid0/kernel"][0]
    classes = shape["dyn/dynin1/kernel"][0] // stoch
    rssm = {"deter": deter, "hidden": hidden, "stoch": stoch, "classes": classes, "blocks": blocks}
    heads = {"reward": "rew", "cont": "con", "actor": "pol", "critic": "val"}
    out = {k: _layers(shape, f"{v}/mlp/linear") for k, v in heads.items()}
    for k in ("reward", "critic"):
        out[k]["num_bins"] = shape[f"{heads[k]}/head/logits/kernel"][1]
    images = _convolutions(shape)
    out["encoder"] = _layers(shape, "enc/mlp") | images
    out["decoder"] = _layers(shape, "dec/mlp/linear") | images | {"blocks": blocks}
    if "units" not in out["decoder"]:  # images alone: half of what reads the random part
        out["decoder"]["units"] = shape["dec/sp1/kernel"][1] // 2
    return {"rssm": rssm, **out}


def _layers(shape: Mapping[str, tuple[int, ...]], name: str) -> dict[str, Any]:
    """Return width and number of a network's hidden layers, if there are any."""
    found = [k for k in shape if re.fullmatch(rf"{name}\d+/kernel", k)]
    return {"units": shape[found[0]][1], "layers": len(found)} if found else {}


def _convolutions(shape: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Return the channels of an encoder of images, if there is one."""
    found = [k for k in shape if re.fullmatch(r"enc/cnn\d+/kernel", k)]
    depths = [shape[f"enc/cnn{i}/kernel"][3] for i in range(len(found))]
    if not depths:
        return {}
    depth = int(np.gcd.reduce(depths))
    return {"depth": depth, "mults": [int(d // depth) for d in depths]}


def action_of(weights: Weights) -> ArraySpec:
    """Return the action that a policy of these weights takes."""
    if "pol/head/action/mean/kernel" in weights:
        dim = weights["pol/head/action/mean/kernel"].shape[1]
        return ArraySpec((dim,), low=-1.0, high=1.0)
    if "pol/head/action/logits/kernel" in weights:
        return ArraySpec((), "int64", classes=weights["pol/head/action/logits/kernel"].shape[1])
    heads = sorted({k.split("/")[2] for k in weights if k.startswith("pol/head/")})
    raise LabError(
        f"interop: only a single action named 'action' is supported, the policy has {heads}"
    )


def spec_of(obs: Mapping[str, Array], weights: Weights) -> Spec:
    """Return what observations [b, t, ...] and weights look like."""
    out: dict[str, ArraySpec] = {}
    for name, value in obs.items():
        if name in FLAGS or name.startswith("log/"):
            continue
        shape = value.shape[2:]
        if value.dtype == np.uint8 and len(shape) == 3:
            out[name] = ArraySpec(shape, "uint8")
        elif f"dec/vec/{name}/logits/kernel" in weights:
            total = weights[f"dec/vec/{name}/logits/kernel"].shape[1]
            num = int(np.prod(shape, dtype=np.int64))
            classes = total if not shape else (total // num,) * num
            out[name] = ArraySpec(shape, "int64", classes=classes)
        else:
            out[name] = ArraySpec(shape)
    return Spec(out, action_of(weights))
