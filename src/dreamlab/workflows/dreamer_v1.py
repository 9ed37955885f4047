"""DreamerV1 (Hafner et al. 2020, arXiv:1912.01603): learn behaviors by backpropagating dreams.

One update: the world model is trained on replayed sequences; from every posterior state it imagines
`imagine` steps ahead; the actor maximizes the imagined returns, with gradients through the
dynamics; the critic regresses on these returns; then every part takes a gradient step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from dreamlab.components.world_models.codec_planet import PlaNetCodecConfig
from dreamlab.components.world_models.protocol import Policy
from dreamlab.components.world_models.rssm import Latent
from dreamlab.components.world_models.rssm_planet import PlaNetRSSMConfig
from dreamlab.components.world_models.workflow import WorldModelWorkflow
from dreamlab.components.world_models.world_model_planet import (
    HeadConfig,
    PlaNetModel,
    PlaNetModelConfig,
    Posterior,
    check_continuous,
    cont_head,
    number_head,
)
from dreamlab.core import world
from dreamlab.core.config import Part, part
from dreamlab.core.limits import Depth, Natural, NonNegative, Positive, PositiveInt, Share
from dreamlab.core.optim import optimizer_field
from dreamlab.core.phase import Phase
from dreamlab.core.types import ArraySpec, Batch, Decision, Metrics, Mode, Obs, Spec, Tree
from dreamlab.core.workflow import Workflow, hook
from dreamlab.nn.dists import TanhGaussian
from dreamlab.nn.init import glorot
from dreamlab.nn.layers import NormMLP, dense
from dreamlab.ops.estimators import ESTIMATORS, ReturnEstimator
from dreamlab.ops.returns_planet import own_rewards


@dataclass(frozen=True)
class TanhPolicyConfig(HeadConfig):
    """Hidden layers of the actor, and options of its distribution."""

    layers: Depth = 4
    init_std: Positive = 5.0
    """Initial standard deviation of the policy, before squashing."""
    mode_samples: PositiveInt = 100
    """In evaluation, act with the likeliest of this many samples."""


class TanhPolicy(nn.Module):
    """Policy on latent states: Gaussians squashed into (-1, 1), wide at first."""

    def __init__(self, config: TanhPolicyConfig, in_dim: int, action: ArraySpec) -> None:
        super().__init__()
        self.shape, c = action.shape, config
        self.net = NormMLP(in_dim, c.units, c.layers, c)
        self.out = dense(self.net.out_dim, 2 * action.size)
        self.raw_std = math.log(math.expm1(c.init_std))
        self.mode_samples = c.mode_samples

    def forward(self, feature: Float[Tensor, "*b d"]) -> TanhGaussian:
        """Return the action distribution."""
        mean, std = self.out(self.net(feature)).float().chunk(2, -1)
        std = F.softplus(std + self.raw_std) + 1e-4
        return TanhGaussian(5 * torch.tanh(mean / 5), std.log())

    def likeliest(self, dist: TanhGaussian) -> Float[Tensor, "n a"]:
        """Return the likeliest of several samples: a squashed Gaussian has no simple mode."""
        wide = (self.mode_samples, *dist.mean.shape)
        many = TanhGaussian(dist.mean.expand(wide), dist.log_std.expand(wide))
        action, log_prob = many.sample_with_log_prob()
        best = log_prob.argmax(0)[None, ..., None].expand(1, *dist.mean.shape)
        return action.gather(0, best)[0]

    def shaped(self, flat: Float[Tensor, "*b a"]) -> Float[Tensor, " ..."]:
        """Return sampled actions in the environment's shape."""
        return flat.unflatten(-1, self.shape) if len(self.shape) != 1 else flat


