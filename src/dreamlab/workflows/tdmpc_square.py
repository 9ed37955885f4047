"""TD-M(PC)^2 (Lin et al. 2025, arXiv:2502.03550): TD-MPC2 whose policy stays close to its planner.

The critics evaluate the policy on the planner's data and overestimate where the two differ. The
planner's Gaussian is therefore stored with each step, and its log-density regularizes the policy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dreamlab.core.limits import NonNegative, Positive
from dreamlab.core.types import Decision, Metrics
from dreamlab.core.workflow import compilable
from dreamlab.nn.dists import LOG_2PI
from dreamlab.workflows.tdmpc2 import TDMPC2, TDMPC2Config, Window

MOST_ACTIONS = 61
"""Action size of the humanoid on which the original was tuned."""


@dataclass(frozen=True)
class TDMPCSquareConfig(TDMPC2Config):
    """TD-MPC2's options, and how closely the policy follows the planner."""

    prior_coef: NonNegative = 1.0
    """Weight of the planner's log-density; 0 is TD-MPC2, bit for bit."""
    prior_scale: Literal["a_over_61", "none"] = "a_over_61"
    """Factor of the weight: action size over 61, as in the original's code, or none, as in its
    description.
    """
    prior_gate: NonNegative = 2.0
    """Value range below which the policy is not regularized."""
    prior_min_std: Positive = 0.05
    """Lower bound on the planner's standard deviation."""


class TDMPCSquare(TDMPC2):
    """TD-MPC2 with a policy regularized towards the planner's actions."""

    Config = TDMPCSquareConfig
    config: TDMPCSquareConfig

    def extras(
        self, centre: Float[Tensor, "n a"], std: Float[Tensor, "n a"]
    ) -> dict[str, Float[Tensor, "n a"]]:
        """Return the Gaussian that the action was sampled from."""
        return {"plan_mean": centre, "plan_std": std}

    @property
    def widest(self) -> float:
        """Return the planner's largest standard deviation."""
        return getattr(self.sizes.planner, "max_std", self.sizes.planner.std)

    def with_action(self, decision: Decision, action: Float[Tensor, "n ..."]) -> Decision:
        """Return the decision with a random action: mean there, the policy's largest deviation."""
        mean = action.flatten(1)
        std = torch.full_like(mean, math.exp(self.config.log_std[1]))
        return replace(decision, action=action, extras=self.extras(mean, std))

    @compilable
    def policy_loss(
        self,
        zs: Float[Tensor, "t b d"],
        w: Window,
        noise: Float[Tensor, "t b a"],
        pair: Int[Tensor, " 2"],
    ) -> tuple[Float[Tensor, ""], Metrics]:
        """Return the policy loss on states with a known planner distribution."""
        c, known = self.config, w.action.shape[0]
        if not c.prior_coef:
            return super().policy_loss(zs, w, noise, pair)
        action, gain, metrics = self.policy_gain(zs[:known], w.task, noise[:known], pair)
        density = self.plan_density(action, w)
        scale = metrics["value_scale"]
        near = torch.where(scale > c.prior_gate, density / scale, 0.0)
        factor = self.sizes.action / MOST_ACTIONS if c.prior_scale == "a_over_61" else 1.0
        weights = self.weights(gain)
        loss = -(weights * gain.mean(1)).mean()
        loss = loss - c.prior_coef * factor * (weights * near.mean(1)).mean()
        return loss, {**metrics, "plan_density": density.mean()}

    def plan_density(self, action: Float[Tensor, "h b a"], w: Window) -> Float[Tensor, "h b"]:
        """Return the log-density of actions under the planner, times the action size.

        The constant is counted once, as in the original. Steps that no planner has seen, such as
        those of a dataset, come without a normal (a deviation of 0): there it is around their own
        action, as wide as a planner's can be.
        """
        mean, std = w.extras["plan_mean"], w.extras["plan_std"]
        planned = (std > 0).any(-1, keepdim=True)
        mean = torch.where(planned, mean, w.action)
        std = torch.where(planned, std, self.widest).clamp(min=self.config.prior_min_std)
        unit = (action - mean) / std
        each, mask = -0.5 * unit.square() - std.log(), self.mask_of(w.task)
        entries = self.sizes.action if mask is None else mask.sum(-1)
        each = each if mask is None else each * mask
        return entries * (each.sum(-1) - 0.5 * LOG_2PI)
