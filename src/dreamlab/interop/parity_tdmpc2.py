"""The part of `dreamlab.interop.parity` that knows TD-MPC2: its fixtures hold a `checkpoint.pt`.

A fixture needs its checkpoint, and observations and actions in `inputs.npz`. What else is there is
used: options in `meta.json` (the original's defaults otherwise), rewards, ends, targets, noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dreamlab.components.policies.latent_prior import Prior
from dreamlab.components.world_models.latent_encoder import PAD
from dreamlab.core.errors import CheckpointError
from dreamlab.core.readers import read_json
from dreamlab.core.types import Array
from dreamlab.interop import tdmpc2
from dreamlab.interop.import_run import odd_shapes
from dreamlab.interop.parity_lines import ABS, REL, Line, compare, load_arrays, not_compared
from dreamlab.interop.torch_files import read_tensors
from dreamlab.workflows.tdmpc2 import TDMPC2, Window

CHECKPOINT = "checkpoint.pt"
LOSSES = ("consistency", "reward", "value", "termination")
ENDS = ("termination_logits", "termination_loss")
NEEDS: dict[str, tuple[str, ...]] = {
    "reward_loss": ("reward",),
    "value_loss": ("td_target",),
    "termination_loss": ("terminated",),
    "total_loss": ("reward", "td_target"),  # and "terminated", if episodic
    **dict.fromkeys(("pi_action", "pi_entropy", "pi_scaled_entropy"), ("pi_eps",)),
    "two_hot/target": ("two_hot/x",),
}
"""What is computed from given numbers; without them it is not compared."""
NAMES = (
    "next_z", "zs", "q_logits", "q_values", "reward_logits", "reward_values", "pi_mean_pre_tanh",
    "pi_mean", "pi_log_std", "consistency_loss", "termination_logits", *NEEDS,
)  # fmt: skip


def read_checkpoint(file: Path) -> dict[str, Array]:
    """Return the weights of a checkpoint under the newer names."""
    found = read_tensors(file)
    model = found.get("model", found) if isinstance(found, dict) else found
    if isinstance(model, dict) and any(str(k).startswith("_Qs.online.") for k in model):
        raise CheckpointError(f"import: {file} is a checkpoint of Newt, which cannot be imported")
    if not isinstance(model, dict) or "_dynamics.0.weight" not in model:
        raise CheckpointError(f"import: {file} is not a checkpoint of the official TD-MPC2")
    return tdmpc2.canonical({str(k): v for k, v in model.items()})


class Fixture:
    """A folder with a checkpoint, a batch (time first) and what the original computed from them."""

    def __init__(self, folder: Path) -> None:
        meta = folder / "meta.json"
        self.meta: dict[str, Any] = read_json(meta) if meta.exists() else {}
        self.inputs, self.outputs = (load_arrays(folder / f"{k}puts.npz") for k in ("in", "out"))
        for name in ("obs", "action"):
            if self.inputs.get(name, np.zeros(())).ndim < 3:
                raise CheckpointError(f"inputs.npz has no {name!r} of steps of a batch")
        self.weights = read_checkpoint(folder / CHECKPOINT)
        masks = self._masks()
        if masks is not None:
            self.weights["_action_masks"] = masks

    @property
    def given(self) -> dict[str, Array]:
        """Return numbers to compute with, from whichever file they are in."""
        return {**self.outputs, **self.inputs}

    def agent(self) -> TDMPC2:
        """Return our agent with the fixture's weights; nothing in it is left to chance."""
        with odd_shapes():
            return self._agent()

    def _agent(self) -> TDMPC2:
        sizes = tdmpc2.sizes_of(self.weights)
        log_std = sizes.get("log_std", tdmpc2.TDMPC2Config.log_std)
        more = {
            "bins": {**sizes["bins"], **self._options(vmin="low", vmax="high")},
            "scales": self._options(**{f"{k}_coef": k for k in LOSSES}),
            "log_std": tuple(
                self.meta.get(f"log_std_{k}", v)
                for k, v in zip(("min", "max"), log_std, strict=True)
            ),
            **self._options(rho="rho", simnorm_dim="simnorm_dim", entropy_coef="entropy"),
        }
        config = tdmpc2.config_of(self.weights, **more, dropout=0.0, gamma=0.99)
        spec = tdmpc2.spec_of(self.weights, self._images().shape[2:])
        with torch.device("meta"):  # shapes are checked before there is room for them
            tdmpc2.check_weights(TDMPC2(config, spec), self.weights)
        agent = TDMPC2(config, spec)
        tdmpc2.load_weights(agent, self.weights)
        return agent

    def _options(self, **names: str) -> dict[str, Any]:
        """Return the options that the fixture states, under our names."""
        return {ours: self.meta[theirs] for theirs, ours in names.items() if theirs in self.meta}

    def _images(self) -> Array:
        """Return the observations, as we have images: channels last."""
        obs = self.inputs["obs"]
        conv = self.weights.get(f"_encoder.rgb.{tdmpc2.FIRST_CONV}.weight")
        last = conv is None or obs.ndim != 5 or obs.shape[2] != conv.shape[1]
        return obs if last else np.moveaxis(obs, 2, -1)

    def _masks(self) -> Array | None:
        """Return which entries of an action each task has; checkpoints of 2023 do not tell.

        Where the policy's recorded log-deviation is exactly 0, there is none.
        """
        if "_task_emb.weight" not in self.weights or "_action_masks" in self.weights:
            return None
        count, dim = self.weights["_task_emb.weight"].shape[0], tdmpc2.action_dim(self.weights)
        dims, recorded = self.meta.get("action_dims"), self.outputs.get("pi_log_std")
        masks = np.ones((count, dim), np.float32)
        if dims is not None:
            if not isinstance(dims, list) or len(dims) != count:
                raise CheckpointError(f"meta.json: 'action_dims' must be a list of {count} numbers")
            return masks * (np.arange(dim) < np.array(dims, np.int64)[:, None])
        if recorded is not None:
            for i, task in enumerate(self._task(count, recorded.shape[1]).tolist()):
                masks[task] = (recorded[:, i] != 0).any(0)
            return masks
        if any(name.startswith("pi_") for name in self.outputs):
            raise CheckpointError(
                "meta.json lacks 'action_dims' (entries of an action, by task), which checkpoints "
                "of 2023 do not contain either: the policy cannot be compared without them"
            )
        return None

    # -- the batch --------------------------------------------------------------------------------

    def window(self, agent: TDMPC2) -> Window:
        """Return the batch as our update sees it; what is not given is 0."""
        image, obs = agent.model.encoder.image, self._images()
        action = self.inputs["action"]
        steps, batch = action.shape[:2]
        spec = agent.spec.obs["state" if image is None else image]
        _check("obs", obs, (steps + 1, batch, *spec.shape))
        _check("action", action, (steps, batch, agent.spec.action.size))
        pixels = image is not None and not (obs % 1).any() and 0 <= obs.min() <= obs.max() <= 255
        seen = torch.from_numpy(obs.astype(np.uint8 if pixels else np.float32))
        task = self._task(len(agent.spec.tasks), batch)
        named = {"state" if image is None else image: seen}
        if agent.spec.tasks:
            named["task"] = task.expand(steps + 1, batch)
        reward, ends = (self._per_step(k, steps, batch) for k in ("reward", "terminated"))
        return Window(named, torch.from_numpy(action).float(), reward, ends, task, {})

    def target(self, steps: int, batch: int) -> Tensor:
        """Return the targets of the values."""
        return self._per_step("td_target", steps, batch)

    def _per_step(self, name: str, steps: int, batch: int) -> Tensor:
        value = self.given.get(name, np.zeros((steps, batch)))
        if value.size != steps * batch:
            _check(name, value, (steps, batch, 1))
        return torch.from_numpy(value).float().reshape(steps, batch)

    def _task(self, tasks: int, batch: int) -> Tensor:
        """Return the task of each window: given by window, by step, or once for all."""
        value = self.inputs.get("task", self.meta.get("task", 0 if tasks < 2 else None))
        names = self.meta.get("tasks")
        if isinstance(value, str) and isinstance(names, list) and value in names:
            value = names.index(value)
        if tasks < 1:
            return torch.zeros(batch, dtype=torch.int64)
        if value is None:
            raise CheckpointError(f"inputs.npz lacks 'task': the checkpoint has {tasks} of them")
        found = np.asarray(value)
        if found.dtype.kind not in "iuf" or (found.size not in (1, batch) and found.size % batch):
            raise CheckpointError(f"'task' must have one number or {batch}, not {value!r}"[:200])
        rows = np.broadcast_to(found.reshape(-1), batch) if found.size == 1 else found
        rows = rows.reshape(-1, batch)
        if (
            (rows != rows[:1]).any()
            or (rows % 1).any()
            or not 0 <= rows.min() <= rows.max() < tasks
        ):
            raise CheckpointError(f"'task' must be one of 0 to {tasks - 1} in all of a window")
        return torch.from_numpy(rows[0].astype(np.int64))


