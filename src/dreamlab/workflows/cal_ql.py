"""Cal-QL (Nakamoto et al. 2023, arXiv:2303.05479) and CQL (Kumar et al. 2020, arXiv:2006.04779).

Soft actor-critic with conservative critics: values of out-of-data actions are pushed down, in
Cal-QL never below the return of the data. This allows online fine-tuning, where the same update
trains on a mix of offline and online steps. `conservative.calibrated=false` is CQL(H), and
`conservative.weight=0` is SAC.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dreamlab.components import HOME
from dreamlab.components.critics.conservative import (
    ConservativeConfig,
    Proposal,
    conservative_gap,
    uniform_proposal,
)
from dreamlab.components.critics.q_function import QConfig, QFunction
from dreamlab.components.critics.transitions import (
    Transitions,
    as_window,
    chunk_transitions,
    return_to_go,
)
from dreamlab.components.policies.chunk_actor import ChunkActor, whole_chunk
from dreamlab.components.policies.gaussian import GaussianPolicy
from dreamlab.components.policies.protocol import Policy
from dreamlab.core.config import Part, part
from dreamlab.core.errors import ConfigError
from dreamlab.core.limits import Finite, Positive, Share, SomeShare
from dreamlab.core.optim import optimizer_field, optional_optimizer, without_groups
from dreamlab.core.phase import Phase
from dreamlab.core.types import Batch, Metrics, Mode, Obs, Spec
from dreamlab.core.workflow import compilable, hook
from dreamlab.nn.dists import TanhGaussian
from dreamlab.nn.target import TargetNetwork, frozen_copy


@dataclass(frozen=True)
class CalQLConfig:
    """Hyperparameters of the paper's state-based tasks."""

    policy: Part = part("gaussian", HOME, Policy)
    critic: QConfig = field(default_factory=QConfig)
    conservative: ConservativeConfig = field(default_factory=ConservativeConfig)
    optimizer: Part = optimizer_field("adam", lr=3e-4)
    """Optimizer of the critics and of the temperature."""
    policy_optimizer: Part | None = optional_optimizer()
    """Optimizer of the policy; None uses that of the critics."""
    gamma: Share = 0.99
    tau: SomeShare = 0.005
    alpha: Positive = 1.0
    """Initial temperature."""
    target_entropy: Finite | None = None
    """Target entropy of the temperature; None uses -|A|."""
    backup_entropy: bool = False
    """Include the policy's entropy in the value targets, as SAC does."""


