"""Reinforcement learning of diffusion and flow policies: ranking, Q-loss, guidance, each optional.

The critics are IQL's. Ranking several samples by their values is IDQL (Hansen-Estruch et al. 2023,
arXiv:2304.10573). A loss that backpropagates the critic through the whole denoising chain is DQL
(Wang et al. 2023, arXiv:2208.06193). RIC is this lab's reading of "regularised with an inverse
dynamics constraint": at any noise level, the denoised actions should be recoverable from their
predicted effect and have a high value in a latent world model. With everything off, this is plain
imitation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from dreamlab.components import HOME
from dreamlab.components.action_optimizer import ActionOptimizer, ActionOptimizerConfig
from dreamlab.components.critics.implicit import ImplicitConfig, ImplicitCritic
from dreamlab.components.critics.transitions import Transitions, as_window, chunk_transitions
from dreamlab.components.policies.chunk_actor import ChunkActor, whole_chunk
from dreamlab.components.policies.generative import GenerativePolicy, Guidance
from dreamlab.components.policies.protocol import evaluating
from dreamlab.components.world_models.controllable import ControllableWorld, RICConfig
from dreamlab.core import world
from dreamlab.core.config import Part, part
from dreamlab.core.limits import NonNegative, Share, SomeShare
from dreamlab.core.optim import optimizer_field
from dreamlab.core.phase import Phase
from dreamlab.core.types import Batch, Metrics, Mode, Obs, Spec
from dreamlab.core.workflow import hook
from dreamlab.nn.target import TargetNetwork, frozen_copy
from dreamlab.ops.scaling import update_spread


def _ranking() -> ActionOptimizerConfig:
    return ActionOptimizerConfig(samples=64, keep=1, steps=0)


@dataclass(frozen=True)
class DiffusionRLConfig:
    """IDQL by default; the weights of all other terms are 0 or None."""

    policy: Part = part("diffusion", HOME, GenerativePolicy, levels=5, betas="vp")
    """`diffusion` or `flow`."""
    critic: ImplicitConfig = field(default_factory=ImplicitConfig)
    rank: ActionOptimizerConfig = field(default_factory=_ranking)
    """How an action is chosen from samples; `samples=1` returns the policy's sample."""
    q_loss: NonNegative = 0.0
    """Weight of the Q-values of samples in the policy loss (DQL's eta)."""
    ric: RICConfig | None = None
    """RIC's two terms and its model; None disables both."""
    guidance_scale: NonNegative = 0.0
    """Scale of the value gradient that guides samples at the noisiest step; 0 disables it."""
    last_guidance_scale: NonNegative | None = None
    """Guidance scale at the last step; None uses that of the first."""
    normalize_guidance: bool = False
    optimizer: Part = optimizer_field("adam", lr=3e-4)
    """Optimizer of the critics and of RIC's model."""
    policy_optimizer: Part = optimizer_field("adam", lr=3e-4, ema=0.995)
    gamma: Share = 0.99
    scale_rate: SomeShare = 0.01
    """Update rate of the running value range that normalizes values."""


