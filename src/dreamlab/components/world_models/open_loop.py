"""Open-loop evaluation: filter sequences for some steps, then imagine without observations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from dreamlab.components.world_models.protocol import (
    Policy,
    WorldModel,
    flatten_time,
    map_latent,
)
from dreamlab.core.captions import Captions, captioned, step_head
from dreamlab.core.types import Array, Curves, Metrics, Obs, Report

HORIZONS = (1, 2, 4, 8, 16, 32)
BLACK_FRAMES = 10
"""Black frames at the end of a video, to mark where a looping player restarts."""


@dataclass(frozen=True)
class Sequences:
    """Windows [b, t] to evaluate; `action[:, i]` led to step i, `start` is the state before."""

    obs: Obs
    action: Shaped[Tensor, "b t ..."]
    reward: Float[Tensor, "b t"]
    is_first: Bool[Tensor, "b t"]
    is_terminal: Bool[Tensor, "b t"]
    start: Any


@dataclass(frozen=True)
class OpenLoop:
    """Predictions [b, t, ...]: reconstructed up to `context`, imagined after it."""

    obs: Obs
    reward: Float[Tensor, "b t"]
    cont: Float[Tensor, "b t"]
    context: int
    waking: Any
    """The last posterior states [b, ...]."""


@torch.no_grad()
def open_loop(model: WorldModel, seq: Sequences, context: int) -> OpenLoop:
    """Filter sequences for `context` steps, then imagine with the recorded actions."""
    seen = model.observe(
        {k: v[:, :context] for k, v in seq.obs.items()},
        seq.action[:, :context],
        seq.is_first[:, :context],
        seq.start,
    )
    waking = map_latent(lambda x: x[:, -1], seen.latent)
    steps = iter([*seq.action[:, context:].unbind(1), seq.action[:, -1]])
    dreamt, _ = model.imagine(waking, lambda _: next(steps), seq.reward.shape[1] - context)
    after = lambda a, b: torch.cat([a, b[:, 1:].to(a.dtype)], 1)  # noqa: E731
    flat = model.predict(flatten_time(map_latent(after, seen.latent, dreamt)))
    shape = seq.reward.shape
    obs = {k: v.view(*shape, *v.shape[1:]) for k, v in flat["obs"].items()}
    reward, cont = flat["reward"].view(shape), flat["cont"].view(shape)
    return OpenLoop(obs, reward, cont, context, waking)


def report(model: WorldModel, seq: Sequences, policy: Policy) -> Report:
    """Return videos, curves and metrics of an open-loop prediction of the second half."""
    context = seq.reward.shape[1] // 2
    loop = open_loop(model, seq, context)
    films = {
        f"openloop/{k}": film(seq.obs[k][:6].cpu().numpy(), v[:6].cpu().numpy(), context)
        for k, v in loop.obs.items()
        if model.decoded[k].is_image
    }
    row = int(alive(seq, context)[:, -1].int().argmax())  # one without a new episode, if any
    one = lambda x: x[row].float().reshape(x.shape[1], -1).cpu().numpy()  # noqa: E731
    curves = {
        f"openloop/{k}": Curves(one(seq.obs[k]), one(v), context)
        for k, v in loop.obs.items()
        if not (model.decoded[k].is_image or model.decoded[k].is_discrete)
    }
    curves["openloop/reward"] = Curves(one(seq.reward), one(loop.reward), context)
    metrics = {**errors(model, seq, loop), **exploit_gap(model, seq, loop, policy)}
    return Report(metrics, films, curves)


def alive(seq: Sequences, context: int) -> Bool[Tensor, "b h"]:
    """Return which imagined steps, after `context`, belong to the first episode."""
    return torch.cumsum(seq.is_first[:, context:].int(), 1) == 0


def errors(model: WorldModel, seq: Sequences, loop: OpenLoop) -> Metrics:
    """Return errors by horizon, and calibration of imagined reward and continuation."""
    context, ok = loop.context, alive(seq, loop.context).float()
    out: Metrics = {}

    def by_horizon(name: str, error: Float[Tensor, "b h"]) -> None:
        for h in HORIZONS:
            if h <= error.shape[1]:
                weight = ok[:, h - 1]
                out[f"{name}_h{h}"] = (error[:, h - 1] * weight).sum() / weight.sum().clamp(min=1)

    for name, guess in loop.obs.items():
        truth = seq.obs[name][:, context:].float()
        if model.decoded[name].is_image:
            truth = truth / 255
        elif model.decoded[name].is_discrete:
            continue
        error = (guess[:, context:].reshape(*ok.shape, -1) - truth.reshape(*ok.shape, -1)).square()
        by_horizon(f"openloop/{name}", error.mean(-1))
    gap = loop.reward[:, context:] - seq.reward[:, context:]
    by_horizon("openloop/reward", gap.abs())
    total = ok.sum().clamp(min=1)
    goes_on = (~seq.is_terminal[:, context:]).float() * model.discount_of(loop.waking)[:, None]
    out["openloop/reward_bias"] = (gap * ok).sum() / total
    out["openloop/cont_bias"] = ((loop.cont[:, context:] - goes_on) * ok).sum() / total
    out["openloop/cont_brier"] = ((loop.cont[:, context:] - goes_on).square() * ok).sum() / total
    return out


@torch.no_grad()
def exploit_gap(model: WorldModel, seq: Sequences, loop: OpenLoop, policy: Policy) -> Metrics:
    """Return how far the policy's imagined returns exceed the recorded returns.

    Both are sums of rewards over the same steps, discounted as in the window's task, of windows
    without a new episode only.
    A gap that grows while real returns do not means that the policy exploits model errors.
    """
    horizon = seq.reward.shape[1] - loop.context
    latent, _ = model.imagine(loop.waking, policy, horizon)
    guess = model.predict_reward(latent)
    going = torch.cumprod(guess["cont"][:, 1:], 1) / guess["cont"][:, 1:].clamp(min=1e-6)
    dreamt = (guess["reward"][:, 1:] * going).sum(1)
    ok = alive(seq, loop.context)[:, -1].float()
    powers = model.discount_of(loop.waking)[:, None] ** torch.arange(horizon, device=ok.device)
    real = (seq.reward[:, loop.context :] * powers).sum(1)
    total = ok.sum().clamp(min=1)
    return {
        "dream_return": (dreamt * ok).sum() / total,
        "real_return": (real * ok).sum() / total,
        "exploit_gap": ((dreamt - real) * ok).sum() / total,
    }


def film(truth: Array, dream: Array, context: int) -> Array:
    """Return labeled frames: truth above dream above error, sequences side by side, then black.

    The border is green for context steps and red for imagined ones. `truth` is bytes, `dream` the
    same in (0, 1), both [b, t, h, w, c].
    """
    heads = [step_head(t, context, truth.shape[1]) for t in range(truth.shape[1])]
    real, guess = truth.astype(np.float32) / 255, np.clip(dream, 0, 1)
    error = (guess - real + 1) / 2
    rows = [_rgb((x * 255).astype(np.uint8)) for x in (real, guess, error)]
    stacked = np.concatenate(rows, 2)
    b = max(1, truth.shape[2] // 32)  # keep the border thin: it hides pixels
    for t, (_, color) in enumerate(heads):
        stacked[:, t, :b], stacked[:, t, -b:] = color, color
        stacked[:, t, :, :b], stacked[:, t, :, -b:] = color, color
    frames = captioned(
        np.concatenate(list(stacked), 2), Captions(heads, rows=("truth", "dream", "error"))
    )
    black = np.zeros((BLACK_FRAMES, *frames.shape[1:]), np.uint8)
    return np.concatenate([frames, black])


def _rgb(image: Array) -> Array:
    """Return bytes with three channels."""
    channels = image.shape[-1]
    if channels == 3:
        return image
    return np.repeat(image[..., :1] if channels < 3 else image[..., -1:], 3, -1)
