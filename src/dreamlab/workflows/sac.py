"""Soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905), continuous and discrete.

The discrete form (Christodoulou 2019, arXiv:1910.07207) computes exact expectations over actions
where the continuous one samples; otherwise the algorithm is the same. n-step targets come from a
replay with windows of n + 1 steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from dreamlab.components.critics.ensemble import (
    ContinuousCritics,
    CriticsConfig,
    DiscreteCritics,
)
from dreamlab.components.critics.transitions import Transitions, transitions
from dreamlab.components.encoder import Encoder, EncoderConfig
from dreamlab.components.policies.heads import TanhGaussianHead
from dreamlab.core.config import Part
from dreamlab.core.errors import ConfigError
from dreamlab.core.limits import Finite, Positive, Share, SomeShare, Width
from dreamlab.core.optim import optimizer_field, optional_optimizer, without_groups
from dreamlab.core.phase import Phase
from dreamlab.core.types import ArraySpec, Batch, Decision, Metrics, Mode, Obs, Spec, Tree
from dreamlab.core.workflow import Workflow, compilable, hook, many_kernels
from dreamlab.nn.dists import Categorical, TanhGaussian
from dreamlab.nn.mlp import MLP, Act, MLPConfig
from dreamlab.nn.target import TargetNetwork, frozen_copy


@dataclass(frozen=True)
class ActorConfig:
    """Hidden layers."""

    hidden: tuple[Width, ...] = (256, 256)
    act: Act = "relu"


@dataclass(frozen=True)
class SACConfig:
    """Defaults of the paper's appendix D."""

    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    """Encoder, trained by the critic loss only; the actor uses its features, detached."""
    actor_encoder: EncoderConfig | None = None
    """Separate encoder of the actor, trained by the actor loss; None uses that of the critics."""
    actor: ActorConfig = field(default_factory=ActorConfig)
    critic: CriticsConfig = field(default_factory=CriticsConfig)
    optimizer: Part = optimizer_field("adam", lr=3e-4)
    """Optimizer of the critics, and of actor and temperature unless they have their own."""
    actor_optimizer: Part | None = optional_optimizer()
    alpha_optimizer: Part | None = optional_optimizer()
    gamma: Share = 0.99
    tau: SomeShare = 0.005
    """Step size of the target critics towards the critics at each update."""
    alpha: Positive = 1.0
    """Initial temperature."""
    target_entropy: Finite | None = None
    """Target entropy of the temperature; None uses -|A|, or 0.98 log |A| if discrete."""


class ContinuousActor(nn.Module):
    """A Gaussian squashed into (-1, 1); expectations use one reparameterized sample."""

    def __init__(self, config: ActorConfig, in_dim: int, action: ArraySpec) -> None:
        super().__init__()
        self.shape = action.shape
        self.net = MLP(MLPConfig(config.hidden, config.act, gain=None), in_dim)
        self.head = TanhGaussianHead(self.net.out_dim, action)
        self.target_entropy = -float(action.size)

    def dist(self, z: Float[Tensor, "b d"]) -> TanhGaussian:
        """Return the action distribution."""
        return self.head.dist(self.net.into(self.head.layer, z))

    def act(self, z: Float[Tensor, "b d"], mode: Mode) -> Float[Tensor, "b ..."]:
        """Return a sample, or the mode in evaluation."""
        dist = self.dist(z)
        action = dist.sample() if mode.samples else dist.mode()
        return action.unflatten(-1, self.shape)

    def value(
        self,
        z: Float[Tensor, "b d"],
        critics: ContinuousCritics,
        seen: Float[Tensor, "b k"],
        alpha: Float[Tensor, ""],
    ) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]]:
        """Return the soft value of states, and the policy's entropy there.

        The actor reads `z`; the critics read `seen`, the same states through the target encoder.
        """
        action, log_prob = self.dist(z).sample_with_log_prob()
        q = critics(seen, action, learn=False).amin(0)
        return q - alpha * log_prob, -log_prob


class DiscreteActor(nn.Module):
    """A categorical over n actions; expectations are exact."""

    def __init__(self, config: ActorConfig, in_dim: int, action: ArraySpec) -> None:
        super().__init__()
        assert isinstance(action.classes, int), action
        self.net = MLP(MLPConfig(config.hidden, config.act, gain=None), in_dim)
        self.head = nn.Linear(self.net.out_dim, action.classes)
        self.target_entropy = 0.98 * math.log(action.classes)

    def act(self, z: Float[Tensor, "b d"], mode: Mode) -> Int[Tensor, " b"]:
        """Return a sample, or the mode in evaluation."""
        dist = Categorical(self.net.into(self.head, z).float())
        return dist.sample() if mode.samples else dist.mode()

    def value(
        self,
        z: Float[Tensor, "b d"],
        critics: DiscreteCritics,
        seen: Float[Tensor, "b k"],
        alpha: Float[Tensor, ""],
    ) -> tuple[Float[Tensor, " b"], Float[Tensor, " b"]]:
        """Return the soft value of states, and the policy's entropy there."""
        log_prob = log_softmax(self.net.into(self.head, z).float(), -1)
        prob = log_prob.exp()
        entropy = -(prob * log_prob).sum(-1)
        q = critics.every(seen, learn=False).amin(0)
        return (prob * q).sum(-1) + alpha * entropy, entropy


class EncodedCritics(nn.Module):
    """Critics and the encoder they train; the target network is a copy of both."""

    def __init__(self, encoder: Encoder, critics: Any) -> None:
        super().__init__()
        self.encoder, self.critics = encoder, critics


