"""World model of the first TD-MPC: plain MLPs, latents without normalization."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dreamlab.components.encoder import flat_obs
from dreamlab.components.world_models.codec import width
from dreamlab.components.world_models.latent_encoder import ordered
from dreamlab.components.world_models.latent_mlp import LatentModel
from dreamlab.core.errors import ConfigError
from dreamlab.core.limits import Width
from dreamlab.core.types import ArraySpec, Obs, Spec
from dreamlab.nn.mlp import linear, stack


@dataclass(frozen=True)
class PlainModelConfig:
    """Widths of the original."""

    latent_dim: Width = 50
    enc_dim: Width = 256
    mlp_dim: Width = 512
    obs_order: tuple[str, ...] = ()
    """Order in which vectors are concatenated, by name; alphabetical by default."""


def plain_mlp(in_dim: int, hidden: int, out_dim: int, zero: bool = False) -> nn.Sequential:
    """Build an MLP with two hidden layers; `zero` initializes its output to 0."""
    last = linear(hidden, out_dim, 1.0)
    if zero:
        nn.init.zeros_(last.weight)
    return nn.Sequential(*stack([in_dim, hidden, hidden], "elu", gain=1.0), last)


class PlainEncoder(nn.Module):
    """Encodes concatenated vectors with one hidden layer."""

    image = None

    def __init__(self, config: PlainModelConfig, obs: dict[str, ArraySpec]) -> None:
        super().__init__()
        if any(s.is_image for s in obs.values()):
            raise ConfigError("workflow: TD-MPC sees vectors only here; use TD-MPC2 for images")
        self.obs = {k: obs[k] for k in ordered(obs, config.obs_order, "workflow")}
        hidden = stack([sum(width(s) for s in obs.values()), config.enc_dim], "elu", gain=1.0)
        self.net = nn.Sequential(*hidden, linear(config.enc_dim, config.latent_dim, 1.0))

    def forward(
        self,
        obs: Obs,
        task: Float[Tensor, "*b e"] | None = None,
        shift: Int[Tensor, "*b 2"] | None = None,
    ) -> Float[Tensor, "*b d"]:
        parts = [flat_obs(obs[k], s) for k, s in self.obs.items()]
        return self.net(torch.cat(parts, -1) if len(parts) > 1 else parts[0])


class PlainModel(LatentModel):
    """Encoder, dynamics and reward; everything else as in TD-MPC2."""

    def __init__(self, config: PlainModelConfig, spec: Spec, gamma: float) -> None:
        nn.Module.__init__(self)
        if spec.tasks:
            raise ConfigError("workflow: TD-MPC learns one task; use TD-MPC2 for several")
        self.tasks = self.termination = None
        step = config.latent_dim + spec.action.size
        self.encoder = PlainEncoder(config, spec.obs)
        self.dynamics = plain_mlp(step, config.mlp_dim, config.latent_dim)
        self.reward = plain_mlp(step, config.mlp_dim, 1, zero=True)
        self.state_dim, self.step_dim, self.latent_dim = config.latent_dim, step, config.latent_dim
        self.register_buffer("discounts", torch.tensor([gamma]), persistent=False)

    def decode(self, logits: Float[Tensor, "*b n"]) -> Float[Tensor, "*b"]:
        """Return the rewards, which are scalars already."""
        return logits.float()[..., 0]
