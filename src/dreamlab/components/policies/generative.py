"""Common code of diffusion and flow policies: denoiser, initial noise, and guidance."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dreamlab.components.policies.protocol import Policy, PolicyConfig, check_bounded
from dreamlab.core.config import Part, part
from dreamlab.core.limits import Decay, NonNegative
from dreamlab.core.types import ArraySpec, Mode, Obs, Spec
from dreamlab.nn.denoiser import Denoiser, DenoiserSizes

Value = Callable[[Tensor], Tensor]
CleanOf = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class GenerativeConfig(PolicyConfig):
    """The network, and classifier-free guidance."""

    net: Part = part("resnet_mlp", kind=Denoiser)
    """`resnet_mlp` for single actions; `unet1d` or `denoising_transformer` for chunks."""
    drop_cond: Decay = 0.0
    """Share of rows trained without observations, for classifier-free guidance."""
    cond_scale: NonNegative = 0.0
    """Scale of classifier-free guidance (Ho & Salimans 2022)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cond_scale and not self.drop_cond:
            raise ValueError("cond_scale needs drop_cond: a policy must have learnt without them")


@dataclass(frozen=True)
class Guidance:
    """Value guidance: samples ascend `value` while they are denoised.

    `value` maps chunks [b, n, h, a] to scalars [b, n]. The scale goes from `scale` at the noisiest
    step to `last_scale` (None: the same) at the last one. 0 is exactly the unguided sampler.
    """

    value: Value
    scale: float
    last_scale: float | None = None
    normalize: bool = False
    """Normalize every chunk's gradient to length 1 before scaling."""

    def at(self, share: float) -> float:
        """Return the scale after this share of the steps."""
        last = self.scale if self.last_scale is None else self.last_scale
        return self.scale + share * (last - self.scale)

    @property
    def acts(self) -> bool:
        return bool(self.scale or self.last_scale)


@dataclass(frozen=True)
class Estimate:
    """Prediction from noised actions: loss, denoised actions, and signal share."""

    loss: Float[Tensor, " b"]
    clean: Float[Tensor, "b h a"]
    """Denoised actions, with gradients to the denoiser."""
    signal: Float[Tensor, " b"]
    """Share of the variance that is data and not noise: 1 without noise."""


class GenerativePolicy(Policy):
    """Generates actions from noise. Evaluation samples too: there is no cheap mode.

    A deterministic sample starts from a fixed noise drawn at construction, and adds none.
    """

    fixed_noise: Float[Tensor, "h a"]

    def __init__(self, config: GenerativeConfig, spec: Spec) -> None:
        super().__init__(config, spec)
        self.check(spec.action)
        self.drop_cond, self.cond_scale = config.drop_cond, config.cond_scale
        sizes = DenoiserSizes(self.horizon, self.action_dim, self.obs_steps, self.encoder.out_dim)
        self.net: Denoiser = config.net.build(sizes)
        self.register_buffer("fixed_noise", torch.randn(self.horizon, self.action_dim))

    def check(self, action: ArraySpec) -> None:
        """Raise if the action space is not supported."""
        check_bounded(action, type(self).__name__.removesuffix("Policy").lower())

    def sample(
        self,
        obs: Obs,
        n: int = 1,
        *,
        mode: Mode = Mode.TRAIN,
        guidance: Guidance | None = None,
        noise: Float[Tensor, "b {n} h a"] | None = None,
    ) -> Float[Tensor, "b {n} h a"]:
        """Denoise `noise`, or new noise, to samples; gradients flow through every step.

        No gradient flows through guided samples: they are for acting or as training targets.
        """
        cond = self.encode(obs).repeat_interleave(n, 0)
        x = self.first(cond.shape[0], mode) if noise is None else noise.flatten(0, 1)
        guided = Guided(guidance, n) if guidance is not None and guidance.acts else None
        out = self.denoise(x, cond, mode is not Mode.FIXED, guided)
        return out.clamp(-1, 1).unflatten(0, (-1, n))

    def first(self, rows: int, mode: Mode) -> Float[Tensor, "{rows} h a"]:
        """Return the initial noise of samples."""
        fixed = self.fixed_noise.expand(rows, -1, -1)
        return fixed if mode is Mode.FIXED else torch.randn_like(fixed)

    @abstractmethod
    def denoise(
        self, x: Float[Tensor, "b h a"], cond: Float[Tensor, "b t d"], random: bool,
        guided: Guided | None,
    ) -> Float[Tensor, "b h a"]:  # fmt: skip
        """Denoise samples; without `random`, add no noise on the way."""

    @abstractmethod
    def estimate(self, obs: Obs, action: Float[Tensor, "b h a"]) -> Estimate:
        """Add random amounts of noise to actions, and predict the clean ones."""

    def loss(self, obs: Obs, action: Float[Tensor, "b h a"]) -> Float[Tensor, " b"]:
        """Return the squared error of the network's prediction, averaged over a chunk."""
        return self.estimate(obs, action).loss

    def learnt_cond(self, obs: Obs) -> Float[Tensor, "b t d"]:
        """Return the training conditions, with some rows dropped if configured."""
        cond = self.encode(obs)
        if not self.drop_cond:
            return cond
        kept = torch.rand(len(cond), 1, 1, device=cond.device) >= self.drop_cond
        return cond * kept

    def output(
        self, x: Float[Tensor, "b h a"], time: float, cond: Float[Tensor, "b t d"]
    ) -> Float[Tensor, "b h a"]:
        """Return the network's output for samples at the same time."""
        times = torch.full_like(x[:, 0, 0], time)
        out = self.net(x, times, cond)
        if not self.cond_scale:
            return out
        blind = self.net(x, times, torch.zeros_like(cond))
        return (1 + self.cond_scale) * out - self.cond_scale * blind


class Guided:
    """Evaluates a guidance for rows of n samples each."""

    def __init__(self, guidance: Guidance, n: int) -> None:
        self.guidance, self.n = guidance, n

    def direction(
        self, x: Float[Tensor, "b h a"], clean_of: CleanOf, share: float
    ) -> Float[Tensor, "b h a"]:
        """Return the scaled gradient of the clean actions' value at the noisy ones.

        `clean_of` estimates the clean actions (Tweedie); they are clipped to the bounds.
        """
        with torch.enable_grad():
            start = x.detach().requires_grad_()
            clean = clean_of(start).clamp(-1, 1).unflatten(0, (-1, self.n))
            (slope,) = torch.autograd.grad(self.guidance.value(clean).sum(), start)
        if self.guidance.normalize:
            slope = slope / slope.flatten(1).norm(dim=1).clamp(min=1e-8)[:, None, None]
        return self.guidance.at(share) * slope
