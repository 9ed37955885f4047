"""PA-RL (Mark et al. 2024, arXiv:2412.06685): improve a policy's actions, then imitate them.

No gradient passes through the policy's sampler. The policy proposes actions; a critic ranks them
(global step) and refines the best by gradient ascent (local steps); the policy then imitates the
result with its own supervised loss. This works with any policy that can sample and imitate:
Gaussian, diffusion, flow, autoregressive. A config has three phases: `clone_policy` on data,
`update_critic` on data with the policy fixed, and online `update_critic` with `update_policy`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from dreamlab.components import HOME
from dreamlab.components.action_optimizer import (
    ActionOptimizer,
    ActionOptimizerConfig,
    Candidates,
    Choice,
)
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
from dreamlab.components.policies.protocol import Policy, evaluating
from dreamlab.core.config import Part, part
from dreamlab.core.limits import Share, SomeShare
from dreamlab.core.optim import optimizer_field
from dreamlab.core.phase import Phase
from dreamlab.core.types import Batch, Metrics, Mode, Obs, Spec
from dreamlab.core.workflow import hook
from dreamlab.nn.counter import Count
from dreamlab.nn.target import TargetNetwork, frozen_copy


def _critics() -> QConfig:
    return QConfig(num_critics=10, norm=True, subset=2, replacement=True)


def _conservative() -> ConservativeConfig:
    return ConservativeConfig(weight=0.005, importance=False)


@dataclass(frozen=True)
class PARLConfig:
    """Hyperparameters of the original's state-based tasks; `hl_gauss` values over their range."""

    policy: Part = part("gaussian", HOME, Policy)
    """Any policy that samples and has its own supervised loss."""
    critic: QConfig = field(default_factory=_critics)
    conservative: ConservativeConfig = field(default_factory=_conservative)
    improve: ActionOptimizerConfig = field(default_factory=ActionOptimizerConfig)
    distil: Choice = "sample"
    """Which improved action the policy imitates: one sampled by value, or the best."""
    optimizer: Part = optimizer_field("adam", lr=3e-4)
    """Optimizer of the critics."""
    clone_optimizer: Part = optimizer_field("adam", lr=3e-4)
    """Optimizer of the policy for imitating the data."""
    policy_optimizer: Part = optimizer_field("adam", lr=5e-5)
    """Optimizer of the policy for imitating improved actions."""
    policy_tau: SomeShare = 0.01
    """Step size of the acting policy's weights towards the trained ones."""
    restart_critic: bool = True
    """Reset the critics' optimizer state when online training starts."""
    gamma: Share = 0.99
    tau: SomeShare = 0.005