class DiffusionRL(ChunkActor[DiffusionRLConfig]):
    """A generative policy, IQL's critics and, for RIC, a latent world model."""

    Config = DiffusionRLConfig
    plans: ClassVar[bool] = True
    tiny: ClassVar[dict[str, Any]] = {
        "policy": {"levels": 3, "net": {"width": 8, "blocks": 1, "time_dim": 8}},
        "critic": {"q": {"hidden": (8, 8)}},
        "rank": {"samples": 3},
    }
    value_scale: Float[Tensor, ""]
    quantiles: Float[Tensor, " 2"]

    def build(self, spec: Spec) -> None:
        c = self.config
        self.policy: GenerativePolicy = c.policy.build(spec)
        self.horizon = whole_chunk(self.policy)
        self.critic = ImplicitCritic(c.critic, spec, self.horizon)
        self.ranking = ActionOptimizer(c.rank)
        learnt = self.critic.learnt()
        self.world = (
            None if c.ric is None else ControllableWorld(c.ric, spec, c.gamma, self.horizon)
        )
        if self.world is not None:
            self.slow_world = frozen_copy(self.world)
            self.world_network = TargetNetwork(self.slow_world, self.world)
            learnt += self.world.parameters()
        self.critic_opt = self.optimizer("critic", learnt, c.optimizer)
        self.critic_opt.limit = None if self.world is None else self.world.model.task_limit()
        self.policy_opt = self.optimizer("policy", self.policy.parameters(), c.policy_optimizer)
        self.register_buffer("value_scale", torch.ones(()))
        self.register_buffer("quantiles", torch.tensor([0.05, 0.95]), persistent=False)

    # -- acting -----------------------------------------------------------------------------------

    def chunk(self, obs: Obs, mode: Mode) -> Float[Tensor, "n h a"]:
        """Return the best of several samples, guided if configured; `POLICY` takes one, unguided.

        A deterministic decision is not guided: it must be exportable, so it contains no gradient.
        """
        alone = mode in (Mode.POLICY, Mode.FIXED)
        num = 1 if alone else self.config.rank.samples
        with evaluating(self.policy):
            guidance = None if alone else self.guidance(obs)
            drawn = self.policy.sample(as_window(obs), num, mode=mode, guidance=guidance)
        if num == 1 and not self.config.rank.steps:
            return drawn[:, 0]
        z = self.critic.q.features(obs)
        how = self.config.rank.aggregate
        found = self.ranking.improve(drawn, lambda a: self.critic.q.ranked(z, a, how))
        return self.ranking.choose(found)

    def guidance(self, obs: Obs) -> Guidance | None:
        """Return the guidance objective: RIC's value and constraint, else the critics' value."""
        c = self.config
        if not (c.guidance_scale or c.last_guidance_scale):
            return None
        scales = (c.guidance_scale, c.last_guidance_scale, c.normalize_guidance)
        if c.ric is None:
            z = self.critic.q.features(obs).detach()
            return Guidance(lambda a: self.critic.q.ranked(z, a) / self.value_scale, *scales)
        seen, task = self.slow_world.encode(obs)

        def value(actions: Float[Tensor, "b n h a"]) -> Float[Tensor, "b n"]:
            num = actions.shape[1]
            rows, tasks = seen.repeat_interleave(num, 0), task.repeat_interleave(num, 0)
            worth, missed = self.slow_world.judge(rows, tasks, actions.flatten(0, 1))
            assert c.ric is not None
            return (worth / self.value_scale - c.ric.constraint * missed).unflatten(0, (-1, num))

        return Guidance(value, *scales)

    # -- learning ---------------------------------------------------------------------------------

    @hook
    def update_critic(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Take one gradient step on the critics and, if present, on the latent world model."""
        t = self.transitions(batch)
        loss, metrics, q = self.critic.loss(t)
        if self.world is not None:
            more, found = self.world.losses(batch, self.critic.value)
            loss, metrics = loss + more, metrics | found
        norm = self.critic_opt.step(loss)
        self.critic.follow()
        if self.world is not None:
            self.world_network.update(self.world.config.tau)
        self.measure_values(t, q)
        return {**metrics, "critic_grad_norm": norm}

    @torch.no_grad()
    def measure_values(self, t: Transitions, q: Float[Tensor, "m b"]) -> None:
        """Update the running range of the values that guide, unless RIC's terms do so.

        They are those of the data's actions, by the critics (`q`) or by RIC's model.
        """
        ric = self.config.ric
        if ric is None:
            self.update_scale(q.mean(0))
        elif not (ric.constraint or ric.value):
            self.update_scale(self.slow_world.judge(*self.slow_world.encode(t.obs), t.action)[0])

    def update_scale(self, worth: Float[Tensor, " b"]) -> Float[Tensor, ""]:
        """Move the running range of values towards that of these; return it."""
        rate = self.config.scale_rate
        return update_spread(worth.detach(), self.quantiles, self.value_scale, rate)

    @hook
    def update_policy(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Take one gradient step on the policy: imitation plus the enabled terms."""
        loss, metrics = self.policy_loss(self.transitions(batch))
        norm = self.policy_opt.step(loss)
        return {**metrics, "policy_loss": loss.detach(), "policy_grad_norm": norm}

    def transitions(self, batch: Batch) -> Transitions:
        """Convert windows to transitions over action chunks."""
        return chunk_transitions(batch, self.config.gamma, self.horizon)

    def policy_loss(self, t: Transitions) -> tuple[Float[Tensor, ""], Metrics]:
        """Return the policy's own loss plus all enabled terms, weighted, and metrics."""
        c, seen = self.config, as_window(t.obs)
        estimate = self.policy.estimate(seen, t.action)
        loss = estimate.loss.mean()
        metrics: Metrics = {"imitation_loss": loss.detach()}
        if c.q_loss:
            pull = self.q_loss(t.obs)
            loss, metrics["q_term"] = loss + c.q_loss * pull, pull.detach()
        if c.ric is not None and (c.ric.constraint or c.ric.value):
            worth, missed = self.ric_terms(t.obs, estimate.clean)
            terms = c.ric.constraint * missed - c.ric.value * worth
            loss = loss + (estimate.signal * terms).mean()
            metrics |= {"ric_value": worth.detach().mean(), "ric_missed": missed.detach().mean()}
        return loss, metrics

    def q_loss(self, obs: Obs) -> Float[Tensor, ""]:
        """Return the negative Q-values of samples, divided by their mean magnitude (DQL, eq. 3)."""
        action = self.policy.sample(as_window(obs))[:, 0]
        q = self.critic.q.values(self.critic.q.features(obs).detach(), action).mean(0)
        return -q.mean() / world.mean(q.detach().mean()).abs().clamp(min=1e-6)

    def ric_terms(
        self, obs: Obs, clean: Float[Tensor, "b h a"]
    ) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]]:
        """Return the value of the denoised actions and the inverse model's error on them."""
        worth, missed = self.slow_world.judge(*self.slow_world.encode(obs), clean.clamp(-1, 1))
        return worth / self.update_scale(worth), missed
