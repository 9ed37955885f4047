"""DreamerV3's actor and critic, trained in dreams, for any reward."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from dreamlab.components import HOME, kinds
from dreamlab.components.world_models.rssm import Latent
from dreamlab.core.config import Part, part
from dreamlab.core.limits import NonNegative, Share, SomeShare
from dreamlab.core.types import ArraySpec, Metrics
from dreamlab.nn.target import TargetNetwork, frozen_copy
from dreamlab.ops.returns import lambda_return
from dreamlab.ops.scaling import update_return_range


@dataclass(frozen=True)
class ActorCriticConfig:
    """Both networks and their training options."""

    actor: Part = part("latent_policy", HOME, kinds.PolicyHead)
    critic: Part = part("two_hot", HOME, kinds.NumberHead)
    lam: Share = 0.95
    entropy: NonNegative = 3e-4
    slow_rate: SomeShare = 0.02
    """Step size of the slow critic towards the critic at each update."""
    return_rate: SomeShare = 0.01
    """Update rate of the return range that normalizes advantages."""


class ActorCritic(nn.Module):
    """A policy, a critic with a slow copy, and a running range of returns."""

    return_low: Float[Tensor, ""]
    return_high: Float[Tensor, ""]
    quantiles: Float[Tensor, " 2"]

    def __init__(self, config: ActorCriticConfig, in_dim: int, action: ArraySpec) -> None:
        super().__init__()
        c = self.config = config
        self.actor = c.actor.build(in_dim, action)
        self.critic = c.critic.build(in_dim)
        self.slow = frozen_copy(self.critic)
        self.target_network = TargetNetwork(self.slow, self.critic)
        self.register_buffer("return_low", torch.zeros(()))
        self.register_buffer("return_high", torch.zeros(()))
        self.register_buffer("quantiles", torch.tensor([0.05, 0.95]), persistent=False)

    def learnt(self) -> list[nn.Parameter]:
        """Return the trained parameters."""
        return [*self.actor.parameters(), *self.critic.parameters()]

    def policy(self, latent: Latent) -> Shaped[Tensor, "n ..."]:
        """Sample actions for states [n, ...], without gradients to the states."""
        return self.actor.shaped(self.actor(latent.detach().feature).sample())

    def losses(
        self,
        feature: Float[Tensor, "n t d"],
        action: Shaped[Tensor, "n t ..."],
        reward: Float[Tensor, "n t"],
        cont: Float[Tensor, "n t"],
    ) -> tuple[dict[str, Float[Tensor, "n t-1"]], Metrics]:
        """Return the losses `policy` and `value` of dreams, and metrics.

        The reward of a state is received on arrival; that of the first is not used.
        """
        c = self.config
        feature, action = feature.detach(), action.detach()
        with torch.no_grad():
            value = self.critic.mean(self.critic(feature))
            slow = self.slow.mean(self.slow(feature[:, :-1]))
            ret = lambda_return(reward, cont, value, c.lam)
            weight = torch.cumprod(cont, 1)[:, :-1]
            advantage = (ret - value[:, :-1]) / self.return_scale(ret)
        dist = self.actor(feature[:, :-1])
        entropy = dist.entropy()
        policy = -weight * (dist.log_prob(action[:, :-1]) * advantage + c.entropy * entropy)
        logits = self.critic(feature[:, :-1])
        error = self.critic.loss(logits, ret) + self.critic.loss(logits, slow)
        metrics = {"return": ret.mean(), "value": value.mean(), "entropy": entropy.mean()}
        return {"policy": policy, "value": weight * error}, metrics

    def return_scale(self, ret: Float[Tensor, "n t"]) -> Float[Tensor, ""]:
        """Update the 5th and 95th return percentiles; return their distance, at least 1."""
        return update_return_range(
            ret, self.quantiles, (self.return_low, self.return_high), self.config.return_rate
        )

    def update_target(self) -> None:
        """Update the slow critic, after the critic."""
        self.target_network.update(self.config.slow_rate)