KINDS: dict[bool, Any] = {
    True: (DiscreteActor, DiscreteCritics),
    False: (ContinuousActor, ContinuousCritics),
}
"""Actor and critics, by whether the actions are discrete."""


class SAC(Workflow[SACConfig]):
    """Maximum-entropy actor-critic on replayed transitions."""

    Config = SACConfig
    tiny: ClassVar[dict[str, Any]] = {"actor": {"hidden": (8, 8)}, "critic": {"hidden": (8, 8)}}

    def build(self, spec: Spec) -> None:
        c = self.config
        check_action(spec.action)
        actor, critics = KINDS[spec.action.is_discrete]
        encoder = Encoder(c.encoder, spec.obs)
        self.online = EncodedCritics(encoder, critics(c.critic, encoder.out_dim, spec.action))
        self.target = frozen_copy(self.online)
        self.target_network = TargetNetwork(self.target, self.online)
        own = None if c.actor_encoder is None else Encoder(c.actor_encoder, spec.obs)
        self.actor = actor(c.actor, (own or encoder).out_dim, spec.action)
        self.actor_encoder = own
        self.log_alpha = nn.Parameter(torch.tensor(math.log(c.alpha)))
        given = c.target_entropy
        self.target_entropy = self.actor.target_entropy if given is None else given
        same = without_groups(c.optimizer)
        self.critic_opt = self.optimizer("critic", self.online.parameters(), c.optimizer)
        params = [*self.actor.parameters(), *(() if own is None else own.parameters())]
        self.actor_opt = self.optimizer("actor", params, c.actor_optimizer or same)
        self.alpha_opt = self.optimizer("alpha", [self.log_alpha], c.alpha_optimizer or same)

    def decide(self, obs: Obs, is_first: Bool[Tensor, " n"], state: Tree, mode: Mode) -> Decision:
        """Sample from the policy; in evaluation, take its mode."""
        return Decision(self.actor.act(self.actor_features(obs), mode))

    def actor_features(
        self, obs: Obs, z: Float[Tensor, "b k"] | None = None
    ) -> Float[Tensor, "b d"]:
        """Return the actor's features; `z` are those of the critics, if already computed."""
        if self.actor_encoder is not None:
            return self.actor_encoder(obs)
        return self.online.encoder(obs) if z is None else z.detach()

    @hook
    def update_controller(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Take one gradient step each on the critics, the actor and the temperature (alg. 1)."""
        return self.learn(transitions(batch, self.config.gamma))

    @compilable
    @many_kernels
    def learn(self, t: Transitions) -> Metrics:
        """Take the three gradient steps, then update the target critics."""
        alpha = self.log_alpha.detach().exp()
        z = self.online.encoder(t.obs)
        critic_loss, q = self.critic_loss(z, t, alpha)
        critic_norm = self.critic_opt.step(critic_loss)
        actor_loss, entropy = self.actor_loss(self.actor_features(t.obs, z), z.detach(), alpha)
        actor_norm = self.actor_opt.step(actor_loss)
        self.alpha_opt.step(self.alpha_loss(entropy))
        self.target_network.update(self.config.tau)
        return {
            "critic_loss": critic_loss.detach(),
            "actor_loss": actor_loss.detach(),
            "q": q.detach().mean(),
            "entropy": entropy,
            "alpha": alpha,
            "critic_grad_norm": critic_norm,
            "actor_grad_norm": actor_norm,
        }

    def critic_loss(
        self, z: Float[Tensor, "b d"], t: Transitions, alpha: Float[Tensor, ""]
    ) -> tuple[Float[Tensor, ""], Float[Tensor, "n b"]]:
        """Return the soft Bellman error, summed over critics (eq. 5), and their values."""
        with torch.no_grad():
            seen = self.target.encoder(t.next_obs)
            ahead = self.actor_features(t.next_obs)
            value, _ = self.actor.value(ahead, self.target.critics, seen, alpha)
            target = torch.addcmul(t.reward, t.factor, value)
        readout, out = self.online.critics.readout, self.online.critics.outputs(z, t.action)
        error = readout.loss(out, target.expand(out.shape[:-1])).sum()
        return 0.5 / len(target) * error, readout.decode(out)

    def actor_loss(
        self, z: Float[Tensor, "b d"], seen: Float[Tensor, "b k"], alpha: Float[Tensor, ""]
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """Return the negative soft value (eq. 7 and 9) and the detached mean entropy.

        The actor reads `z`, the critics read `seen`.
        """
        value, entropy = self.actor.value(z, self.online.critics, seen, alpha)
        return -value.mean(), entropy.detach().mean()

    def alpha_loss(self, entropy: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """Return the temperature loss: alpha rises while entropy is below target (eq. 18)."""
        return self.log_alpha * (entropy - self.target_entropy)


def check_action(action: ArraySpec) -> None:
    """Raise unless actions are one of n or continuous in [-1, 1]."""
    if isinstance(action.classes, tuple):
        raise ConfigError(
            f"workflow: SAC takes one discrete action at a time, this environment "
            f"{len(action.classes)} at once. Use PPO, which handles several."
        )
    if action.classes is None and (action.low, action.high) != (-1.0, 1.0):
        raise ConfigError(
            f"workflow: SAC acts in [-1, 1], but this environment's actions are in "
            f"[{action.low}, {action.high}]. Set env.scale_actions=true."
        )