@dataclass(frozen=True)
class DreamerV1Config:
    """Defaults of the paper."""

    rssm: PlaNetRSSMConfig = field(default_factory=PlaNetRSSMConfig)
    codec: PlaNetCodecConfig = field(default_factory=PlaNetCodecConfig)
    reward: Part = number_head()
    cont: Part = cont_head(layers=3)
    """Continuation head, if continuation is predicted (`cont_scale`)."""
    actor: TanhPolicyConfig = field(default_factory=TanhPolicyConfig)
    critic: Part = number_head(layers=3)
    kl_scale: NonNegative = 1.0
    free_nats: NonNegative = 3.0
    """Minimum of the batch-mean KL divergence; below it there is no gradient."""
    cont_scale: NonNegative = 0.0
    """Weight of the continuation loss; 0 disables it, and dreams never end. The paper uses 10."""
    gamma: Share = 0.99
    returns: Part = part("lambda_return", ESTIMATORS, ReturnEstimator)
    """Return estimator for dreams: `lambda_return`, `gae`, `n_step`, `monte_carlo`."""
    imagine: PositiveInt = 15
    """Imagination horizon in steps."""
    imagine_last: Natural = 0
    """Imagine only from this many last states of each window; 0 uses all, as the paper does."""
    noise: NonNegative = 0.3
    """Standard deviation of the exploration noise added to actions in training."""
    model_optimizer: Part = optimizer_field("adam", lr=6e-4, eps=1e-7, clip=100.0)
    actor_optimizer: Part = optimizer_field("adam", lr=8e-5, eps=1e-7, clip=100.0)
    critic_optimizer: Part = optimizer_field("adam", lr=8e-5, eps=1e-7, clip=100.0)


@dataclass(frozen=True)
class Dream:
    """Imagined states with their rewards, values and returns; the start state is excluded.

    state      1     2     3     4 = horizon      all of them imagined
    reward     r1    r2    r3    r4               received on arriving there
    discount   d1    d2    d3    d4               of what follows
    weight     1     d1    d1d2                   probability that the dream gets there
    value      v1    v2    v3    v4
    ret        R1    R2    R3                     R[i] = r[i] + d[i] ((1-lam) v[i+1] + lam R[i+1])
    """

    feature: Float[Tensor, "n h d"]
    reward: Float[Tensor, "n h"]
    value: Float[Tensor, "n h"]
    weight: Float[Tensor, "n h-1"]
    ret: Float[Tensor, "n h-1"]


