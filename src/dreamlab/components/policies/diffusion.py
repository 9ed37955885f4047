"""Diffusion policy (Chi et al. 2023, arXiv:2303.04137): denoises actions with DDPM or DDIM."""

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
from dreamlab.ops.diffusion import (
    Betas,
    Prediction,
    add_noise,
    clean_and_noise,
    ddim_step,
    ddpm_step,
    network_target,
    noise_levels,
    spaced_levels,
)


@dataclass(frozen=True)
class DiffusionConfig(GenerativeConfig):
    """Noise levels and sampler."""

    levels: PositiveInt = 100
    betas: Betas = "squaredcos_cap_v2"
    prediction: Prediction = "epsilon"
    sampler: Literal["ddpm", "ddim"] = "ddpm"
    sample_steps: PositiveInt | None = None
    """Noise levels visited by a sample; None visits all."""
    clip: bool = True
    """Clip the predicted actions to the bounds at each step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sample_steps is not None and self.sample_steps > self.levels:
            raise ValueError(
                f"sample_steps={self.sample_steps} is more than there are levels={self.levels}"
            )


class DiffusionPolicy(GenerativePolicy):
    """Learns to predict the noise in noised actions; samples by iterative denoising."""

    Config = DiffusionConfig
    abar: Float[Tensor, " levels"]

    def __init__(self, config: DiffusionConfig, spec: Spec) -> None:
        super().__init__(config, spec)
        self.config = config
        steps = config.levels if config.sample_steps is None else config.sample_steps
        self.path = spaced_levels(config.levels, steps)
        levels = noise_levels(config.betas, config.levels)
        # the last entry is for level -1: no noise
        self.register_buffer("abar", torch.cat([levels, torch.ones(1)]), persistent=False)

    def estimate(self, obs: Obs, action: Float[Tensor, "b h a"]) -> Estimate:
        c, noise = self.config, torch.randn_like(action)
        level = torch.randint(0, c.levels, action.shape[:1], device=action.device)
        signal = self.abar[level]
        abar = signal[:, None, None]
        noisy = add_noise(action, noise, abar)
        out = self.net(noisy, level.to(noisy.dtype), self.learnt_cond(obs))
        error = out - network_target(action, noise, abar, c.prediction)
        clean, _ = clean_and_noise(out, noisy, abar, c.prediction)
        return Estimate(error.square().mean((1, 2)), clean, signal)

    def denoise(
        self, x: Float[Tensor, "b h a"], cond: Float[Tensor, "b t d"], random: bool,
        guided: Guided | None,
    ) -> Float[Tensor, "b h a"]:  # fmt: skip
        for number, (level, after) in enumerate(self.path):
            abar, before = self.abar[level], self.abar[after]
            if guided is None:
                clean, noise = self.clean_and_noise(x, level, cond)
            else:
                share = number / max(1, len(self.path) - 1)
                clean, noise = self.guided(x, level, cond, guided, share)
            if self.config.sampler == "ddim":
                x = ddim_step(clean, noise, before)
            else:
                new = torch.randn_like(x) if random and after >= 0 else None
                x = ddpm_step(clean, x, abar, before, new)
        return x

    def clean_and_noise(
        self, x: Float[Tensor, "b h a"], level: int, cond: Float[Tensor, "b t d"]
    ) -> tuple[Float[Tensor, "b h a"], Float[Tensor, "b h a"]]:
        """Predict the actions and the noise of samples at a level."""
        out = self.output(x, float(level), cond)
        clean, noise = clean_and_noise(out, x, self.abar[level], self.config.prediction)
        return (clean.clamp(-1, 1) if self.config.clip else clean), noise

    def guided(
        self, x: Float[Tensor, "b h a"], level: int, cond: Float[Tensor, "b t d"], guided: Guided,
        share: float,
    ) -> tuple[Float[Tensor, "b h a"], Float[Tensor, "b h a"]]:  # fmt: skip
        """Return guided actions and noise: eps - sqrt(1 - abar) slope."""
        abar = self.abar[level]

        def clean_of(start: Float[Tensor, "b h a"]) -> Float[Tensor, "b h a"]:
            return self.clean_and_noise(start, level, cond)[0]

        slope = guided.direction(x, clean_of, share)
        with torch.no_grad():
            _, noise = self.clean_and_noise(x, level, cond)
            noise = noise - (1 - abar).sqrt() * slope
            clean, _ = clean_and_noise(noise, x, abar, "epsilon")
            # at high noise, small changes of the noise are large changes of the actions: clip both
            clean = clean.clamp(-1, 1)
            return clean, (x - abar.sqrt() * clean) / (1 - abar).sqrt()