class CalQL(ChunkActor[CalQLConfig]):
    """Conservative critics, a squashed Gaussian policy, and a learned temperature."""

    Config = CalQLConfig
    tiny: ClassVar[dict[str, Any]] = {
        "policy": {"hidden": (8, 8)},
        "critic": {"hidden": (8, 8)},
        "conservative": {"actions": 2},
    }

    def build(self, spec: Spec) -> None:
        c = self.config
        self.policy = gaussian(c.policy.build(spec))
        self.horizon = whole_chunk(self.policy)
        self.critic = QFunction(c.critic, spec, self.horizon)
        self.target = frozen_copy(self.critic)
        self.target_network = TargetNetwork(self.target, self.critic)
        self.log_alpha = nn.Parameter(torch.tensor(math.log(c.alpha)))
        given = c.target_entropy
        self.target_entropy = -float(spec.action.size * self.horizon) if given is None else given
        same = without_groups(c.optimizer)
        self.critic_opt = self.optimizer("critic", self.critic.parameters(), c.optimizer)
        learnt = self.policy.parameters()
        self.policy_opt = self.optimizer("policy", learnt, c.policy_optimizer or same)
        self.alpha_opt = self.optimizer("alpha", [self.log_alpha], same)

    def chunk(self, obs: Obs, mode: Mode) -> Float[Tensor, "n h a"]:
        """Sample actions from the policy, or return its mode in evaluation."""
        return self.policy.sample(as_window(obs), mode=mode)[:, 0]

    def draw(
        self, obs: Obs, num: int
    ) -> tuple[Float[Tensor, "b {num} h a"], Float[Tensor, "b {num}"]]:
        """Sample differentiable actions from the policy; return them and their log-densities."""
        dist = self.policy.dist(as_window(obs))
        many = TanhGaussian(dist.mean[:, None].expand(-1, num, -1), dist.log_std[:, None])
        action, log_prob = many.sample_with_log_prob()
        return action.unflatten(-1, (self.horizon, self.policy.action_dim)), log_prob

    @hook
    def update_controller(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Take one gradient step each on the critics, the policy and the temperature."""
        c = self.config.conservative
        floor = return_to_go(batch) if c.calibrated and c.weight else None
        return self.learn(chunk_transitions(batch, self.config.gamma, self.horizon), floor)

    @compilable
    def learn(self, t: Transitions, floor: Float[Tensor, " b"] | None) -> Metrics:
        """Take the three gradient steps, then update the target critics."""
        alpha = self.log_alpha.detach().exp()
        loss, metrics = self.critic_loss(t, floor, alpha)
        metrics["critic_grad_norm"] = self.critic_opt.step(loss)
        policy_loss, entropy = self.policy_loss(t, alpha)
        metrics["policy_grad_norm"] = self.policy_opt.step(policy_loss)
        self.alpha_opt.step(self.log_alpha * (entropy - self.target_entropy))
        self.target_network.update(self.config.tau)
        more = {"policy_loss": policy_loss.detach(), "entropy": entropy, "alpha": alpha}
        return {**metrics, **more}

    def critic_loss(
        self, t: Transitions, floor: Float[Tensor, " b"] | None, alpha: Float[Tensor, ""]
    ) -> tuple[Float[Tensor, ""], Metrics]:
        """Return the Bellman error plus the weighted conservative gap (eq. 4), and metrics."""
        c = self.config.conservative
        z = self.critic.features(t.obs)
        out = self.critic(z, t.action)
        bellman = self.critic.loss(out, self.bellman_target(t, alpha)).mean(1).sum()
        q = self.critic.readout.decode(out)
        metrics = {"bellman_loss": bellman.detach(), "q": q.detach().mean()}
        if not c.weight:
            return bellman, metrics
        gap = conservative_gap(self.critic, z, q, self.proposals(t), floor, c).sum()
        return bellman + c.weight * gap, {**metrics, "conservative_gap": gap.detach()}

    @torch.no_grad()
    def bellman_target(self, t: Transitions, alpha: Float[Tensor, ""]) -> Float[Tensor, " b"]:
        """Compute the TD targets [b]: reward plus target value of the policy's next action."""
        action, log_prob = self.draw(t.next_obs, 1)
        value = self.target.bootstrap(self.target.features(t.next_obs), action[:, 0])
        value = value - alpha * log_prob[:, 0] if self.config.backup_entropy else value
        return torch.addcmul(t.reward, t.factor, value)

    @torch.no_grad()
    def proposals(self, t: Transitions) -> list[Proposal]:
        """Return the actions to push down: uniform, and the policy's at s and s'."""
        c = self.config.conservative
        found = [uniform_proposal(t.action, c.actions, c.importance)]
        for obs in (t.obs, t.next_obs):
            action, log_prob = self.draw(obs, c.actions)
            density = log_prob if c.importance else torch.zeros_like(log_prob)
            found.append(Proposal(action, density, True))
        return found

    def policy_loss(
        self, t: Transitions, alpha: Float[Tensor, ""]
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """Return the negative soft value of the policy's actions, and its detached entropy."""
        with torch.no_grad():
            z = self.critic.features(t.obs)
        action, log_prob = self.draw(t.obs, 1)
        value = self.critic.values(z, action[:, 0]).amin(0)
        return (alpha * log_prob[:, 0] - value).mean(), -log_prob.detach().mean()


def gaussian(policy: Policy) -> GaussianPolicy:
    """Return the policy if it is a squashed Gaussian, else raise."""
    if not isinstance(policy, GaussianPolicy) or not policy.squash:
        raise ConfigError(
            "workflow.policy: Cal-QL's policy follows the gradient of its samples' densities: use "
            "gaussian with squash=true, or the workflow PA-RL for policies of other kinds"
        )
    return policy
