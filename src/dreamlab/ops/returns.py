"""Returns and advantages: pure tensor functions, differentiable in every argument."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dreamlab.accel.dispatch import use_triton
from dreamlab.accel.recurrence import recurrence


def lambda_return(
    reward: Float[Tensor, "b t"],
    discount: Float[Tensor, "b t"],
    value: Float[Tensor, "b t"],
    lam: float | Float[Tensor, "b t"],
) -> Float[Tensor, "b t-1"]:
    """Compute the TD(lambda) return of every step but the last.

    step       0     1     2     3 = t-1
    value      v0    v1    v2    v3        value of the state at that step
    reward     -     r1    r2    r3        received on arriving there
    discount   -     d1    d2    d3        0 where the episode terminated on arrival
    return     R0    R1    R2              R[i] = r[i+1] + d[i+1] * ((1-lam) v[i+1] + lam R[i+1])

    The last return bootstraps from v3 alone. lam = 1 is the Monte Carlo return, lam = 0 one step.
    A tensor of lam is indexed like the discount: lam[i+1] is the weight of R[i+1].
    """
    if isinstance(lam, Tensor):
        lam = lam[:, 1:]
    target = reward[:, 1:] + discount[:, 1:] * (1 - lam) * value[:, 1:]
    decay = lam * discount[:, 1:]
    ret = value[:, -1]
    if use_triton(target) and not (target.requires_grad or ret.requires_grad):
        return recurrence(target.contiguous(), decay.contiguous(), ret.contiguous())
    returns: list[Tensor] = []
    for i in reversed(range(target.shape[1])):
        ret = target[:, i] + decay[:, i] * ret
        returns.append(ret)
    return torch.stack(returns[::-1], dim=1)


def gae(
    reward: Float[Tensor, "b t"],
    value: Float[Tensor, "b t"],
    is_last: Bool[Tensor, "b t"],
    is_terminal: Bool[Tensor, "b t"],
    gamma: float,
    lam: float,
) -> Float[Tensor, "b t-1"]:
    """Compute generalized advantages of every step but the last (Schulman et al. 2016, eq. 16).

    step         0     1     2 (last)  3 (first)  4
    reward       -     r1    r2        -          r4      received on arriving there
    advantage    A0    A1    x         A3                 A[i] = d[i] + gamma lam A[i+1]
    d[i] = r[i+1] + gamma v[i+1] - v[i], without v[i+1] if step i+1 is terminal.
    The sum stops at is_last. The last step of an episode is not trained on: its action is
    void, and its advantage (x) is 0.
    """
    cont, same = ((~x).to(value.dtype) for x in (is_terminal, is_last))
    return generalised_advantage(reward, value, cont, same, gamma, lam)


def generalised_advantage(
    reward: Float[Tensor, "b t"],
    value: Float[Tensor, "b t"],
    cont: Float[Tensor, "b t"],
    same: Float[Tensor, "b t"],
    gamma: float,
    lam: float,
) -> Float[Tensor, "b t-1"]:
    """Compute advantages as `gae` does; `cont` is 0 at terminal steps, `same` at last ones.

    A step may be terminal but not last (a lost life): nothing propagates from beyond it.
    """
    delta = reward[:, 1:] + gamma * value[:, 1:] * cont[:, 1:] - value[:, :-1]
    real = same[:, :-1]
    decay = gamma * lam * same[:, 1:] * cont[:, 1:]
    delta = delta * real
    advantage = torch.zeros_like(value[:, 0])
    out: list[Tensor] = []
    for d, k in zip(reversed(delta.unbind(1)), reversed(decay.unbind(1)), strict=True):
        advantage = d + k * advantage
        out.append(advantage)
    return torch.stack(out[::-1], dim=1) * real


def n_step(
    reward: Float[Tensor, "b t"],
    is_last: Bool[Tensor, "b t"],
    is_terminal: Bool[Tensor, "b t"],
    gamma: float,
) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"], Int[Tensor, " b"]]:
    """Compute a window's discounted reward, the bootstrap factor, and the bootstrap step.

    step      0    1    2    3 = n         target = sum_i gamma^(i-1) r[i] + factor * V(obs[at])
    reward    -    r1   r2   r3            at = n, or the first step at which the episode ends;
                                           factor = gamma^at, or 0 if that step is terminal
    """
    n = reward.shape[1] - 1
    ended = is_last[:, 1:].to(torch.int64).cumsum(1)  # > 0 from the end of the episode on
    before_end = (ended - is_last[:, 1:].to(torch.int64)) == 0  # the last step's reward counts
    powers = gamma ** torch.arange(n, device=reward.device, dtype=reward.dtype)
    total = (reward[:, 1:] * before_end * powers).sum(1)
    at = before_end.sum(1)
    rows = torch.arange(len(at), device=at.device)
    factor = gamma ** at.to(reward.dtype) * (~is_terminal[rows, at])
    return total, factor, at


def discounted_return(reward: Float[Tensor, "b t"], gamma: float) -> Float[Tensor, "b t"]:
    """Compute the discounted sum of rewards from each step on, including its own reward."""
    total = torch.zeros_like(reward[:, 0])
    out: list[Tensor] = []
    for r in reversed(reward.unbind(1)):
        total = r + gamma * total
        out.append(total)
    return torch.stack(out[::-1], dim=1)
