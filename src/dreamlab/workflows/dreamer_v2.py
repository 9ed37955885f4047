"""DreamerV2 (Hafner et al. 2021, arXiv:2010.02193): discrete world model, actor-critic in dreams.

One update: the world model takes a gradient step on replayed sequences; from every posterior state
it imagines `imagine` steps ahead with the current policy; actor and critic are trained on these
dreams only.

Defaults are those for Atari; docs/algorithms/dreamer_v2.md lists those for continuous control.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, cast

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor
from torch.nn import functional as F

from dreamlab.components.heads import LatentPolicy, PolicyConfig
from dreamlab.components.world_models.codec import one_hot
from dreamlab.components.world_models.codec_planet import PlaNetCodecConfig
from dreamlab.components.world_models.protocol import Policy
from dreamlab.components.world_models.rssm import Latent
from dreamlab.components.world_models.rssm_planet import PlaNetRSSMConfig
from dreamlab.components.world_models.workflow import WorldModelWorkflow
from dreamlab.components.world_models.world_model_planet import (
    PlaNetModel,
    PlaNetModelConfig,
    Posterior,
    check_range,
    cont_head,
    number_head,
)
from dreamlab.core import world
from dreamlab.core.config import Part, part
from dreamlab.core.limits import Depth, Natural, NonNegative, Positive, PositiveInt, Share, Width
from dreamlab.core.optim import optimizer_field
from dreamlab.core.phase import Phase
from dreamlab.core.types import Batch, Decision, Metrics, Mode, Obs, Report, Spec, Tree
from dreamlab.core.workflow import Workflow, hook
from dreamlab.nn.counter import Count
from dreamlab.nn.dists import Categorical, Dist, MultiCategorical
from dreamlab.nn.init import glorot
from dreamlab.nn.layers import ActKind, NormKind
from dreamlab.nn.target import TargetNetwork, frozen_copy
from dreamlab.nn.truncated import TruncatedNormal
from dreamlab.ops.estimators import ESTIMATORS, ReturnEstimator
from dreamlab.ops.returns_planet import own_rewards


def _adamw(lr: float) -> Any:
    """Declare the paper's optimizer: AdamW with weight decay independent of the learning rate."""
    common = {"eps": 1e-5, "clip": 100.0, "weight_decay": 1e-6, "decay_follows_lr": False}
    return optimizer_field("adamw", lr=lr, **common)


@dataclass(frozen=True)
class ActorConfig(PolicyConfig):
    """Hidden layers of the actor, and bounds on its randomness."""

    norm: NormKind = "none"
    act: ActKind = "elu"
    units: Width = 400
    layers: Depth = 4
    max_std: Positive = 2.1


@dataclass(frozen=True)
class DreamerV2Config:
    """Defaults of the paper's Atari agent."""

    rssm: PlaNetRSSMConfig = field(
        default_factory=lambda: PlaNetRSSMConfig(600, 600, 32, classes=32, cell="layer_norm")
    )
    codec: PlaNetCodecConfig = field(
        default_factory=lambda: PlaNetCodecConfig(depth=48, layers=4, conv_act="elu")
    )
    reward: Part = number_head(layers=4)
    cont: Part = cont_head(layers=4)
    """Continuation head, if continuation is predicted (`cont_scale`)."""
    actor: ActorConfig = field(default_factory=ActorConfig)
    critic: Part = number_head(layers=4)
    squash_reward: bool = False
    """Predict tanh of the rewards, as the paper does on Atari."""
    kl_scale: NonNegative = 0.1
    kl_balance: Share = 0.8
    """Share of the KL gradient that trains the prior; the rest trains the posterior."""
    free_nats: NonNegative = 0.0
    """Minimum of the batch-mean KL divergence; below it there is no gradient."""
    cont_scale: NonNegative = 5.0
    """Weight of the continuation loss; 0 disables it, and dreams never end."""
    gamma: Share = 0.999
    returns: Part = part("lambda_return", ESTIMATORS, ReturnEstimator)
    """Return estimator for dreams: `lambda_return`, `gae`, `n_step`, `monte_carlo`."""
    imagine: PositiveInt = 15
    """Imagination horizon in steps."""
    imagine_last: Natural = 0
    """Imagine only from this many last states of each window; 0 uses all, as the paper does."""
    actor_grad: Literal["auto", "reinforce", "dynamics", "both"] = "auto"
    """Gradient of the actor: score function, through the dynamics, or both;
    `auto` is `reinforce` for discrete actions and `dynamics` for continuous ones.
    """
    actor_mix: Share = 0.1
    """With `both`, the share of the dynamics gradient."""
    entropy: NonNegative = 1e-3
    slow_every: PositiveInt = 100
    """Updates between copies of the critic to the slow critic."""
    model_optimizer: Part = _adamw(lr=2e-4)
    actor_optimizer: Part = _adamw(lr=4e-5)
    critic_optimizer: Part = _adamw(lr=1e-4)


