"""Networks of TD-MPC2 evaluated on many plans at once, on devices with kernels for it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from dreamlab.accel import latent_plans
from dreamlab.accel.dispatch import use_triton
from dreamlab.accel.latent_plans import Critics, Dynamics, Policy, Reward, Sizes
from dreamlab.accel.rssm_scan import dtype_of, power
from dreamlab.nn.normed import EnsembleNormedMLP, NormedMLP, SimNorm

PRECISIONS = {torch.bfloat16}
"""Where kernels are faster than the library's products, which float32 is better left to."""
NEVER = -6e4
"""Logit of what pads the bins."""


class Nets(NamedTuple):
    """The networks of a plan, each with two hidden layers of the same width."""

    dynamics: NormedMLP
    reward: NormedMLP
    policy: NormedMLP
    """Returns mean and log-deviation, the latter to be squashed into `log_std`."""
    critics: EnsembleNormedMLP
    bins: Float[Tensor, " k"]
    """Evenly spaced around 0, in symlog space: of rewards and values."""
    log_std: tuple[float, float]


class Packed(NamedTuple):
    """The networks' weights in the order of the kernels, for environments at some latents."""

    dynamics: Dynamics
    policy: Policy
    reward: Reward
    critics: Critics
    centre: Float[Tensor, " half"]
    mask: Float[Tensor, "n a"] | None
    sizes: Sizes
    log_std: tuple[float, float]


def fits(nets: Nets, samples: int) -> bool:
    """Return whether the kernels take networks of these shapes, and so many plans."""
    out: Any = nets.dynamics.out
    group = out.act.dim if isinstance(out.act, SimNorm) else 0
    d, w = out.linear.weight.shape
    even = group > 0 and group & (group - 1) == 0
    symmetric = bool((nets.bins + nets.bins.flip(0)).abs().max() < 1e-4)
    a: Any = nets.policy.out
    return even and symmetric and latent_plans.fits(d, w, a.weight.shape[0] // 2, samples)


def available(x: Float[Tensor, " ..."]) -> bool:
    """Return whether to evaluate plans from latents like this with the kernels."""
    return use_triton(x) and dtype_of(x) in PRECISIONS


def pack(
    nets: Nets,
    z: Float[Tensor, "n d"],
    task: Float[Tensor, "n e"] | None,
    mask: Float[Tensor, "n a"] | None,
    horizon: int,
) -> Packed:
    """Return the weights for plans from latents, with task embeddings and masks of actions."""
    dtype, d = dtype_of(z), z.shape[-1]
    with torch.autocast(z.device.type, enabled=False):
        z = z.to(dtype).float()
        task = None if task is None else task.to(dtype).float()
        out: Any = nets.dynamics.out
        critics = _critics(nets.critics, task, (len(z), d), dtype)
        half = critics.out.shape[-1] // 2
        a = nets.policy.out.weight.shape[0] // 2  # type: ignore[operator]
        w, step = out.linear.weight.shape[1], critics.first.shape[1]
        return Packed(
            Dynamics(
                *_hidden(nets.dynamics, z, task, dtype, True), _cast(out.linear.weight, dtype),
                out.linear.bias, out.norm.scale, out.norm.shift,
            ),
            _policy(nets.policy, z, task, dtype),
            _reward(nets.reward, z, task, dtype),
            critics,
            _centre(nets.bins),
            None if mask is None else mask.contiguous(),
            Sizes(len(z), horizon, d, w, a, out.act.dim, half, step),
            nets.log_std,
        )  # fmt: skip


def gains(
    packed: Packed,
    plans: Float[Tensor, "n s h a"],
    last: Float[Tensor, "m s a"],
    pair: Int[Tensor, " 2"],
) -> Float[Tensor, "h+1 n s"]:
    """Return the reward of each step, and the mean of two critics' values of where plans end."""
    p = packed
    found = latent_plans.plan_gains(
        plans.contiguous(), last.contiguous(), pair.contiguous(), p.mask, p.centre,
        list(p.dynamics), list(p.policy), list(p.reward), list(p.critics), list(p.sizes),
        *p.log_std,
    )  # fmt: skip
    return torch.cat([found[:-2], found[-2:].mean(0, keepdim=True)])


def proposals(packed: Packed, noise: Float[Tensor, "h m p a"]) -> Float[Tensor, "n p h a"]:
    """Return the policy's own plans for noise."""
    p = packed
    return latent_plans.policy_plans(
        noise.contiguous(), p.mask, list(p.dynamics), list(p.policy), list(p.sizes), *p.log_std
    )


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype).contiguous()


