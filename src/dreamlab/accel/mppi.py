"""One refit of MPPI as one kernel, for GPUs."""

from __future__ import annotations

import torch
from torch import Tensor

from dreamlab.accel.dispatch import kernels
from dreamlab.accel.rssm_scan import power

TUNING = {"warps": 4}
"""Chosen on an H200 by benchmarks/plan_kernels.py."""
MOST_NUMBERS = 2**15
"""Of one problem's candidates, padded: a program holds them all."""
MOST = 1024
SCHEMA = (
    "(Tensor candidates, Tensor score, int elites, float temperature, float low, float high) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def fits(candidates: Tensor) -> bool:
    """Return whether a program can hold one problem's candidates [b, n, h, a]."""
    num, size = candidates.shape[1], candidates.shape[2] * candidates.shape[3]
    return num <= MOST and power(num) * power(size) <= MOST_NUMBERS


@torch.library.custom_op("dreamlab::mppi_tell", mutates_args=(), schema=SCHEMA)
def tell(
    candidates: Tensor, score: Tensor, elites: int, temperature: float, low: float, high: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return mean, standard deviation, elites, their scores and weights; the best come first."""
    found = _outputs(candidates, elites)
    b, num, h, a = candidates.shape
    kernels("mppi").tell_kernel[(b,)](
        candidates, score, *found, temperature, low, high, num, elites, h * a,
        N=power(num), E=power(elites), D=power(h * a), num_warps=TUNING["warps"],
    )  # fmt: skip
    return found


@tell.register_fake
def _(
    candidates: Tensor, score: Tensor, elites: int, temperature: float, low: float, high: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _outputs(candidates, elites)


def _outputs(candidates: Tensor, elites: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    b, _, h, a = candidates.shape
    make = lambda *shape: torch.empty(b, *shape, device=candidates.device)  # noqa: E731
    return make(h, a), make(h, a), make(elites, h, a), make(elites), make(elites)