@dataclass(frozen=True)
class Dream:
    """Imagined states with their rewards, values and targets.

    state      0     1     2     3 = horizon      the first is real, the others are imagined
    action     a0    a1    a2    a3               taken there; the last is not executed
    reward     r0    r1    r2    r3               received on arriving there
    discount   d0    d1    d2    d3               of what follows
    weight     1     d0    d0d1  d0d1d2           probability that the dream gets there
    value      v0    v1    v2    v3               of the slow critic
    target     t0    t1    t2                     t[i] = r[i] + d[i] ((1-lam) v[i+1] + lam t[i+1])
    """

    feature: Float[Tensor, "n t d"]
    action: Shaped[Tensor, "n t ..."]
    reward: Float[Tensor, "n t"]
    discount: Float[Tensor, "n t"]
    weight: Float[Tensor, "n t"]
    value: Float[Tensor, "n t"]
    target: Float[Tensor, "n t-1"]


class Actor(LatentPolicy):
    """Policy on latent states: categorical, or Gaussian truncated to [-1, 1]."""

    def forward(self, feature: Float[Tensor, "*b d"]) -> Dist:
        if self.action.classes is not None:
            return super().forward(feature)
        x = self.net(feature)
        low, high = self.config.min_std, self.config.max_std
        std = (high - low) * torch.sigmoid(self.stddev(x).float() / 2) + low
        return TruncatedNormal(torch.tanh(self.mean(x).float()), std)

    def passing(self, dist: Dist, action: Shaped[Tensor, " ..."]) -> Float[Tensor, " ..."]:
        """Return differentiable samples: straight-through for discrete actions."""
        if self.action.classes is None:
            return self.shaped(action)
        single = isinstance(dist, Categorical)
        parts = [dist] if single else cast(MultiCategorical, dist).parts
        probs = torch.cat([F.softmax(p.logits, -1) for p in parts], -1)
        return one_hot(action, self.action.classes) + (probs - probs.detach())

    def log_prob(self, dist: Dist, action: Shaped[Tensor, " ..."]) -> Float[Tensor, "*b"]:
        """Return the log-probability of an action from `sample`, `shaped` or `passing`."""
        action, classes = action.detach(), self.action.classes
        if classes is None:
            return dist.log_prob(action.flatten(action.ndim - len(self.action.shape)))
        if action.is_floating_point():
            sizes = [classes] if isinstance(classes, int) else list(classes)
            chosen = [part.argmax(-1) for part in action.split(sizes, -1)]
            action = chosen[0] if isinstance(classes, int) else torch.stack(chosen, -1)
        return dist.log_prob(action)


