"""Networks of TD-MPC2 evaluated on many plans at once, on devices with kernels for it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from dreamlab.accel import latent_plans, plan_ops
from dreamlab.accel.dispatch import use_triton
from dreamlab.accel.latent_plans import Critics, Dynamics, Policy, Reward, Sizes
from dreamlab.accel.rssm_scan import dtype_of, power
from dreamlab.nn.normed import EnsembleNormedMLP, NormedMLP

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
    """Of rewards and values, in symlog space: evenly spaced, and as many above 0 as below."""
    log_std: tuple[float, float]


class Packed(NamedTuple):
    """The networks' weights in the order of the kernels, for environments at some latents."""

    weights: latent_plans.Nets
    mask: Float[Tensor, "n a"] | None
    sizes: Sizes
    log_std: tuple[float, float]


def fits(nets: Nets, samples: int) -> bool:
    """Return whether the kernels take networks of these shapes, and so many plans."""
    out: Any = nets.dynamics.out
    last: Any = nets.policy.out
    group, (d, w) = out.act.dim, out.linear.weight.shape
    return group == power(group) and latent_plans.fits(d, w, last.weight.shape[0] // 2, samples)


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
    out: Any = nets.dynamics.out
    with torch.autocast(z.device.type, enabled=False):
        z = z.to(dtype).float()
        task = None if task is None else task.to(dtype).float()
        layers = _hidden(nets.dynamics, z, task, dtype)
        layers += [_cast(out.linear.weight, dtype), out.linear.bias, out.norm.scale, out.norm.shift]
        dynamics = Dynamics(*layers)
        policy = _policy(nets.policy, z, task, dtype)
        critics = _critics(nets.critics, z, task, dtype)
        reward, centre = _reward(nets.reward, z, task, dtype), _centre(nets.bins)
    w, a = out.linear.weight.shape[1], policy.out.shape[0] // 2
    sizes = (len(z), horizon, d, w, a, out.act.dim, len(centre), critics.first.shape[1])
    return Packed(
        latent_plans.Nets(dynamics, policy, reward, critics, centre),
        None if mask is None else mask.contiguous(), Sizes(*sizes), nets.log_std,
    )  # fmt: skip


def gains(
    packed: Packed,
    plans: Float[Tensor, "n s h a"],
    last: Float[Tensor, "m s a"],
    pair: Int[Tensor, " 2"],
) -> Float[Tensor, "h+2 n s"]:
    """Return the reward of each step, then half of each critic's value of where plans end."""
    given = (plans.contiguous(), last.contiguous(), pair.contiguous())
    return plan_ops.plan_gains(*given, *_arguments(packed))


def proposals(packed: Packed, noise: Float[Tensor, "h m p a"]) -> Float[Tensor, "n p h a"]:
    """Return the policy's own plans for noise."""
    return plan_ops.policy_plans(noise.contiguous(), *_arguments(packed))


def _arguments(p: Packed) -> tuple[Any, ...]:
    return p.mask, p.weights.flat(), list(p.sizes), list(p.log_std)


def _cast(x: Float[Tensor, "*b"], dtype: torch.dtype) -> Float[Tensor, "*b"]:
    return x.to(dtype).contiguous()


def _hidden(
    net: NormedMLP,
    z: Float[Tensor, "n d"],
    task: Float[Tensor, "n e"] | None,
    dtype: torch.dtype,
    acts: bool = True,
) -> list[Float[Tensor, " ..."]]:
    """Return the hidden layers [out, in], the first split into its start, latent and action."""
    one: Any = net.hidden[0]
    two: Any = net.hidden[1]
    weight, bias = one.linear.weight.to(dtype), one.linear.bias.float()
    d, known = z.shape[1], z.shape[1] + (0 if task is None else task.shape[1])
    elsewhere = bias.expand(len(z), -1)
    if task is not None:
        elsewhere = elsewhere + _times(task, weight[:, d:known])
    here = elsewhere + _times(z, weight[:, :d])
    found = [torch.stack([here, elsewhere]), weight[:, :d].contiguous()]
    found += [weight[:, known:].t().contiguous()] if acts else []
    found += [one.norm.scale, one.norm.shift, _cast(two.linear.weight, dtype), two.linear.bias]
    return [*found, two.norm.scale, two.norm.shift]


def _times(x: Float[Tensor, "n d"], weight: Float[Tensor, "k d"]) -> Float[Tensor, "n k"]:
    """Multiply few rows: a compiler makes one sum of it, and no copy of the weight."""
    return (x[:, None] * weight.float()).sum(-1)


def _policy(
    net: NormedMLP,
    z: Float[Tensor, "n d"],
    task: Float[Tensor, "n e"] | None,
    dtype: torch.dtype,
) -> Policy:
    out: Any = net.out
    layers = _hidden(net, z, task, dtype, acts=False)
    every = [*layers, _cast(out.weight, dtype), out.bias]
    return Policy(*every)


def _reward(
    net: NormedMLP,
    z: Float[Tensor, "n d"],
    task: Float[Tensor, "n e"] | None,
    dtype: torch.dtype,
) -> Reward:
    """Return the reward's layers, turned to the critics' layout: one kernel computes both."""
    out: Any = net.out
    weight, bias = paired(out.weight.to(dtype).t(), 0.0), paired(out.bias, NEVER)
    start, first, act, *norm, second, bias2, scale2, shift2 = _hidden(net, z, task, dtype)
    turned = (first.t().contiguous(), act, *norm, second.t().contiguous())
    every = [start, *turned, bias2, scale2, shift2, weight, bias]
    return Reward(*every)


def _critics(
    net: EnsembleNormedMLP,
    z: Float[Tensor, "n d"],
    task: Float[Tensor, "n e"] | None,
    dtype: torch.dtype,
) -> Critics:
    """Return the critics' layers [critics, in, out]."""
    one, two, out = (layer for layer in net.linears)
    (n, d), first = z.shape, _cast(one.weight, dtype)
    start = one.bias.float().expand(-1, n, -1)
    if task is not None:
        start = start + task @ first[:, d : d + task.shape[1]].float()
    (scale1, shift1), (scale2, shift2) = ((x.scale, x.shift) for x in net.norms)
    hidden = (start.contiguous(), first, scale1, shift1, _cast(two.weight, dtype), two.bias)
    last = (paired(out.weight.to(dtype), 0.0), paired(out.bias, NEVER))
    return Critics(*hidden, scale2, shift2, *last)


def paired(x: Float[Tensor, "*b k"], pad: float) -> Float[Tensor, "*b m"]:
    """Order k columns, one for each bin, so that opposite bins are half of the columns apart.

    The first half are the bins above the middle and the middle one, the second those below. What
    fills them up to a power of two is `pad`.
    """
    below, middle, above = x.tensor_split([x.shape[-1] // 2, (x.shape[-1] + 1) // 2], -1)
    half = power(max(above.shape[-1] + middle.shape[-1], latent_plans.TILE))
    halves = (torch.cat([above, middle], -1), below.flip(-1))
    return torch.cat([F.pad(x, (0, half - x.shape[-1]), value=pad) for x in halves], -1)


def _centre(bins: Float[Tensor, " k"]) -> Float[Tensor, " half"]:
    """Return what the first half of the columns of `paired` stand for; the middle bin is 0."""
    first = paired(bins, 0.0).chunk(2)[0]
    return torch.where(torch.arange(len(first), device=bins.device) < len(bins) // 2, first, 0.0)
