"""What plans in TD-MPC2's latents are rolled out with, and what they gain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dreamlab.components.critics.two_hot import TwoHotCritics
from dreamlab.components.policies.latent_prior import LatentPrior
from dreamlab.components.world_models.latent_mlp import LatentModel
from dreamlab.nn import latent_plans
from dreamlab.nn.latent_plans import Packed


@dataclass(frozen=True)
class PlanNets:
    """Model, policy prior and critics: one by one, or packed for kernels that take them together.

    States are those of n environments, and `mask` has their valid action entries, if tasks differ.
    """

    model: LatentModel
    prior: LatentPrior
    critics: TwoHotCritics

    @property
    def nets(self) -> latent_plans.Nets:
        """Return the networks."""
        model: Any = self.model
        policy, bounds = self.prior.net, (self.prior.low, self.prior.high)
        return latent_plans.Nets(
            model.dynamics, model.reward, policy, self.critics, model.bins, bounds
        )

    def packable(self, plans: int) -> bool:
        """Return whether the kernels take these networks and so many plans."""
        bins, usual = self.model.config.bins, self.model.termination is None
        return usual and bins.low == -bins.high and latent_plans.fits(self.nets, plans)

    def pack(
        self,
        z: Float[Tensor, "n d"],
        task: Int[Tensor, " n"],
        mask: Float[Tensor, "n a"] | None,
        horizon: int,
    ) -> Packed:
        """Return the networks as the kernels take them, for plans from these states."""
        known = None if self.model.tasks is None else self.model.tasks(task)
        return latent_plans.pack(self.nets, z, known, mask, horizon)

    def propose(
        self,
        z: Float[Tensor, "n d"],
        task: Int[Tensor, " n"],
        mask: Float[Tensor, "n a"] | None,
        noise: Float[Tensor, "h m p a"],
    ) -> Float[Tensor, "n p h a"]:
        """Roll out the policy in the model and return its action sequences."""
        num = noise.shape[2]
        task, state = task[:, None].expand(-1, num), z[:, None].expand(-1, num, -1)
        actions: list[Tensor] = []
        for chance in noise:
            if actions:
                state = self.model.next(state, actions[-1], task)
            actions.append(self.prior.act(self.model.about(task, state), chance, per_row(mask)))
        return torch.stack(actions, 2)

    def gains(
        self,
        z: Float[Tensor, "n d"],
        task: Int[Tensor, " n"],
        mask: Float[Tensor, "n a"] | None,
        plans: Float[Tensor, "n s h a"],
        end_noise: Float[Tensor, "m s a"],
        pair: Int[Tensor, " 2"],
    ) -> Float[Tensor, "h+1 n s"]:
        """Return the rewards of plans, and the value of where they end; 0 after termination."""
        model, samples = self.model, plans.shape[1]
        task, states = task[:, None].expand(-1, samples), [z[:, None].expand(-1, samples, -1)]
        for action in plans.unbind(2):
            states.append(model.next(states[-1], action, task))
        before, end = torch.stack(states[:-1]), states[-1]
        steps = plans.permute(2, 0, 1, 3)
        reward = model.decode(model.reward_logits(before, steps, task))
        action = self.prior.act(model.about(task, end), end_noise, per_row(mask))
        value = self.critics.values(model.about(task, end, action), pair).mean(0)
        gains = torch.cat([reward, value[None]])
        if model.termination is None:
            return gains
        ahead = torch.cat([before[1:], end[None]])
        going = torch.cumprod((model.ends(ahead, task) <= 0).float(), 0)
        return torch.cat([gains[:1], gains[1:] * going])


def per_row(mask: Float[Tensor, "n a"] | None) -> Float[Tensor, "n 1 a"] | None:
    """Return the masks of environments for all of their plans."""
    return None if mask is None else mask[:, None]