class DreamerV2(WorldModelWorkflow, Workflow[DreamerV2Config]):
    """World model, actor, critic and its slow copy."""

    Config = DreamerV2Config
    tiny: ClassVar[dict[str, Any]] = {
        "rssm": {"deter": 16, "hidden": 8, "stoch": 4, "classes": 4},
        "codec": {"depth": 2, "units": 8, "layers": 1},
        **{k: {"units": 8, "layers": 1} for k in ("reward", "cont", "actor", "critic")},
        "imagine": 3, "slow_every": 2, "free_nats": 0.0,
    }  # fmt: skip

    def build(self, spec: Spec) -> None:
        c = self.config
        check_range(spec.action, "DreamerV2")
        cont = c.cont if c.cont_scale else None
        self.model = PlaNetModel(PlaNetModelConfig(c.rssm, c.codec, c.reward, cont, c.gamma), spec)
        self.actor = glorot(Actor(c.actor, self.model.dim, spec.action))
        self.critic = glorot(c.critic.build(self.model.dim))
        self.returns: ReturnEstimator = c.returns.build()
        self.slow = frozen_copy(self.critic)
        self.target_network = TargetNetwork(self.slow, self.critic)
        self.updates = Count()
        discrete = "reinforce" if spec.action.is_discrete else "dynamics"
        self.actor_grad = discrete if c.actor_grad == "auto" else c.actor_grad
        self.optimizer("model", self.model.parameters(), c.model_optimizer)
        self.optimizer("actor", self.actor.parameters(), c.actor_optimizer)
        self.optimizer("critic", self.critic.parameters(), c.critic_optimizer)

    # -- acting -----------------------------------------------------------------------------------

    def initial_state(self, num_envs: int) -> Tree:
        """Return the initial latent state and previous action."""
        return self.model.before(num_envs, self.device)

    def decide(self, obs: Obs, is_first: Bool[Tensor, " n"], state: Tree, mode: Mode) -> Decision:
        """Update the latent state and sample an action; in evaluation, take the mode."""
        latent = self.model.after(obs, is_first, state, mode)
        dist = self.actor(latent.feature)
        action = self.actor.shaped(dist.sample() if mode.samples else dist.mode())
        return Decision(action, self.pack_state(latent, action))

    # -- learning ---------------------------------------------------------------------------------

    @hook
    def update_world_model(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Take one gradient step on the world model alone, for pretraining."""
        return {k: v.detach() for k, v in self.learn_model(batch)[0].items()}

    @hook
    def update_agent(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Take a gradient step on the world model, then on actor and critic in its dreams."""
        metrics, seen = self.learn_model(batch)
        last = self.config.imagine_last
        recent = slice(-last, None) if last else slice(None)
        start = Latent(*(x[:, recent] for x in seen.latent.detach())).flat()
        metrics |= self.learn_actor_critic(start, batch.is_terminal[:, recent].flatten())
        return {k: v.detach() for k, v in metrics.items()}

    def learn_model(self, batch: Batch) -> tuple[Metrics, Posterior]:
        """Take one gradient step on the world model (eq. 2); return metrics and the posterior."""
        c = self.config
        reward = self.squashed(batch.reward)
        seen = self.model.follow(batch)
        losses = {k: v.mean() for k, v in self.losses(seen, reward, batch.is_terminal).items()}
        scales = {"kl": c.kl_scale, "cont": c.cont_scale}
        loss = torch.stack([scales.get(k, 1.0) * v for k, v in losses.items()]).sum()
        norm = self.optimizers["model"].step(loss)
        post, prior = (self.model.rssm.dist(x.detach()) for x in (seen.post, seen.prior))
        entropies = {"post_entropy": post.entropy().mean(), "prior_entropy": prior.entropy().mean()}
        named = {f"loss/{k}": v for k, v in losses.items()}
        return {"model_loss": loss, "model_grad_norm": norm, **named, **entropies}, seen

    def squashed(self, reward: Float[Tensor, "b t"]) -> Float[Tensor, "b t"]:
        """Return the rewards as prediction targets."""
        return torch.tanh(reward) if self.config.squash_reward else reward

    def report(self, batch: Batch) -> Report:
        """Return open-loop prediction metrics on replayed sequences, and images of them."""
        return super().report(replace(batch, reward=self.squashed(batch.reward)))

    def losses(
        self, seen: Posterior, reward: Float[Tensor, "b t"], is_terminal: Bool[Tensor, "b t"]
    ) -> dict[str, Float[Tensor, " ..."]]:
        """Return the world model losses, neither weighted nor averaged."""
        out = self.model.losses(seen, reward, is_terminal)
        return {**out, "kl": self.balanced_kl(seen.post, seen.prior)}

    def balanced_kl(
        self, post: Float[Tensor, "b t k"], prior: Float[Tensor, "b t k"]
    ) -> Float[Tensor, ""]:
        """Return the balanced KL divergence (algorithm 2)."""
        c = self.config
        p, q = self.model.rssm.dist(post), self.model.rssm.dist(prior)
        to_prior = world.mean(p.detach().kl(q).mean()).clamp(min=c.free_nats)
        to_post = world.mean(p.kl(q.detach()).mean()).clamp(min=c.free_nats)
        return c.kl_balance * to_prior + (1 - c.kl_balance) * to_post

    def learn_actor_critic(self, start: Latent, is_terminal: Bool[Tensor, " n"]) -> Metrics:
        """Take one gradient step each on actor and critic, in dreams from states [n, ...]."""
        dream = self.dream(start, is_terminal)
        policy, metrics = self.actor_loss(dream)
        metrics |= {"actor_loss": policy, "actor_grad_norm": self.optimizers["actor"].step(policy)}
        value = self.critic_loss(dream)
        metrics |= {"critic_loss": value, "critic_grad_norm": self.optimizers["critic"].step(value)}
        if self.updates.value % self.config.slow_every == 0:
            self.target_network.update(1.0)
        self.updates.value += 1
        return metrics

    def policy(self, latent: Latent) -> Shaped[Tensor, "n ..."]:
        """Sample actions for states [n, ...], without gradients to the states."""
        return self.actor.shaped(self.actor(latent.detach().feature).sample())

    def passing_policy(self, latent: Latent) -> Float[Tensor, "n ..."]:
        """Sample differentiable actions."""
        dist = self.actor(latent.detach().feature)
        return self.actor.passing(dist, dist.sample())

    def dream(
        self, start: Latent, is_terminal: Bool[Tensor, " n"], policy: Policy | None = None
    ) -> Dream:
        """Imagine from every state and compute values; for the first, termination is known."""
        c = self.config
        through = self.actor_grad != "reinforce"
        with torch.set_grad_enabled(through):
            chosen = policy or (self.passing_policy if through else self.policy)
            latent, action = self.imagine(c.imagine, start, chosen)
            feature = latent.feature
            reward, value = self.model.rewards(feature), self.slow.mean(self.slow(feature))
            discount = self.model.predict_discount(feature)
            if self.model.cont is not None:
                known = (~is_terminal).float()[:, None] * c.gamma
                discount = torch.cat([known, discount[:, 1:]], 1)
            target = self.returns.returns(own_rewards(reward, discount, value))
        reached = torch.cat([torch.ones_like(discount[:, :1]), discount[:, :-1]], 1)
        weight = torch.cumprod(reached.detach(), 1)
        return Dream(feature, action, reward, discount, weight, value, target)

    def actor_loss(self, dream: Dream) -> tuple[Float[Tensor, ""], Metrics]:
        """Return the actor loss (eq. 6): an action is scored by what follows its state."""
        c = self.config
        dist = self.actor(dream.feature[:, :-2].detach())
        later, baseline = dream.target[:, 1:], dream.value[:, :-2]
        gain = later
        if self.actor_grad != "dynamics":
            score = self.actor.log_prob(dist, dream.action[:, :-2])
            gain = score * (later - baseline).detach()
        if self.actor_grad == "both":
            gain = c.actor_mix * later + (1 - c.actor_mix) * gain
        entropy = dist.entropy()
        loss = -(dream.weight[:, :-2] * (gain + c.entropy * entropy)).mean()
        entropies = {
            "return": dream.target.mean(), "value": dream.value.mean(), "entropy": entropy.mean(),
            "imagined_reward": dream.reward.mean(), "weight": dream.weight.mean(),
        }  # fmt: skip
        return loss, entropies

    def critic_loss(self, dream: Dream) -> Float[Tensor, ""]:
        """Return the value regression loss (eq. 5), weighted by the probability to get there."""
        value = self.critic(dream.feature[:, :-1].detach())
        error = self.critic.loss(value, dream.target.detach())
        return (dream.weight[:, :-1] * error).mean()
