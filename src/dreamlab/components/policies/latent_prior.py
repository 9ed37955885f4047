"""TD-MPC2's policy prior: a squashed Gaussian."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dreamlab.nn.dists import LOG_2PI
from dreamlab.nn.normed import NormedMLP

EPS = 1e-6


@dataclass(frozen=True)
class Prior:
    """Actions in [-1, 1], and the statistics for the policy loss."""

    action: Float[Tensor, "*b a"]
    mean: Float[Tensor, "*b a"]
    """Mean before squashing."""
    log_std: Float[Tensor, "*b a"]
    entropy: Float[Tensor, "*b"]
    """Negative log-probability of the action."""
    scaled_entropy: Float[Tensor, "*b"]
    """The same times the action size, as in the policy loss."""


class LatentPrior(nn.Module):
    """Predicts mean and deviation of each action entry."""

    def __init__(
        self, in_dim: int, hidden: int, action_dim: int, log_std: tuple[float, float]
    ) -> None:
        super().__init__()
        self.net = NormedMLP([in_dim, hidden, hidden], 2 * action_dim)
        self.low, self.high = log_std

    def forward(
        self, x: Float[Tensor, "*b d"], mask: Float[Tensor, "... a"] | None = None
    ) -> tuple[Float[Tensor, "*b a"], Float[Tensor, "*b a"]]:
        """Return mean before squashing and log-deviation; both are 0 where the mask is."""
        mean, raw = self.net(x).float().chunk(2, -1)
        log_std = self.low + 0.5 * (self.high - self.low) * (torch.tanh(raw) + 1)
        return (mean, log_std) if mask is None else (mean * mask, log_std * mask)

    def act(
        self,
        x: Float[Tensor, "*b d"],
        noise: Float[Tensor, "... a"],
        mask: Float[Tensor, "... a"] | None = None,
    ) -> Float[Tensor, "*b a"]:
        """Return the actions for standard normal noise."""
        mean, log_std = self(x, mask)
        noise = noise if mask is None else noise * mask
        return torch.tanh(mean + noise * log_std.exp())

    def sample(
        self,
        x: Float[Tensor, "*b d"],
        noise: Float[Tensor, "*b a"],
        mask: Float[Tensor, "... a"] | None = None,
    ) -> Prior:
        """Return reparameterized actions and their entropies."""
        mean, log_std = self(x, mask)
        noise = noise if mask is None else noise * mask
        action = torch.tanh(mean + noise * log_std.exp())
        log_prob = gaussian_log_prob(noise, log_std)
        dims = noise.shape[-1] if mask is None else mask.sum(-1)
        squashed = log_prob - torch.log(torch.relu(1 - action.square()) + EPS).sum(-1)
        return Prior(action, mean, log_std, -squashed, -squashed * dims)


def gaussian_log_prob(
    noise: Float[Tensor, "*b a"], log_std: Float[Tensor, "*b a"]
) -> Float[Tensor, "*b"]:
    """Return the log-density of Gaussians at `noise` deviations from their means."""
    return (-0.5 * noise.square() - log_std - 0.5 * LOG_2PI).sum(-1)
