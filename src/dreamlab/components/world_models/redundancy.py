"""R2-Dreamer's world model: representation learning without reconstruction.

Instead of reconstructing observations, states must predict the encoder's tokens with decorrelated
entries (Barlow Twins, Zbontar et al. 2021, arXiv:2103.03230). The decoder is trained on detached
states, so that dreams can still be visualized.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from dreamlab.components.world_models.world_model import Posterior, WorldModel, WorldModelConfig
from dreamlab.core import world
from dreamlab.core.types import Metrics, Obs, Spec
from dreamlab.core.workflow import compilable
from dreamlab.ops.pooled import pooled_standard


def redundancy_loss(
    guess: Float[Tensor, "n d"], truth: Float[Tensor, "n d"], off_weight: float
) -> Float[Tensor, ""]:
    """Return the distance of the cross-correlation of two batches from the identity."""
    a, b = (pooled_standard(x.float()) for x in (guess, truth))
    corr = world.mean(a.t() @ b / len(a))
    on = corr.diagonal()
    off = corr.square().sum() - on.square().sum()
    return (on - 1).square().sum() + off_weight * off


class RedundancyModel(WorldModel):
    """World model whose states are shaped by tokens, rewards and ends, not by reconstruction."""

    off_weight = 5e-4

    def __init__(self, config: WorldModelConfig, spec: Spec) -> None:
        super().__init__(config, spec)
        self.projector = nn.Linear(self.rssm.out_dim, self.encoder.out_dim, bias=False)

    @compilable
    def losses(
        self,
        seen: Posterior,
        obs: Obs,
        reward: Float[Tensor, "b t"],
        is_terminal: Bool[Tensor, "b t"],
    ) -> tuple[dict[str, Float[Tensor, " ..."]], Metrics]:
        """Return the world model losses, plus that of the projected states."""
        losses, metrics = super().losses(seen, obs, reward, is_terminal)
        guess = self.projector(seen.feature).flatten(0, 1)
        tokens = seen.tokens.detach().flatten(0, 1)
        with torch.autocast(guess.device.type, enabled=False):
            loss = redundancy_loss(guess, tokens, self.off_weight)
        return {**losses, "redundancy": loss}, metrics

    def reconstruction(self, seen: Posterior, obs: Obs) -> dict[str, Float[Tensor, " n"]]:
        """Return the reconstruction losses; they train the decoder alone."""
        apart = Posterior(seen.tokens, seen.latent.detach(), seen.post)
        return super().reconstruction(apart, obs)