def _check(name: str, value: Array, shape: tuple[int, ...]) -> None:
    if value.shape != shape:
        raise CheckpointError(f"{name!r} has the shape {value.shape}, not {shape}")


# -- what we compute ------------------------------------------------------------------------------


@torch.no_grad()
def computed(agent: TDMPC2, fixture: Fixture) -> dict[str, Tensor]:
    """Return everything the original wrote down, as we compute it, under its names."""
    model, given, w = agent.model, fixture.given, fixture.window(agent)
    task, shift = w.task, shifts(agent, w, fixture.outputs)
    after, first = (None, None) if shift is None else (shift[1:], shift[0])
    next_z = model.encode({k: v[1:] for k, v in w.obs.items()}, task.expand(w.reward.shape), after)
    total, zs, metrics = agent.model_loss(w, next_z, fixture.target(*w.reward.shape), first)
    reward = model.reward_logits(zs[:-1], w.action, task)
    q = agent.critics(model.about(task, zs[:-1], w.action))
    out = {
        "next_z": next_z, "zs": zs, "q_logits": q, "q_values": agent.critics.decode(q),
        "reward_logits": reward, "reward_values": model.decode(reward), "total_loss": total,
        **{f"{k}_loss": metrics[f"loss/{k}"] for k in LOSSES if f"loss/{k}" in metrics},
    }  # fmt: skip
    if model.termination is not None:
        out["termination_logits"] = model.ends(zs[1:], task)
    size = (len(zs), *w.action.shape[1:])
    noise = given.get("pi_eps", np.zeros(size))
    _check("pi_eps", noise, (min(len(noise), size[0]), *size[1:]))
    eps = torch.from_numpy(noise).float()
    x = model.about(task, zs[: len(eps)])
    out |= _policy(agent.prior.sample(x, eps, agent.mask_of(task)), eps)
    if "two_hot/x" in given:
        x = torch.from_numpy(given["two_hot/x"]).float()
        out |= {"two_hot/x": x, "two_hot/target": agent.config.bins.two_hot(x.reshape(-1))}
    return {k: v for k, v in out.items() if not lacking(k, given, agent.config.episodic)}