def _hidden(
    net: NormedMLP,
    z: Float[Tensor, "n d"],
    task: Float[Tensor, "n e"] | None,
    dtype: torch.dtype,
    acts: bool,
) -> list[Tensor]:
    """Return the hidden layers [out, in], the first split into its start, latent and action."""
    one, two = (net.hidden[i] for i in range(2))
    weight, bias = one.linear.weight.to(dtype), one.linear.bias.float()
    d, known = z.shape[1], z.shape[1] + (0 if task is None else task.shape[1])
    any_state = bias.expand(len(z), -1)
    if task is not None:
        any_state = any_state + F.linear(task, weight[:, d:known].float())
    here = any_state + F.linear(z, weight[:, :d].float())
    found = [torch.stack([here, any_state]), weight[:, :d].contiguous()]
    found += [weight[:, known:].t().contiguous()] if acts else []
    found += [one.norm.scale, one.norm.shift, _cast(two.linear.weight, dtype), two.linear.bias]
    return [*found, two.norm.scale, two.norm.shift]


def _policy(net: NormedMLP, z: Tensor, task: Tensor | None, dtype: torch.dtype) -> Policy:
    out: Any = net.out
    return Policy(*_hidden(net, z, task, dtype, False), _cast(out.weight, dtype), out.bias)


def _reward(net: NormedMLP, z: Tensor, task: Tensor | None, dtype: torch.dtype) -> Reward:
    """Return the reward's layers, turned to the critics' layout: one kernel computes both."""
    r, out = Reward(*_hidden(net, z, task, dtype, True), *(z, z)), net.out
    weight, bias = _paired(out.weight.to(dtype).t(), out.bias)  # type: ignore[operator]
    first, second = (x.t().contiguous() for x in (r.first, r.second))
    return r._replace(first=first, second=second, out=weight, out_bias=bias)


def _critics(
    net: EnsembleNormedMLP, task: Tensor | None, shape: tuple[int, int], dtype: torch.dtype
) -> Critics:
    one, two, out = (layer for layer in net.linears)
    (n, d), first = shape, one.weight.to(dtype)
    start = one.bias.float().expand(-1, n, -1)
    if task is not None:
        start = start + task @ first[:, d : d + task.shape[1]].float()
    norms = [(x.scale, x.shift) for x in net.norms]
    weight, bias = _paired(out.weight.to(dtype), out.bias[:, 0])
    second = _cast(two.weight, dtype)
    return Critics(
        start.contiguous(), first.contiguous(), *norms[0], second, two.bias, *norms[1], weight, bias
    )


def _paired(
    weight: Float[Tensor, "*b w k"], bias: Float[Tensor, "*b k"]
) -> tuple[Float[Tensor, "*b w m"], Float[Tensor, "*b m"]]:
    """Order outputs so that opposite bins are half of the columns apart; pad with impossible ones.

    The first half are the bins above the middle, then the middle one; the second those below.
    """
    num = bias.shape[-1]
    low, up = num // 2, (num + 1) // 2
    half = power(max(up, latent_plans.TILE))
    parts = [((up, num), False), ((low, up), False), (None, half - up), ((0, low), True)]
    return tuple(_arranged(x, parts, half - low, pad) for x, pad in ((weight, 0.0), (bias, NEVER)))  # type: ignore[return-value]


def _arranged(x: Tensor, parts: list[Any], rest: int, pad: float) -> Tensor:
    found: list[Tensor] = []
    for span, other in [*parts, (None, rest)]:
        if span is None:
            found.append(x.new_full((*x.shape[:-1], other), pad))
        else:
            piece = x[..., slice(*span)]
            found.append(piece.flip(-1) if other else piece)
    return torch.cat(found, -1)


def _centre(bins: Float[Tensor, " k"]) -> Float[Tensor, " half"]:
    """Return what the first half of the columns of `_paired` stand for."""
    num = len(bins)
    half = power(max((num + 1) // 2, latent_plans.TILE))
    above = bins[(num + 1) // 2 :]
    return F.pad(above, (0, half - len(above)))
