"""Implicit Q-learning (Kostrikov et al. 2022, arXiv:2110.06169), with a policy of any kind.

The critics never evaluate out-of-data actions. The policy imitates the data's actions, weighted by
their exponentiated advantages (advantage-weighted regression).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from dreamlab.components import HOME
from dreamlab.components.critics.implicit import ImplicitConfig, ImplicitCritic
from dreamlab.components.critics.transitions import Transitions, as_window, chunk_transitions
from dreamlab.components.policies.chunk_actor import ChunkActor, whole_chunk
from dreamlab.components.policies.protocol import Policy, evaluating
from dreamlab.core.config import Part, part
from dreamlab.core.limits import NonNegative, Positive, Share
from dreamlab.core.optim import optimizer_field
from dreamlab.core.phase import Phase
from dreamlab.core.types import Batch, Metrics, Mode, Obs, Spec
from dreamlab.core.workflow import compilable, hook


@dataclass(frozen=True)
class IQLConfig:
    """Hyperparameters of the paper's locomotion tasks."""

    policy: Part = part("gaussian", HOME, Policy)
    """Any policy with its own supervised loss: `gaussian`, `diffusion`, `autoregressive`, ..."""
    critic: ImplicitConfig = field(default_factory=ImplicitConfig)
    beta: NonNegative = 3.0
    """Inverse temperature of the advantage weights; 0 is plain imitation."""
    max_weight: Positive = 100.0
    optimizer: Part = optimizer_field("adam", lr=3e-4)
    """Optimizer of the critics."""
    policy_optimizer: Part = optimizer_field("adam", lr=3e-4)
    gamma: Share = 0.99


class IQL(ChunkActor[IQLConfig]):
    """Expectile critics and a policy trained by weighted imitation."""

    Config = IQLConfig
    tiny: ClassVar[dict[str, Any]] = {
        "policy": {"hidden": (8, 8)},
        "critic": {"q": {"hidden": (8, 8)}},
    }

    def build(self, spec: Spec) -> None:
        c = self.config
        self.policy: Policy = c.policy.build(spec)
        self.horizon = whole_chunk(self.policy)
        self.critic = ImplicitCritic(c.critic, spec, self.horizon)
        self.critic_opt = self.optimizer("critic", self.critic.learnt(), c.optimizer)
        self.policy_opt = self.optimizer("policy", self.policy.parameters(), c.policy_optimizer)

    def chunk(self, obs: Obs, mode: Mode) -> Float[Tensor, "n h a"]:
        """Sample actions from the policy, or return its mode in evaluation."""
        with evaluating(self.policy):
            return self.policy.sample(as_window(obs), mode=mode)[:, 0]

    @hook
    def update_controller(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Take one gradient step each on the critics and on the policy (algorithm 1)."""
        return self.learn(chunk_transitions(batch, self.config.gamma, self.horizon))

    @compilable
    def learn(self, t: Transitions) -> Metrics:
        """Take both gradient steps, then update the target critics."""
        loss, metrics, _ = self.critic.loss(t)
        advantage = self.critic.advantage(t)
        metrics["critic_grad_norm"] = self.critic_opt.step(loss)
        policy_loss, weight = self.policy_loss(t, advantage)
        metrics["policy_grad_norm"] = self.policy_opt.step(policy_loss)
        self.critic.follow()
        more = {"policy_loss": policy_loss.detach(), "weight": weight.mean()}
        return {**metrics, **more, "advantage": advantage.mean()}

    def policy_loss(
        self, t: Transitions, advantage: Float[Tensor, " b"]
    ) -> tuple[Float[Tensor, ""], Float[Tensor, " b"]]:
        """Return the policy's own loss, each row weighted by exp(beta advantage) (eq. 7)."""
        weight = torch.exp(self.config.beta * advantage).clamp(max=self.config.max_weight)
        return (weight * self.policy.loss(as_window(t.obs), t.action)).mean(), weight
