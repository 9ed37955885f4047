"""Flow-matching policy (Lipman et al. 2023): a learned velocity from noise to actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from dreamlab.components.policies.generative import (
    Estimate,
    GenerativeConfig,
    GenerativePolicy,
    Guided,
)
from dreamlab.core.limits import PositiveInt
from dreamlab.core.types import Obs, Spec
from dreamlab.ops.diffusion import euler_step, flow_path, noisy_times, rk4_step


@dataclass(frozen=True)
class FlowConfig(GenerativeConfig):
    """Distribution of training times, and the integrator."""

    times: Literal["noisy", "uniform"] = "noisy"
    """`noisy` samples more times near the noise: 0.999 (1 - Beta(1.5, 1))."""
    sampler: Literal["euler", "rk4"] = "euler"
    sample_steps: PositiveInt = 10


class FlowPolicy(GenerativePolicy):
    """Learns the velocity from noise (time 0) to actions (time 1); samples by integrating it."""

    Config = FlowConfig

    def __init__(self, config: FlowConfig, spec: Spec) -> None:
        super().__init__(config, spec)
        self.config, self.time_scale = config, self.net.flow_scale

    def estimate(self, obs: Obs, action: Float[Tensor, "b h a"]) -> Estimate:
        rows = len(action)
        noisy = self.config.times == "noisy"
        time = noisy_times(rows, action) if noisy else torch.rand(rows, device=action.device)
        wide = time[:, None, None]
        x, velocity = flow_path(action, torch.randn_like(action), wide)
        out = self.net(x, self.time_scale * time, self.learnt_cond(obs))
        loss = (out - velocity).square().mean((1, 2))
        signal = time.square() / (time.square() + (1 - time).square())
        return Estimate(loss, x + (1 - wide) * out, signal)

    def denoise(
        self, x: Float[Tensor, "b h a"], cond: Float[Tensor, "b t d"], random: bool,
        guided: Guided | None,
    ) -> Float[Tensor, "b h a"]:  # fmt: skip
        steps = self.config.sample_steps
        step = euler_step if self.config.sampler == "euler" else rk4_step

        def velocity(x: Float[Tensor, "b h a"], time: float) -> Float[Tensor, "b h a"]:
            if guided is None:
                return self.velocity(x, time, cond)
            return self.guided(x, time, cond, guided)

        for i in range(steps):
            x = step(velocity, x, i / steps, 1 / steps)
        return x

    def velocity(
        self, x: Float[Tensor, "b h a"], time: float, cond: Float[Tensor, "b t d"]
    ) -> Float[Tensor, "b h a"]:
        """Predict the velocity of samples."""
        return self.output(x, self.time_scale * time, cond)

    def guided(
        self, x: Float[Tensor, "b h a"], time: float, cond: Float[Tensor, "b t d"], guided: Guided
    ) -> Float[Tensor, "b h a"]:
        """Return the velocity guided to actions of higher value, within the bounds.

        The noise is shifted by -(1 - t) slope, as in diffusion; x = t action + (1 - t) noise is
        fixed, so the actions are shifted by (1 - t) / t of that.
        """
        left = 1 - time
        if left <= 0:  # the end of a Runge-Kutta step, where guidance has no effect
            return self.velocity(x, time, cond).detach()

        def clean_of(start: Float[Tensor, "b h a"]) -> Float[Tensor, "b h a"]:
            return start + left * self.velocity(start, time, cond)

        slope = guided.direction(x, clean_of, time)
        with torch.no_grad():
            shift = left**2 / max(time, 1 / self.config.sample_steps) * slope
            return ((clean_of(x) + shift).clamp(-1, 1) - x) / left