def lacking(name: str, given: Mapping[str, Array], episodic: bool) -> list[str]:
    """Return without which given numbers something cannot be computed."""
    needs = NEEDS.get(name, (name,) if name == "pi_eps" else ())
    needs += ("terminated",) if name == "total_loss" and episodic else ()
    return [k for k in needs if k not in given]


def _policy(prior: Prior, eps: Tensor) -> dict[str, Tensor]:
    return {
        "pi_eps": eps, "pi_mean_pre_tanh": prior.mean, "pi_mean": torch.tanh(prior.mean),
        "pi_log_std": prior.log_std, "pi_action": prior.action, "pi_entropy": prior.entropy,
        "pi_scaled_entropy": prior.scaled_entropy,
    }  # fmt: skip


def shifts(agent: TDMPC2, w: Window, outputs: Mapping[str, Array]) -> Tensor | None:
    """Return by how much the original shifted each image at random; None if it did not.

    Its latents tell: of all shifts that it can draw, the one with the nearest latent is taken. A
    latent that is none of them differs all the same.
    """
    model = agent.model
    if model.encoder.image is None:
        return None
    steps, batch = w.reward.shape
    recorded = torch.full((steps + 1, batch, model.latent_dim), torch.nan)
    for name, rows in (("zs", slice(1)), ("next_z", slice(1, None))):
        if name in outputs:
            value = torch.from_numpy(outputs[name]).float()
            recorded[rows] = value[: 1 if name == "zs" else None].reshape(recorded[rows].shape)
    best = torch.full((steps + 1, batch), torch.inf)
    chosen = torch.full((steps + 1, batch, 2), PAD)
    task = w.task.expand(steps + 1, batch)
    for pair in sorted(product(range(2 * PAD + 1), repeat=2), key=lambda x: x != (PAD, PAD)):
        shift = torch.tensor(pair).expand(steps + 1, batch, 2)
        error = (model.encode(w.obs, task, shift) - recorded).abs().amax(-1).nan_to_num(0.0)
        chosen[error < best] = torch.tensor(pair)
        best = torch.minimum(best, error)
        if best.max() <= max(ABS, REL * float(recorded.nan_to_num(0.0).abs().max())):
            break
    return chosen


def check(folder: Path) -> Iterator[Line]:
    """Compare a fixture, line by line."""
    fixture = Fixture(folder)
    agent = fixture.agent()
    found = computed(agent, fixture)
    episodic = agent.config.episodic
    for name, theirs in sorted(fixture.outputs.items()):
        missing = lacking(name, fixture.given, episodic)
        if name in found:
            yield compare(name, found[name], theirs)
        elif name in ENDS and not episodic:
            yield Line(name, np.inf, np.inf, False, "the checkpoint has no _termination")
        elif missing:
            yield not_compared(name, f"the fixture lacks {', '.join(missing)}")
        else:
            yield not_compared(name, "dreamlab does not compute it")
    for name in sorted(set(NAMES) - fixture.outputs.keys()):
        if episodic or name not in ENDS:
            yield not_compared(name, "not recorded")
