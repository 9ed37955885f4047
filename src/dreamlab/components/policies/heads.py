"""The last layer of a policy, for every kind of action space."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dreamlab.core.types import ArraySpec
from dreamlab.nn.dists import Categorical, Dist, Gaussian, MultiCategorical, TanhGaussian
from dreamlab.nn.mlp import linear


class CategoricalHead(nn.Module):
    """Logits of one choice, or of several independent ones."""

    def __init__(self, in_dim: int, action: ArraySpec, gain: float | None = 0.01) -> None:
        super().__init__()
        assert action.classes is not None
        self.classes = action.classes
        total = self.classes if isinstance(self.classes, int) else sum(self.classes)
        self.logits = linear(in_dim, total, gain)

    @property
    def layer(self) -> nn.Linear:
        """Return the layer whose outputs `dist` reads."""
        return self.logits

    def dist(self, logits: Float[Tensor, "*b n"]) -> Dist:
        """Return the distribution with these logits, in full precision."""
        logits = logits.float()
        if isinstance(self.classes, int):
            return Categorical(logits)
        return MultiCategorical(logits, self.classes)

    def forward(self, x: Float[Tensor, "*b d"]) -> Dist:
        return self.dist(self.logits(x))


class GaussianHead(nn.Module):
    """A state-dependent mean and one learned deviation for all states, as in PPO."""

    def __init__(self, in_dim: int, action: ArraySpec, log_std: float = 0.0) -> None:
        super().__init__()
        self.mean = linear(in_dim, action.size, 0.01)
        self.log_std = nn.Parameter(torch.full((action.size,), log_std))

    @property
    def layer(self) -> nn.Linear:
        """Return the layer whose outputs `dist` reads."""
        return self.mean

    def dist(self, mean: Float[Tensor, "*b a"]) -> Dist:
        """Return the distribution with this mean, in full precision."""
        return Gaussian(mean.float(), self.log_std)

    def forward(self, x: Float[Tensor, "*b d"]) -> Dist:
        return self.dist(self.mean(x))


class TanhGaussianHead(nn.Module):
    """A state-dependent mean and deviation, squashed into (-1, 1), as in SAC."""

    def __init__(
        self, in_dim: int, action: ArraySpec, bounds: tuple[float, float] = (-20.0, 2.0)
    ) -> None:
        super().__init__()
        self.out = nn.Linear(in_dim, 2 * action.size)
        self.low, self.high = bounds

    @property
    def layer(self) -> nn.Linear:
        """Return the layer whose outputs `dist` reads."""
        return self.out

    def dist(self, out: Float[Tensor, "*b k"]) -> TanhGaussian:
        """Return the distribution, in full precision."""
        mean, log_std = out.float().chunk(2, -1)
        return TanhGaussian(mean, log_std.clamp(self.low, self.high))

    def forward(self, x: Float[Tensor, "*b d"]) -> TanhGaussian:
        return self.dist(self.out(x))


def policy_head(in_dim: int, action: ArraySpec) -> CategoricalHead | GaussianHead:
    """Build the head for an action space: categorical if discrete, else Gaussian."""
    return CategoricalHead(in_dim, action) if action.is_discrete else GaussianHead(in_dim, action)
