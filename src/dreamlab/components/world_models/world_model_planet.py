"""World model of PlaNet, DreamerV1 and DreamerV2: codec, RSSM, reward and continuation heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from dreamlab.components import HOME
from dreamlab.components.kinds import NumberHead, ProbabilityHead
from dreamlab.components.world_models.codec import one_hot, width
from dreamlab.components.world_models.codec_planet import PlaNetCodec, PlaNetCodecConfig
from dreamlab.components.world_models.protocol import Policy, roll_out
from dreamlab.components.world_models.rssm import Latent
from dreamlab.components.world_models.rssm_planet import (
    PlaNetRSSM,
    PlaNetRSSMConfig,
    ResetBeforeCell,
)
from dreamlab.core.config import Part, dump, part
from dreamlab.core.errors import ConfigError
from dreamlab.core.limits import Depth, Share, Width
from dreamlab.core.types import ArraySpec, Batch, Mode, Obs, Spec, Tree
from dreamlab.nn.init import glorot
from dreamlab.nn.layers import ActKind, NetConfig, NormKind, NormMLP, dense


@dataclass(frozen=True)
class HeadConfig(NetConfig):
    """Hidden layers of a head on latent states."""

    norm: NormKind = "none"
    act: ActKind = "elu"
    units: Width = 400
    layers: Depth = 2


def number_head(**options: Any) -> Any:
    """Declare a field for a scalar prediction head: `normal`, or another one."""
    return part("normal", HOME, NumberHead, **options)


def cont_head(**options: Any) -> Any:
    """Declare a field for a continuation head."""
    return part("binary", HOME, ProbabilityHead, **{**dump(HeadConfig()), **options})


class NormalHead(nn.Module):
    """Predicts a scalar as the mean of a unit-variance Gaussian."""

    Config = HeadConfig

    def __init__(self, config: HeadConfig, in_dim: int) -> None:
        super().__init__()
        self.net = NormMLP(in_dim, config.units, config.layers, config)
        self.out = dense(self.net.out_dim, 1)

    def forward(self, feature: Float[Tensor, "*b d"]) -> Float[Tensor, "*b"]:
        """Return the means."""
        return self.out(self.net(feature)).float()[..., 0]

    def mean(self, logits: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        """Return the mean, which is the head's output."""
        return logits

    def loss(self, mean: Float[Tensor, "*b"], target: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        """Return the negative log-likelihood of the target, without its constant."""
        return 0.5 * (mean - target).square()


@dataclass(frozen=True)
class PlaNetModelConfig:
    """Parts of the model and the discount, set by the workflow."""

    rssm: PlaNetRSSMConfig
    codec: PlaNetCodecConfig
    reward: Part
    cont: Part | None
    """Continuation head; None disables it, and episodes never terminate."""
    gamma: Share
    """Discount, included in the continuation targets."""


@dataclass(frozen=True)
class Posterior:
    """States of sequences [b, t], and the parameters of posterior and prior."""

    ready: Obs
    latent: Latent
    post: Float[Tensor, "b t k"]
    prior: Float[Tensor, "b t k"]


class PlaNetModel(nn.Module):
    """Filters sequences into latent states, and imagines from them."""

    Latent = Latent

    def __init__(self, config: PlaNetModelConfig, spec: Spec) -> None:
        super().__init__()
        c = self.config = config
        self.action = spec.action
        self.dim = c.rssm.deter + c.rssm.stoch_dim
        self.codec = PlaNetCodec(c.codec, spec.obs, self.dim)
        self.rssm = PlaNetRSSM(c.rssm, self.codec.token_dim, width(spec.action))
        self.reward: NumberHead = c.reward.build(self.dim)
        self.cont: ProbabilityHead | None = None if c.cont is None else c.cont.build(self.dim)
        glorot(self)
        if isinstance(self.rssm.cell, ResetBeforeCell):
            self.rssm.cell.start()

    @property
    def decoded(self) -> dict[str, ArraySpec]:
        return {**self.codec.images, **self.codec.vectors}

    def initial(self, num: int, device: Any) -> Latent:
        """Return the initial states [num, ...]."""
        return self.rssm.initial(num, device)

    def embed(self, action: Shaped[Tensor, " ..."]) -> Float[Tensor, "... a"]:
        """Return actions as flat vectors; classes become one-hot unless they already are."""
        if self.action.classes is not None:
            hot = action.is_floating_point()
            return action if hot else one_hot(action, self.action.classes)
        return action.float().reshape(*action.shape[: action.ndim - len(self.action.shape)], -1)

    # -- following what happens -------------------------------------------------------------------

    def before(self, num: int, device: Any) -> Tree:
        """Return the initial state of an agent: latent and previous action."""
        latent, spec = self.rssm.initial(num, device), self.action
        dtype = torch.int64 if spec.is_discrete else torch.float32
        action = torch.zeros(num, *spec.shape, dtype=dtype, device=device)
        return {"deter": latent.deter, "stoch": latent.stoch, "action": action}

    def after(self, obs: Obs, is_first: Bool[Tensor, " n"], state: Tree, mode: Mode) -> Latent:
        """Return the latent state after an observation; `state` is the one before."""
        noise = self.rssm.noise(is_first.shape[0], device=is_first.device, mode=mode)
        latent = Latent(state["deter"], state["stoch"])
        tokens = self.codec.encode(self.codec.preprocess(obs))
        action = self.embed(state["action"])
        return self.rssm.observe_step(latent, action, tokens, is_first, noise)[0]

    def follow(self, batch: Batch, noise: Float[Tensor, "t b ..."] | None = None) -> Posterior:
        """Filter windows [b, t] from the initial state.

        step      0      1      2
        action    0      a0     a1        input of the cell: the action that led there
        """
        none = torch.full_like(batch.action[:, :1], -1 if self.action.is_discrete else 0)
        led = torch.cat([none, batch.action[:, :-1]], 1)
        start = self.rssm.initial(len(led), led.device)
        return self.observe(batch.obs, led, batch.is_first, start, noise)

    def observe(
        self,
        obs: Obs,
        action: Shaped[Tensor, "b t ..."],
        is_first: Bool[Tensor, "b t"],
        state: Latent,
        noise: Float[Tensor, "t b ..."] | None = None,
    ) -> Posterior:
        """Filter sequences from `state`; `action[:, i]` led to step i."""
        b, t = is_first.shape
        ready = self.codec.preprocess(obs)
        tokens = self.codec.encode(ready)
        noise = self.rssm.noise(t, b, device=tokens.device) if noise is None else noise
        latent, post = self.rssm.observe(state, self.embed(action), tokens, is_first, noise)
        return Posterior(ready, latent, post, self.rssm.prior(latent.deter))

    def losses(
        self, seen: Posterior, reward: Float[Tensor, "b t"], is_terminal: Bool[Tensor, "b t"]
    ) -> dict[str, Float[Tensor, "b t"]]:
        """Return losses: one per observation, `reward`, and `cont` if predicted."""
        shape, flat = reward.shape, seen.latent.flat().feature
        truth = {k: v.flatten(0, 1) for k, v in seen.ready.items()}
        errors = self.codec.losses(self.codec.decode(flat), truth)
        out = {f"obs/{k}": v.view(shape) for k, v in errors.items()}
        out["reward"] = self.reward.loss(self.reward(flat).unflatten(0, shape), reward)
        if self.cont is not None:
            target = (~is_terminal).float() * self.config.gamma
            out["cont"] = self.cont.loss(self.cont(flat).unflatten(0, shape), target)
        return out

    # -- imagining --------------------------------------------------------------------------------

    def imagine(
        self,
        start: Latent,
        policy: Policy,
        horizon: int,
        noise: Float[Tensor, "{horizon} n ..."] | None = None,
    ) -> tuple[Latent, Shaped[Tensor, "n {horizon}+1 ..."]]:
        """Imagine from states [n, ...]; see `roll_out`."""
        num, device = len(start.deter), start.deter.device
        noise = self.rssm.noise(horizon, num, device=device) if noise is None else noise

        def advance(
            state: Latent, chance: Float[Tensor, "n ..."]
        ) -> tuple[Latent, Shaped[Tensor, "n ..."]]:
            action = policy(state)
            return self.rssm.imagine_step(state, self.embed(action), chance), action

        return roll_out(advance, start, policy, noise)

    def predict_discount(self, feature: Float[Tensor, "*b d"]) -> Float[Tensor, "*b"]:
        """Return the discount of states: gamma times the continuation probability."""
        if self.cont is None:
            return torch.full_like(feature[..., 0], self.config.gamma)
        return torch.sigmoid(self.cont(feature))

    def predict(self, latent: Latent) -> dict[str, Any]:
        """Predict observations, reward and continuation of states [n, ...]."""
        obs = self.codec.natural(self.codec.decode(latent.feature))
        return {"obs": obs, **self.predict_reward(latent)}

    def predict_reward(self, latent: Latent) -> dict[str, Float[Tensor, "*b"]]:
        """Predict reward and continuation, which includes the discount, of states."""
        feature = latent.feature
        return {"reward": self.rewards(feature), "cont": self.predict_discount(feature)}

    def discount_of(self, latent: Latent) -> Float[Tensor, "*b"]:
        """Return the discount, the same for all states."""
        return torch.full_like(latent.deter[..., 0], self.config.gamma, dtype=torch.float32)

    def rewards(self, feature: Float[Tensor, "*b d"]) -> Float[Tensor, "*b"]:
        """Predict the rewards of states."""
        return self.reward.mean(self.reward(feature))


def check_continuous(action: ArraySpec, name: str, instead: str) -> None:
    """Raise unless actions are continuous in [-1, 1]."""
    if action.is_discrete:
        raise ConfigError(
            f"workflow: {name} needs continuous actions, but this environment's are discrete. "
            f"Use {instead} instead."
        )
    check_range(action, name)


def check_range(action: ArraySpec, name: str) -> None:
    """Raise if continuous actions have bounds other than -1 and 1."""
    if not action.is_discrete and (action.low, action.high) != (-1.0, 1.0):
        raise ConfigError(
            f"workflow: {name} acts in [-1, 1], but this environment's actions are in "
            f"[{action.low}, {action.high}]. Set env.scale_actions=true."
        )