class PARL(ChunkActor[PARLConfig]):
    """A policy that imitates its own proposals after improvement by a critic."""

    Config = PARLConfig
    plans: ClassVar[bool] = True
    tiny: ClassVar[dict[str, Any]] = {
        "policy": {"hidden": (8, 8)},
        "critic": {"hidden": (8, 8), "num_critics": 3},
        "conservative": {"actions": 2},
        "improve": {"samples": 3, "keep": 2, "steps": 2},
    }

    def build(self, spec: Spec) -> None:
        c = self.config
        self.policy: Policy = c.policy.build(spec)
        self.horizon = whole_chunk(self.policy)
        self.asked = frozen_copy(self.policy)
        self.asked_network = TargetNetwork(self.asked, self.policy)
        self.critic = QFunction(c.critic, spec, self.horizon)
        self.target = frozen_copy(self.critic)
        self.target_network = TargetNetwork(self.target, self.critic)
        self.improver = ActionOptimizer(c.improve)
        params = list(self.policy.parameters())
        self.clone_opt = self.optimizer("clone", params, c.clone_optimizer)
        self.policy_opt = self.optimizer("policy", params, c.policy_optimizer)
        self.critic_opt = self.optimizer("critic", self.critic.parameters(), c.optimizer)
        self.was_offline = Count()

    # -- acting -----------------------------------------------------------------------------------

    def chunk(self, obs: Obs, mode: Mode) -> Float[Tensor, "n h a"]:
        """Return the best of the improved proposals; `POLICY` samples the policy alone.

        A deterministic decision only ranks: it must be exportable, so it contains no gradient.
        """
        if mode is Mode.POLICY:
            return self.proposals(obs, 1, Mode.EVAL)[:, 0]
        fixed = mode is Mode.FIXED
        found = self.improved(obs, climb=not fixed, mode=mode if fixed else Mode.SAMPLE)
        return self.improver.choose(found)

    @torch.no_grad()
    def proposals(self, obs: Obs, num: int, mode: Mode = Mode.SAMPLE) -> Float[Tensor, "b n h a"]:
        """Sample proposals from the policy: averaged weights, no dropout, no gradient."""
        with evaluating(self.asked):
            return self.asked.sample(as_window(obs), num, mode=mode)

    def improved(
        self,
        obs: Obs,
        data: Float[Tensor, "b h a"] | None = None,
        climb: bool = True,
        mode: Mode = Mode.SAMPLE,
    ) -> Candidates:
        """Sample proposals from the policy and improve them with the critics."""
        with torch.no_grad():
            z = self.critic.features(obs)
        how = self.config.improve.aggregate
        # only gradients of the actions are requested, so weights need not be detached
        score = lambda actions: self.critic.ranked(z, actions, how, learn=True)  # noqa: E731
        drawn = self.proposals(obs, self.config.improve.samples, mode)
        return self.improver.improve(drawn, score, data, climb)

    # -- learning ---------------------------------------------------------------------------------

    @hook
    def clone_policy(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Take one gradient step on the policy towards the data's actions."""
        t = self.transitions(batch)
        loss = self.policy.loss(as_window(t.obs), t.action).mean()
        norm = self.clone_opt.step(loss)
        self.asked_network.update(self.config.policy_tau)
        return {"clone_loss": loss.detach(), "clone_grad_norm": norm}

    @hook
    def update_policy(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Take one gradient step on the policy towards improved actions (distillation)."""
        t = self.transitions(batch)
        found = self.improved(t.obs, t.action)
        target = self.improver.choose(found, self.config.distil)
        loss = self.policy.loss(as_window(t.obs), target).mean()
        norm = self.policy_opt.step(loss)
        self.asked_network.update(self.config.policy_tau)
        own = self.critic.ranked(self.features(t.obs), self.proposals(t.obs, 1)).mean()
        gain = found.value.amax(1).mean() - own.detach()
        return {"policy_loss": loss.detach(), "policy_grad_norm": norm, "improvement": gain}

    @hook
    def update_critic(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Take one gradient step on the critics, then update their targets."""
        if phase.type == "online" and self.was_offline.value and self.config.restart_critic:
            self.critic_opt.restart()
        self.was_offline.value = int(phase.type == "offline")
        c, t = self.config.conservative, self.transitions(batch)
        floor = return_to_go(batch) if c.calibrated and c.weight else None
        loss, metrics = self.critic_loss(t, floor)
        norm = self.critic_opt.step(loss)
        self.target_network.update(self.config.tau)
        return {**metrics, "critic_grad_norm": norm}

    def transitions(self, batch: Batch) -> Transitions:
        """Convert windows to transitions over action chunks."""
        return chunk_transitions(batch, self.config.gamma, self.horizon)

    @torch.no_grad()
    def features(self, obs: Obs) -> Float[Tensor, "b d"]:
        """Return the critics' input features, without a gradient."""
        return self.critic.features(obs)

    def critic_loss(
        self, t: Transitions, floor: Float[Tensor, " b"] | None
    ) -> tuple[Float[Tensor, ""], Metrics]:
        """Return the Bellman error plus the weighted conservative gap, and metrics."""
        c = self.config.conservative
        here, ahead = self.best_actions(t, both=c.weight > 0)
        with torch.no_grad():
            value = self.target.bootstrap(self.target.features(t.next_obs), ahead)
            target = torch.addcmul(t.reward, t.factor, value)
        z = self.critic.features(t.obs)
        out = self.critic(z, t.action)
        bellman = self.critic.loss(out, target).mean(1).sum()
        q = self.critic.readout.decode(out)
        metrics = {"bellman_loss": bellman.detach(), "q": q.detach().mean()}
        if not c.weight:
            return bellman, metrics
        pushed = self.pushed_down(t, here, ahead)
        gap = conservative_gap(self.critic, z, q, pushed, floor, c).sum()
        return bellman + c.weight * gap, {**metrics, "conservative_gap": gap.detach()}

    def best_actions(
        self, t: Transitions, both: bool
    ) -> tuple[Float[Tensor, "b h a"], Float[Tensor, "b h a"]]:
        """Return the best improved proposals at s and s', computed in one pass.

        Unless `both`, the actions at s are the data's.
        """
        if not both:
            return t.action, self.improver.choose(self.improved(t.next_obs))
        obs = {k: torch.cat([v, t.next_obs[k]]) for k, v in t.obs.items()}
        here, ahead = self.improver.choose(self.improved(obs)).chunk(2)
        return here, ahead

    def pushed_down(
        self, t: Transitions, here: Float[Tensor, "b h a"], ahead: Float[Tensor, "b h a"]
    ) -> list[Proposal]:
        """Return uniform actions, and the best at s and s', each counted as `actions` copies."""
        c = self.config.conservative
        found = [uniform_proposal(t.action, c.actions, c.importance)]
        for action in (here, ahead):
            copies = torch.full_like(action[:, :1, 0], -math.log(c.actions))
            found.append(Proposal(action[:, None], copies, True))
        return found
