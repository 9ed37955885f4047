"""DreamerV1 (Hafner et al. 2020, arXiv:1912.01603): learn behaviours by backpropagating dreams.

One update: the world model follows replayed sequences; from every state it passes it dreams
`imagine` steps ahead; the gradient of the returns dreamt of flows back through the dream into the
actor; the critic learns these returns; then every part takes a step.
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
    """Hidden layers of the actor, and how it acts."""

    layers: Depth = 4
    init_std: Positive = 5.0
    """Deviation, before squashing, that the policy starts with."""
    mode_samples: PositiveInt = 100
    """In evaluation the likeliest of this many samples is done."""


class TanhPolicy(nn.Module):
    """Actions from latent states: normals squashed into (-1, 1), wide at first."""

    def __init__(self, config: TanhPolicyConfig, in_dim: int, action: ArraySpec) -> None:
        super().__init__()
        self.shape, c = action.shape, config
        self.net = NormMLP(in_dim, c.units, c.layers, c)
        self.out = dense(self.net.out_dim, 2 * action.size)
        self.raw_std = math.log(math.expm1(c.init_std))
        self.mode_samples = c.mode_samples

    def forward(self, feature: Float[Tensor, "*b d"]) -> TanhGaussian:
        """Return the policy."""
        mean, std = self.out(self.net(feature)).float().chunk(2, -1)
        std = F.softplus(std + self.raw_std) + 1e-4
        return TanhGaussian(5 * torch.tanh(mean / 5), std.log())

    def likeliest(self, dist: TanhGaussian) -> Float[Tensor, "n a"]:
        """Return the best of several samples: a squashed normal has no simple mode."""
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
    """Of the continuation, where that is predicted (`cont_scale`)."""
    actor: TanhPolicyConfig = field(default_factory=TanhPolicyConfig)
    critic: Part = number_head(layers=3)
    kl_scale: NonNegative = 1.0
    free_nats: NonNegative = 3.0
    """Divergence, averaged over a batch, below which it is left alone."""
    cont_scale: NonNegative = 0.0
    """Weight of predicted continuation; 0 predicts none, nothing ever ends. The paper's: 10."""
    gamma: Share = 0.99
    returns: Part = part("lambda_return", ESTIMATORS, ReturnEstimator)
    """What dreams say of values: `lambda_return`, `gae`, `n_step`, `monte_carlo`."""
    imagine: PositiveInt = 15
    """Steps of each dream."""
    imagine_last: Natural = 0
    """Dream from this many last states of each window only; 0 takes all, as the paper does."""
    noise: NonNegative = 0.3
    """Deviation of what is added to actions in training."""
    model_optimizer: Part = optimizer_field("adam", lr=6e-4, eps=1e-7, clip=100.0)
    actor_optimizer: Part = optimizer_field("adam", lr=8e-5, eps=1e-7, clip=100.0)
    critic_optimizer: Part = optimizer_field("adam", lr=8e-5, eps=1e-7, clip=100.0)


@dataclass(frozen=True)
class Dream:
    """Imagined states and what they are worth; the start is not among them.

    state      1     2     3     4 = horizon      all of them dreamt
    reward     r1    r2    r3    r4               received on arriving there
    discount   d1    d2    d3    d4               of what follows
    weight     1     d1    d1d2                   how likely the dream gets there
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
        """Return the latent state and the action before the first step."""
        return self.model.before(num_envs, self.device)

    def decide(self, obs: Obs, is_first: Bool[Tensor, " n"], state: Tree, mode: Mode) -> Decision:
        """Take the step into the latent state and act on it; in training with some noise."""
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
        """Take one gradient step on the world model alone, to give it a head start."""
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
        # the actor first: its gradient flows through a model and a critic that have not moved yet
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
        """Return the weighted loss of the world model, and its parts."""
        scales = {"kl": self.config.kl_scale, "cont": self.config.cont_scale}
        losses = {k: v.mean() for k, v in self.losses(seen, batch).items()}
        loss = torch.stack([scales.get(k, 1.0) * v for k, v in losses.items()]).sum()
        return loss, {"model_loss": loss, **{f"loss/{k}": v for k, v in losses.items()}}

    def losses(self, seen: Posterior, batch: Batch) -> dict[str, Float[Tensor, " ..."]]:
        """Return the losses of the world model (eq. 10), not yet weighted nor averaged."""
        out = self.model.losses(seen, batch.reward, batch.is_terminal)
        return {**out, "kl": self.free_kl(seen.post, seen.prior)}

    def free_kl(
        self, post: Float[Tensor, "b t k"], prior: Float[Tensor, "b t k"]
    ) -> Float[Tensor, ""]:
        """Return the mean divergence of prior from posterior, or the free nats if it is less."""
        dist = self.model.rssm.dist
        mean = world.mean(dist(post).kl(dist(prior)).mean())
        return mean.clamp(min=self.config.free_nats)

    def policy(self, latent: Latent) -> Shaped[Tensor, "n ..."]:
        """Return sampled actions for states [n, ...]; the states get no gradient from them."""
        return self.actor.shaped(self.actor(latent.detach().feature).sample())

    def dream(
        self, start: Latent, is_terminal: Bool[Tensor, " n"], policy: Policy | None = None
    ) -> Dream:
        """Dream from every state and value what is seen there; nothing follows a terminal one."""
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
        """Return the negative returns (eq. 7), with the gradient of the whole dream."""
        return -(dream.weight * dream.ret).mean()

    def critic_loss(self, dream: Dream) -> Float[Tensor, ""]:
        """Return how far values are from returns (eq. 8)."""
        value = self.critic(dream.feature[:, :-1].detach())
        return (dream.weight * self.critic.loss(value, dream.ret.detach())).mean()
