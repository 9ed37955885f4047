"""Interface of world models for model-predictive control, and PlaNet's RSSM implementing it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from jaxtyping import Bool, Float
from torch import Tensor

from dreamlab.components.world_models.codec_planet import PlaNetCodecConfig
from dreamlab.components.world_models.protocol import WorldModel
from dreamlab.components.world_models.rssm import Latent
from dreamlab.components.world_models.rssm_planet import PlaNetRSSMConfig
from dreamlab.components.world_models.world_model_planet import (
    PlaNetModel,
    PlaNetModelConfig,
    number_head,
)
from dreamlab.core.config import Part
from dreamlab.core.limits import NonNegative
from dreamlab.core.types import Batch, Mode, Obs, Spec, Tree


class PlannedModel(WorldModel, Protocol):
    """A world model with a step-by-step state and its own losses, built from the env's `Spec`.

    It is a `torch.nn.Module`.
    """

    def before(self, num: int, device: Any) -> Tree:
        """Return the initial state of an agent: latent and previous `action`."""
        ...

    def after(self, obs: Obs, is_first: Bool[Tensor, " n"], state: Tree, mode: Mode) -> Any:
        """Return the latents [n, ...] after an observation; `state` is the one before."""
        ...

    def noise(self, *shape: int, device: Any, mode: Mode) -> Float[Tensor, " ..."]:
        """Sample the noise of imagined steps; zeros in `Mode.FIXED`."""
        ...

    def predict_value(self, latent: Any) -> Float[Tensor, "*b"] | None:
        """Return the expected return after latents [*b, ...]; None without a value.

        It is discounted by `discount_of`, and added at the end of a plan.
        """
        ...

    def watch(self, batch: Batch) -> None:
        """Update what learns without gradients, before the losses of a batch.

        Such are normalization statistics, and target networks, which follow the last update.
        """
        ...

    def losses(self, batch: Batch) -> dict[str, Float[Tensor, ""]]:
        """Return the weighted losses of a batch by name; training minimizes their sum."""
        ...


@dataclass(frozen=True)
class PlannedRSSMConfig:
    """PlaNet's model and hyperparameters."""

    rssm: PlaNetRSSMConfig = field(
        default_factory=lambda: PlaNetRSSMConfig(cell="reset_before", act="relu")
    )
    codec: PlaNetCodecConfig = field(
        default_factory=lambda: PlaNetCodecConfig(units=300, act="relu", bits=5)
    )
    reward: Part = number_head(units=300, layers=3, act="relu")
    reward_scale: NonNegative = 10.0
    kl_scale: NonNegative = 1.0
    free_nats: NonNegative = 3.0
    """Free nats of KL divergence per step."""


class PlannedRSSM(PlaNetModel):
    """PlaNet's world model with its own loss: no termination, rewards unscaled."""

    Config = PlannedRSSMConfig

    def __init__(self, config: PlannedRSSMConfig, spec: Spec) -> None:
        parts = PlaNetModelConfig(config.rssm, config.codec, config.reward, None, 1.0)
        super().__init__(parts, spec)
        self.scales = {"reward": config.reward_scale, "kl": config.kl_scale}
        self.free_nats = config.free_nats

    def noise(self, *shape: int, device: Any, mode: Mode) -> Float[Tensor, " ..."]:
        """Sample the noise of imagined steps."""
        return self.rssm.noise(*shape, device=device, mode=mode)

    def predict_value(self, latent: Latent) -> None:
        """Return nothing: plans are worth their rewards."""

    def watch(self, batch: Batch) -> None:
        """Do nothing."""

    def losses(self, batch: Batch) -> dict[str, Float[Tensor, ""]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the losses of the variational bound on windows."""
        seen = self.follow(batch)
        out = super().losses(seen, batch.reward, batch.is_terminal)
        kl = self.rssm.dist(seen.post).kl(self.rssm.dist(seen.prior))
        out["kl"] = (kl - self.free_nats).clamp(min=0)
        return {k: self.scales.get(k, 1.0) * v.mean() for k, v in out.items()}