class DreamerV1(WorldModelWorkflow, Workflow[DreamerV1Config]):
    """World model, actor and critic."""

    Config = DreamerV1Config
    tiny: ClassVar[dict[str, Any]] = {
        "rssm": {"deter": 16, "hidden": 8, "stoch": 4},
        "codec": {"depth": 2, "units": 8, "layers": 1},
        **{k: {"units": 8, "layers": 1} for k in ("reward", "cont", "actor", "critic")},
        "imagine": 4, "free_nats": 0.0,
    }  # fmt: skip

    def build(self, spec: Spec) -> None:
        c = self.config
        check_continuous(spec.action, "DreamerV1", "DreamerV2 or DreamerV3")
        cont = c.cont if c.cont_scale else None
        self.model = PlaNetModel(PlaNetModelConfig(c.rssm, c.codec, c.reward, cont, c.gamma), spec)
        self.actor = glorot(TanhPolicy(c.actor, self.model.dim, spec.action))
        self.critic = glorot(c.critic.build(self.model.dim))
        self.returns: ReturnEstimator = c.returns.build()
        self.optimizer("model", self.model.parameters(), c.model_optimizer)
        self.optimizer("actor", self.actor.parameters(), c.actor_optimizer)
        self.optimizer("critic", self.critic.parameters(), c.critic_optimizer)

    # -- acting -----------------------------------------------------------------------------------

    def initial_state(self, num_envs: int) -> Tree:
        """Return the initial latent state and previous action."""
        return self.model.before(num_envs, self.device)

    def decide(self, obs: Obs, is_first: Bool[Tensor, " n"], state: Tree, mode: Mode) -> Decision:
        """Update the latent state and sample an action; in training, add noise."""
        latent = self.model.after(obs, is_first, state, mode)
        dist = self.actor(latent.feature)
        if mode.samples:
            action = dist.sample()
            action = (action + self.config.noise * torch.randn_like(action)).clamp(-1, 1)
        else:
            action = dist.mode() if mode is Mode.FIXED else self.actor.likeliest(dist)
        action = self.actor.shaped(action)
        return Decision(action, self.pack_state(latent, action))

    # -- learning ---------------------------------------------------------------------------------

    @hook
    def update_world_model(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Take one gradient step on the world model alone, for pretraining."""
        loss, metrics = self.model_loss(self.model.follow(batch), batch)
        metrics["model_grad_norm"] = self.optimizers["model"].step(loss)
        return {k: v.detach() for k, v in metrics.items()}

    @hook
    def update_agent(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Take one gradient step each on actor, critic and world model (algorithm 1)."""
        c = self.config
        seen = self.model.follow(batch)
        model, metrics = self.model_loss(seen, batch)
        recent = slice(-c.imagine_last, None) if c.imagine_last else slice(None)
        start = Latent(*(x[:, recent] for x in seen.latent.detach())).flat()
        dream = self.dream(start, batch.is_terminal[:, recent].flatten())
        actor, critic = self.actor_loss(dream), self.critic_loss(dream)
        # the actor first: its gradient must use a model and a critic that are not updated yet
        norms = {
            "actor_grad_norm": self.optimizers["actor"].step(actor),
            "critic_grad_norm": self.optimizers["critic"].step(critic),
            "model_grad_norm": self.optimizers["model"].step(model),
        }
        measured = {
            "actor_loss": actor, "critic_loss": critic, "return": dream.ret.mean(),
            "value": dream.value.mean(), "imagined_reward": dream.reward.mean(),
            "weight": dream.weight.mean(),
        }  # fmt: skip
        return {k: v.detach() for k, v in (metrics | measured | norms).items()}

    def model_loss(self, seen: Posterior, batch: Batch) -> tuple[Float[Tensor, ""], Metrics]:
        """Return the weighted world model loss, and its terms."""
        scales = {"kl": self.config.kl_scale, "cont": self.config.cont_scale}
        losses = {k: v.mean() for k, v in self.losses(seen, batch).items()}
        loss = torch.stack([scales.get(k, 1.0) * v for k, v in losses.items()]).sum()
        return loss, {"model_loss": loss, **{f"loss/{k}": v for k, v in losses.items()}}

    def losses(self, seen: Posterior, batch: Batch) -> dict[str, Float[Tensor, " ..."]]:
        """Return the world model losses (eq. 10), neither weighted nor averaged."""
        out = self.model.losses(seen, batch.reward, batch.is_terminal)
        return {**out, "kl": self.free_kl(seen.post, seen.prior)}

    def free_kl(
        self, post: Float[Tensor, "b t k"], prior: Float[Tensor, "b t k"]
    ) -> Float[Tensor, ""]:
        """Return the mean KL divergence between posterior and prior, at least the free nats."""
        dist = self.model.rssm.dist
        mean = world.mean(dist(post).kl(dist(prior)).mean())
        return mean.clamp(min=self.config.free_nats)

    def policy(self, latent: Latent) -> Shaped[Tensor, "n ..."]:
        """Sample actions for states [n, ...], without gradients to the states."""
        return self.actor.shaped(self.actor(latent.detach().feature).sample())

    def dream(
        self, start: Latent, is_terminal: Bool[Tensor, " n"], policy: Policy | None = None
    ) -> Dream:
        """Imagine from every state and compute values; nothing follows a terminal state."""
        latent, _ = self.imagine(self.config.imagine, start, policy)
        feature = latent.feature[:, 1:]
        reward, value = self.model.rewards(feature), self.critic.mean(self.critic(feature))
        discount = self.model.predict_discount(feature)
        ret = self.returns.returns(own_rewards(reward, discount, value))
        root = torch.ones_like(discount[:, :1])
        if self.model.cont is not None:
            root = (~is_terminal).to(root.dtype)[:, None]
        weight = torch.cumprod(torch.cat([root, discount[:, :-2].detach()], 1), 1)
        return Dream(feature, reward, value, weight, ret)

    def actor_loss(self, dream: Dream) -> Float[Tensor, ""]:
        """Return the negative imagined returns (eq. 7), with gradients through the dynamics."""
        return -(dream.weight * dream.ret).mean()

    def critic_loss(self, dream: Dream) -> Float[Tensor, ""]:
        """Return the value regression loss (eq. 8)."""
        value = self.critic(dream.feature[:, :-1].detach())
        return (dream.weight * self.critic.loss(value, dream.ret.detach())).mean()
