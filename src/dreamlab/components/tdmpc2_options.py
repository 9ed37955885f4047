"""Options of TD-MPC2 and of what is made of it: sizes, weights of losses, discounts."""

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
"""Entries of an action from which on a plan takes `more_iterations`."""


def _sizes(enc: int, mlp: int, latent: int, layers: int, num_q: int) -> dict[str, Any]:
    """Return the options that make an agent as large as this."""
    widths = {"enc_dim": enc, "mlp_dim": mlp, "latent_dim": latent}
    return {**widths, "enc_layers": layers, "num_q": num_q}


SIZES: dict[str, dict[str, Any]] = {
    "1m": _sizes(256, 384, 128, 2, 2),
    "5m": {},  # as the defaults have it
    "19m": _sizes(1024, 1024, 768, 3, 5),
    "48m": _sizes(1792, 1792, 768, 4, 5),
    "317m": _sizes(4096, 4096, 1376, 5, 8),
}


@dataclass(frozen=True)
class Scales:
    """Weights of the model's losses."""

    consistency: NonNegative = 20.0
    reward: NonNegative = 0.1
    value: NonNegative = 0.1
    termination: NonNegative = 1.0


@dataclass(frozen=True)
class DiscountConfig:
    """The discount that fits episodes of T decisions: 1 - denom / T, between two limits."""

    denom: Positive = 5.0
    low: Share = 0.95
    high: Share = 0.995

    def of(self, length: int) -> float:
        """Return the discount of an episode of this length."""
        return min(max(1 - self.denom / length, self.low), self.high)


@dataclass(frozen=True)
class TDMPC2Config(LatentModelConfig):
    """Defaults of the original; a size stands for widths and the number of critics."""

    size: Size | None = "5m"
    """None: every width is given, or that of 5m."""
    num_q: Annotated[int, Range(2, 1_000)] = 5
    """Critics, of which two are drawn whenever a value is requested."""
    dropout: Decay = 0.01
    """In the critics' first layer, while they learn."""
    log_std: tuple[Finite, Finite] = (-10.0, 2.0)
    """Limits of the policy's log-deviation."""
    rho: SomeShare = 0.5
    """How much less each further step of a window counts."""
    scales: Scales = field(default_factory=Scales)
    entropy: NonNegative = 1e-4
    """Weight of the policy's entropy."""
    scale_rate: SomeShare = 0.01
    """How fast the range of values that the policy's loss is divided by is followed."""
    tau: SomeShare = 0.01
    """How far the target critics move towards the critics at each update."""
    gamma: Share | None = None
    """None: from the length of episodes, by `discount`."""
    discount: DiscountConfig = field(default_factory=DiscountConfig)
    mpc: bool = True
    """Plan; if not, the policy prior acts alone."""
    planner: Part = part("mppi", PLANNERS, Planner)
    more_iterations: Natural = 2
    """Iterations added to the planner's where actions have 20 entries or more."""
    num_pi_plans: Natural = 24
    """Plans of the policy among the samples of every iteration."""
    optimizer: Part = optimizer_field(
        "adam", lr=3e-4, clip=20.0, groups={"model.encoder": {"lr_scale": 0.3}}
    )
    """Of the model and the critics."""
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


def discounts_of(spec: Spec, gamma: float | None, discount: DiscountConfig) -> list[float]:
    """Return the discount of each task, or of the one there is."""
    lengths = [t.episode_length for t in spec.tasks] or [spec.episode_length]
    if gamma is not None:
        return [gamma] * len(lengths)
    found = [discount.of(n) for n in lengths if n is not None]
    if len(found) < len(lengths):
        raise ConfigError(
            "workflow.gamma: the environment does not tell how long its episodes are, so the "
            "discount does not follow from it: set gamma, or env.time_limit"
        )
    return found
