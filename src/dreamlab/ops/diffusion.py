"""Noise schedules and single sampler steps: DDPM, DDIM, flow matching.

`abar` is the fraction of the data's variance left at a noise level (the product of 1 - beta); it
must broadcast to what it multiplies. Level 0 has the least noise; below it there is none: `abar` =
1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

Betas = Literal["squaredcos_cap_v2", "vp", "linear"]
Prediction = Literal["epsilon", "sample", "v"]
VP_MIN, VP_MAX = 0.1, 10.0
LINEAR_FIRST, LINEAR_LAST = 1e-4, 0.02
LEAST_VARIANCE = 1e-20


def noise_levels(kind: Betas, num: int) -> Float[Tensor, " {num}"]:
    """Return `abar` of each of `num` noise levels.

    - squaredcos_cap_v2: Nichol & Dhariwal 2021; betas are at most 0.999.
    - vp: the variance-preserving process in `num` steps (Xiao et al. 2022), as in Diffusion-QL.
    - linear: Ho et al. 2020, for 1000 levels; fewer levels use the same range of betas.
    """
    if kind == "squaredcos_cap_v2":
        share = [math.cos((i / num + 0.008) / 1.008 * math.pi / 2) ** 2 for i in range(num + 1)]
        betas = [min(1 - share[i + 1] / share[i], 0.999) for i in range(num)]
    elif kind == "vp":
        steps = [(2 * i - 1) * 0.5 * (VP_MAX - VP_MIN) / num**2 for i in range(1, num + 1)]
        betas = [1 - math.exp(-VP_MIN / num - x) for x in steps]
    else:
        betas = torch.linspace(LINEAR_FIRST, LINEAR_LAST, num).tolist()
    # single precision, as in the libraries whose weights must reproduce the same actions
    return (1 - torch.tensor(betas, dtype=torch.float32)).cumprod(0)


def spaced_levels(num: int, steps: int) -> list[tuple[int, int]]:
    """Return the levels visited by `steps` of `num`, from the noisiest, each with its successor.

    They are num // steps apart and end at level 0; its successor is -1: no noise.
    """
    stride = num // steps
    return [(stride * i, stride * (i - 1)) for i in reversed(range(1, steps))] + [(0, -1)]


def add_noise(
    x: Float[Tensor, "*b"], noise: Float[Tensor, "*b"], abar: Float[Tensor, " ..."]
) -> Float[Tensor, "*b"]:
    """Add noise to data at a noise level."""
    return abar.sqrt() * x + (1 - abar).sqrt() * noise


def network_target(
    x: Float[Tensor, "*b"],
    noise: Float[Tensor, "*b"],
    abar: Float[Tensor, " ..."],
    kind: Prediction,
) -> Float[Tensor, "*b"]:
    """Return the training target of a network that predicts `kind`."""
    if kind == "epsilon":
        return noise
    return x if kind == "sample" else abar.sqrt() * noise - (1 - abar).sqrt() * x


def clean_and_noise(
    out: Float[Tensor, "*b"], noisy: Float[Tensor, "*b"], abar: Float[Tensor, " ..."],
    kind: Prediction,
) -> tuple[Float[Tensor, "*b"], Float[Tensor, "*b"]]:  # fmt: skip
    """Recover the data and the noise from a network's output."""
    signal, spread = abar.sqrt(), (1 - abar).sqrt()
    if kind == "epsilon":
        return (noisy - spread * out) / signal, out
    if kind == "sample":
        return out, (noisy - signal * out) / spread
    return signal * noisy - spread * out, signal * out + spread * noisy


def ddpm_step(
    clean: Float[Tensor, "*b"],
    noisy: Float[Tensor, "*b"],
    abar: Float[Tensor, ""],
    before: Float[Tensor, ""],
    noise: Float[Tensor, "*b"] | None,
) -> Float[Tensor, "*b"]:
    """Sample the previous level given the predicted data (Ho et al. 2020, eq. 7).

    The variance is the posterior's; without noise, return the mean.
    """
    alpha = abar / before
    mean = (
        before.sqrt() * (1 - alpha) / (1 - abar) * clean
        + alpha.sqrt() * (1 - before) / (1 - abar) * noisy
    )
    if noise is None:
        return mean
    variance = (1 - before) / (1 - abar) * (1 - alpha)
    return mean + variance.clamp(min=LEAST_VARIANCE).sqrt() * noise


def ddim_step(
    clean: Float[Tensor, "*b"], noise: Float[Tensor, "*b"], before: Float[Tensor, ""]
) -> Float[Tensor, "*b"]:
    """Compute the previous level deterministically (DDIM, Song et al. 2021, eq. 12, eta = 0)."""
    return before.sqrt() * clean + (1 - before).sqrt() * noise


# -- flow matching --------------------------------------------------------------------------------


def flow_path(
    x: Float[Tensor, "*b"], noise: Float[Tensor, "*b"], time: Float[Tensor, " ..."]
) -> tuple[Float[Tensor, "*b"], Float[Tensor, "*b"]]:
    """Return the point on the line from noise (time 0) to data (time 1), and its velocity."""
    return time * x + (1 - time) * noise, x - noise


def noisy_times(num: int, like: Float[Tensor, " ..."]) -> Float[Tensor, " {num}"]:
    """Sample flow times, denser near the noise: 0.999 (1 - Beta(1.5, 1))."""
    uniform = torch.rand(num, device=like.device)
    return 0.999 * (1 - uniform ** (1 / 1.5))  # inverse of the CDF x^1.5


Velocity = Callable[[Tensor, float], Tensor]


def euler_step(
    velocity: Velocity, x: Float[Tensor, "*b"], time: float, size: float
) -> Float[Tensor, "*b"]:
    """Integrate a flow over `size` with one Euler step."""
    return x + size * velocity(x, time)


def rk4_step(
    velocity: Velocity, x: Float[Tensor, "*b"], time: float, size: float
) -> Float[Tensor, "*b"]:
    """Integrate a flow over `size` with one classical Runge-Kutta step."""
    k1 = velocity(x, time)
    k2 = velocity(x + 0.5 * size * k1, time + 0.5 * size)
    k3 = velocity(x + 0.5 * size * k2, time + 0.5 * size)
    k4 = velocity(x + size * k3, time + size)
    return x + size / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
