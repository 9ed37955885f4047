"""TD3+BC (Fujimoto and Gu 2021, arXiv:2106.06860): TD3 with a behavior cloning term.

TD3 (Fujimoto et al. 2018, arXiv:1802.09477): a deterministic actor, clipped double Q-learning with
target policy smoothing, and delayed actor updates. `alpha` weights values against imitation;
`imitation=0` is TD3, which explores with action noise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from dreamlab.components.critics.q_function import QConfig, QFunction
from dreamlab.components.critics.transitions import Transitions, chunk_transitions
from dreamlab.components.encoder import Encoder, EncoderConfig
from dreamlab.components.policies.chunk_actor import ChunkActor
from dreamlab.core import world
from dreamlab.core.config import Part
from dreamlab.core.limits import NonNegative, Positive, PositiveInt, Share, SomeShare, Width
from dreamlab.core.optim import optimizer_field
from dreamlab.core.phase import Phase
from dreamlab.core.types import Batch, Metrics, Mode, Obs, Spec
from dreamlab.core.workflow import compilable, hook
from dreamlab.nn.counter import Count
from dreamlab.nn.mlp import MLP, Act, MLPConfig
from dreamlab.nn.target import TargetNetwork, frozen_copy


@dataclass(frozen=True)
class ActorConfig:
    """Encoder and hidden layers."""

    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    hidden: tuple[Width, ...] = (256, 256)
    act: Act = "relu"


@dataclass(frozen=True)
class TD3BCConfig:
    """Hyperparameters of the paper."""

    actor: ActorConfig = field(default_factory=ActorConfig)
    critic: QConfig = field(default_factory=QConfig)
    alpha: Positive = 2.5
    """Weight of the values, which are normalized by their mean magnitude."""
    imitation: NonNegative = 1.0
    """Weight of the behavior cloning loss; 0 disables it."""
    policy_noise: NonNegative = 0.2
    """Standard deviation of the target policy smoothing noise."""
    noise_clip: NonNegative = 0.5
    exploration: NonNegative = 0.1
    """Standard deviation of the exploration noise."""
    actor_every: PositiveInt = 2
    """Critic updates per update of the actor and the targets."""
    optimizer: Part = optimizer_field("adam", lr=3e-4)
    """Optimizer of the critics."""
    actor_optimizer: Part = optimizer_field("adam", lr=3e-4)
    gamma: Share = 0.99
    tau: SomeShare = 0.005


class Actor(nn.Module):
    """Deterministic policy."""

    def __init__(self, config: ActorConfig, spec: Spec) -> None:
        super().__init__()
        self.encoder = Encoder(config.encoder, spec.obs)
        self.net = MLP(MLPConfig(config.hidden, config.act, gain=None), self.encoder.out_dim)
        self.head = nn.Linear(self.net.out_dim, spec.action.size)

    def forward(self, obs: Obs) -> Float[Tensor, "b a"]:
        return self.net.into(self.head, self.encoder(obs)).float().tanh()


class TD3BC(ChunkActor[TD3BCConfig]):
    """Twin critics, a deterministic actor, and target networks of all."""

    Config = TD3BCConfig
    tiny: ClassVar[dict[str, Any]] = {"actor": {"hidden": (8, 8)}, "critic": {"hidden": (8, 8)}}

    def build(self, spec: Spec) -> None:
        c, self.horizon = self.config, 1
        self.critic, self.actor = QFunction(c.critic, spec, self.horizon), Actor(c.actor, spec)
        self.target_critic = frozen_copy(self.critic)
        self.target_actor = frozen_copy(self.actor)
        self.targets = [
            TargetNetwork[nn.Module](self.target_critic, self.critic),
            TargetNetwork[nn.Module](self.target_actor, self.actor),
        ]
        self.critic_opt = self.optimizer("critic", self.critic.parameters(), c.optimizer)
        self.actor_opt = self.optimizer("actor", self.actor.parameters(), c.actor_optimizer)
        self.updates = Count()

    def chunk(self, obs: Obs, mode: Mode) -> Float[Tensor, "n 1 a"]:
        """Return the actor's action, with exploration noise when sampling."""
        action = self.actor(obs)
        if mode.samples:
            action = (action + self.config.exploration * torch.randn_like(action)).clamp(-1, 1)
        return action[:, None]

    @hook
    def update_controller(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Take a gradient step on the critics and, every `actor_every` updates, on the actor."""
        t = chunk_transitions(batch, self.config.gamma, 1)
        metrics = self.learn_values(t)
        self.updates.value += 1
        if self.updates.value % self.config.actor_every == 0:
            metrics |= self.learn_actor(t)
        return metrics

    @compilable
    def learn_values(self, t: Transitions) -> Metrics:
        """Take one gradient step on the critics."""
        target = self.bellman_target(t)
        out = self.critic(self.critic.features(t.obs), t.action)
        loss = self.critic.loss(out, target).mean(1).sum()
        norm = self.critic_opt.step(loss)
        q = self.critic.readout.decode(out).mean()
        return {"critic_loss": loss.detach(), "q": q.detach(), "critic_grad_norm": norm}

    @torch.no_grad()
    def bellman_target(self, t: Transitions) -> Float[Tensor, " b"]:
        """Compute the TD targets with clipped double Q and smoothing (TD3, algorithm 1)."""
        c, action = self.config, self.target_actor(t.next_obs)
        noise = (c.policy_noise * torch.randn_like(action)).clamp(-c.noise_clip, c.noise_clip)
        action = (action + noise).clamp(-1, 1)
        value = self.target_critic.bootstrap(self.target_critic.features(t.next_obs), action)
        return torch.addcmul(t.reward, t.factor, value)

    @compilable
    def learn_actor(self, t: Transitions) -> Metrics:
        """Take one gradient step on the actor, then update the targets."""
        loss, distance = self.actor_loss(t)
        norm = self.actor_opt.step(loss)
        for network in self.targets:
            network.update(self.config.tau)
        return {"actor_loss": loss.detach(), "imitation": distance, "actor_grad_norm": norm}

    def actor_loss(self, t: Transitions) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """Return -lambda Q + (pi - a)^2, with lambda = alpha / mean |Q| (eq. 3, 4)."""
        c, action = self.config, self.actor(t.obs)
        with torch.no_grad():
            z = self.critic.features(t.obs)
        q = self.critic.values(z, action)[0]
        scale = c.alpha / world.mean(q.detach().abs().mean()).clamp(min=1e-6)
        distance = mse_loss(action, t.action[:, 0])
        return -scale * q.mean() + c.imitation * distance, distance.detach()
