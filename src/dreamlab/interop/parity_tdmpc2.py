"""The part of `dreamlab.interop.parity` that knows TD-MPC2: its fixtures hold a `checkpoint.pt`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dreamlab.components.policies.latent_prior import Prior
from dreamlab.core.errors import CheckpointError
from dreamlab.core.types import Array
from dreamlab.interop import tdmpc2
from dreamlab.interop.parity_lines import Line, compare
from dreamlab.interop.torch_files import read_tensors
from dreamlab.workflows.tdmpc2 import TDMPC2, Window

CHECKPOINT = "checkpoint.pt"
LOSSES = ("consistency", "reward", "value", "termination")


def read_checkpoint(file: Path) -> dict[str, Array]:
    """Return the weights of a checkpoint under the newer names."""
    found = read_tensors(file)
    model = found.get("model", found) if isinstance(found, dict) else found
    if not isinstance(model, dict) or "_dynamics.0.weight" not in model:
        raise CheckpointError(f"import: {file} is not a checkpoint of the official TD-MPC2")
    return tdmpc2.canonical({str(k): v for k, v in model.items()})


class Fixture:
    """A folder with a checkpoint, a batch (time first) and what the original computed from them."""

    def __init__(self, folder: Path) -> None:
        self.meta: dict[str, Any] = json.loads((folder / "meta.json").read_text())
        self.weights = read_checkpoint(folder / CHECKPOINT)
        self.inputs, self.outputs = (_load(folder / f"{k}puts.npz") for k in ("in", "out"))

    def agent(self) -> TDMPC2:
        """Return our agent with the fixture's weights; nothing in it is left to chance."""
        meta = self.meta
        bins = {"num": meta["num_bins"], "low": float(meta["vmin"]), "high": float(meta["vmax"])}
        config = tdmpc2.config_of(
            self.weights, bins=bins, rho=meta["rho"], simnorm_dim=meta["simnorm_dim"],
            dropout=0.0, gamma=0.99,
        )  # fmt: skip
        image = self.inputs["obs"].shape[2:]
        agent = TDMPC2(config, tdmpc2.spec_of(self.weights, (*image[1:], image[0])))
        tdmpc2.load_weights(agent, self.weights)
        return agent

    def window(self, agent: TDMPC2) -> Window:
        """Return the batch as our update sees it."""
        get = {k: torch.from_numpy(v) for k, v in self.inputs.items()}
        image = agent.model.encoder.image
        obs = {"state": get["obs"]} if image is None else {image: get["obs"].movedim(2, -1)}
        horizon, batch = get["action"].shape[:2]
        task = get.get("task", torch.zeros(batch)).reshape(-1)[:batch].long()
        if agent.spec.tasks:
            obs["task"] = task.expand(horizon + 1, batch)
        ends = get.get("terminated", torch.zeros(horizon, batch, 1))
        reward, ends = (x.float().reshape(horizon, batch) for x in (get["reward"], ends))
        return Window(obs, get["action"], reward, ends, task, {})


def _load(file: Path) -> dict[str, Array]:
    with np.load(file) as found:
        return dict(found)


@torch.no_grad()
def computed(agent: TDMPC2, fixture: Fixture) -> dict[str, Tensor]:
    """Return everything the original wrote down, as we compute it, under its names."""
    model, w, task = agent.model, fixture.window(agent), fixture.window(agent).task
    target = torch.from_numpy(fixture.inputs["td_target"]).reshape(w.reward.shape)
    next_z = model.encode({k: v[1:] for k, v in w.obs.items()}, task.expand(w.reward.shape))
    total, zs, metrics = agent.model_loss(w, next_z, target, None)
    reward = model.reward_logits(zs[:-1], w.action, task)
    q = agent.critics(model.about(task, zs[:-1], w.action))
    out = {
        "next_z": next_z, "zs": zs, "q_logits": q, "q_values": agent.critics.decode(q),
        "reward_logits": reward, "reward_values": model.decode(reward), "total_loss": total,
        **{f"{k}_loss": metrics[f"loss/{k}"] for k in LOSSES if f"loss/{k}" in metrics},
    }  # fmt: skip
    if model.termination is not None:
        out["termination_logits"] = model.ends(zs[1:], task)
    if "pi_eps" in fixture.outputs:
        eps = torch.from_numpy(fixture.outputs["pi_eps"])
        x = model.about(task, zs)
        out |= _policy(agent.prior.sample(x, eps, agent.mask_of(task)), eps)
    if "two_hot/x" in fixture.outputs:
        x = torch.from_numpy(fixture.outputs["two_hot/x"])
        out |= {"two_hot/x": x, "two_hot/target": agent.config.bins.two_hot(x.reshape(-1))}
    return out


def _policy(prior: Prior, eps: Tensor) -> dict[str, Tensor]:
    return {
        "pi_eps": eps, "pi_mean_pre_tanh": prior.mean, "pi_mean": torch.tanh(prior.mean),
        "pi_log_std": prior.log_std, "pi_action": prior.action, "pi_entropy": prior.entropy,
        "pi_scaled_entropy": prior.scaled_entropy,
    }  # fmt: skip


def check(folder: Path) -> Iterator[Line]:
    """Compare a fixture, line by line."""
    fixture = Fixture(folder)
    found = computed(fixture.agent(), fixture)
    for name, theirs in sorted(fixture.outputs.items()):
        if name in found:
            yield compare(name, found[name], theirs)
        else:
            yield Line(name, np.inf, np.inf, False, "not computed by dreamlab")
