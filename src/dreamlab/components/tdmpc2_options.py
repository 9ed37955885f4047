"""Options of TD-MPC2 and its variants: sizes, loss weights, discounts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from dreamlab.components.world_models.latent_mlp import LatentModelConfig
from dreamlab.core.config import Part, check_presets, part
from dreamlab.core.errors import ConfigError
from dreamlab.core.limits import (
    Decay,
    Finite,
    Natural,
    NonNegative,
    Positive,
    Range,
    Share,
    SomeShare,
)
from dreamlab.core.optim import optimizer_field
from dreamlab.core.types import Spec
from dreamlab.ops.planning import PLANNERS, Planner

Size = Literal["1m", "5m", "19m", "48m", "317m"]
MANY_ACTIONS = 20
"""Action size from which plans use `more_iterations`."""


def _sizes(enc: int, mlp: int, latent: int, layers: int, num_q: int) -> dict[str, Any]:
    """Return the options of an agent of this size."""
    widths = {"enc_dim": enc, "mlp_dim": mlp, "latent_dim": latent}
    return {**widths, "enc_layers": layers, "num_q": num_q}


SIZES: dict[str, dict[str, Any]] = {
    "1m": _sizes(256, 384, 128, 2, 2),
    "5m": {},  # the defaults
    "19m": _sizes(1024, 1024, 768, 3, 5),
    "48m": _sizes(1792, 1792, 768, 4, 5),
    "317m": _sizes(4096, 4096, 1376, 5, 8),
}


@dataclass(frozen=True)
class Scales:
    """Loss weights of the model."""

    consistency: NonNegative = 20.0
    reward: NonNegative = 0.1
    value: NonNegative = 0.1
    termination: NonNegative = 1.0


@dataclass(frozen=True)
class DiscountConfig:
    """Discount for episodes of T decisions: 1 - denom / T, clipped to a range."""

    denom: Positive = 5.0
    low: Share = 0.95
    high: Share = 0.995

    def of(self, length: int) -> float:
        """Return the discount for episodes of this length."""
        return min(max(1 - self.denom / length, self.low), self.high)


@dataclass(frozen=True)
class TDMPC2Config(LatentModelConfig):
    """Defaults of the original; `size` sets widths and the number of critics."""

    size: Size | None = "5m"
    """None uses the given widths, else those of 5m."""
    num_q: Annotated[int, Range(2, 1_000)] = 5
    """Number of critics; each value uses a random pair."""
    dropout: Decay = 0.01
    """Dropout in the critics' first layer, in training."""
    log_std: tuple[Finite, Finite] = (-10.0, 2.0)
    """Bounds of the policy's log-deviation."""
    rho: SomeShare = 0.5
    """Discount of the loss per step of a window."""
    scales: Scales = field(default_factory=Scales)
    entropy: NonNegative = 1e-4
    """Weight of the policy's entropy."""
    scale_rate: SomeShare = 0.01
    """Update rate of the value range that normalizes the policy loss."""
    tau: SomeShare = 0.01
    """Step size of the target critics towards the critics at each update."""
    gamma: Share | None = None
    """Discount; None derives it from the episode length, by `discount`."""
    discount: DiscountConfig = field(default_factory=DiscountConfig)
    mpc: bool = True
    """Plan; otherwise the policy prior acts alone."""
    planner: Part = part("mppi", PLANNERS, Planner)
    more_iterations: Natural = 2
    """Additional planner iterations for actions with 20 entries or more."""
    num_pi_plans: Natural = 24
    """Plans of the policy among the samples of every iteration."""
    optimizer: Part = optimizer_field(
        "adam", lr=3e-4, clip=20.0, groups={"model.encoder": {"lr_scale": 0.3}}
    )
    """Optimizer of the model and the critics."""
    policy_optimizer: Part = optimizer_field("adam", lr=3e-4, eps=1e-5, clip=20.0)
    presets: ClassVar[dict[str, dict[str, Any]]] = {"size": SIZES}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_presets(self)
        if self.num_pi_plans >= self.planner.config.samples:
            raise ValueError(
                f"num_pi_plans={self.num_pi_plans} must be below "
                f"planner.samples={self.planner.config.samples}"
            )


def discounts_of(
    spec: Spec, gamma: float | None, discount: DiscountConfig, where: str
) -> list[float]:
    """Return the discount of each task, or of the only one; `where` is the path of `gamma`."""
    lengths = [t.episode_length for t in spec.tasks] or [spec.episode_length]
    if gamma is not None:
        return [gamma] * len(lengths)
    found = [discount.of(n) for n in lengths if n is not None]
    if len(found) < len(lengths):
        raise ConfigError(
            f"{where}.gamma: the environment does not tell how long its episodes are, so the "
            "discount does not follow from it: set gamma, or env.time_limit"
        )
    return found
