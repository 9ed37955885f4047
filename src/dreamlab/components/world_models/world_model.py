"""DreamerV3's world model: encoder, RSSM, decoder, and heads for reward and continuation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from dreamlab.components import HOME, kinds
from dreamlab.components.world_models.codec import one_hot, width
from dreamlab.components.world_models.protocol import Advance, Policy, roll_out
from dreamlab.components.world_models.rssm import Latent
from dreamlab.core.config import Part, part
from dreamlab.core.limits import PositiveInt
from dreamlab.core.types import ArraySpec, Metrics, Obs, Spec
from dreamlab.core.workflow import compilable


@dataclass(frozen=True)
class WorldModelConfig:
    """Parts of the model."""

    rssm: Part = part("rssm", HOME, kinds.Dynamics)
    encoder: Part = part("encoder", HOME, kinds.Encoder)
    decoder: Part = part("decoder", HOME, kinds.Decoder)
    reward: Part = part("two_hot", HOME, kinds.NumberHead, layers=1)
    cont: Part = part("binary", HOME, kinds.ProbabilityHead, layers=1)
    horizon: PositiveInt = 333
    """Effective horizon: the discount, learned with continuation, is 1 - 1 / horizon."""


@dataclass(frozen=True)
class Posterior:
    """Latents and logits of sequences [b, t]."""

    tokens: Float[Tensor, "b t e"]
    latent: Latent
    post: Float[Tensor, "b t ..."]

    @property
    def feature(self) -> Float[Tensor, "b t d"]:
        return self.latent.feature

    @property
    def tensors(
        self,
    ) -> tuple[
        Float[Tensor, "b t e"],
        Float[Tensor, "b t d"],
        Float[Tensor, "b t s"],
        Float[Tensor, "b t ..."],
    ]:
        return self.tokens, self.latent.deter, self.latent.stoch, self.post

    def as_leaves(self) -> Posterior:
        """Return detached leaf tensors that accumulate gradients."""
        tokens, deter, stoch, post = (x.detach().requires_grad_() for x in self.tensors)
        return Posterior(tokens, Latent(deter, stoch), post)


class WorldModel(nn.Module):
    """Filters sequences into latent states, and imagines from them."""

    Latent = Latent

    def __init__(self, config: WorldModelConfig, spec: Spec) -> None:
        super().__init__()
        c = self.config = config
        self.action = spec.action
        self.encoder: kinds.Encoder = c.encoder.build(spec.obs)
        self.rssm: kinds.Dynamics = c.rssm.build(self.encoder.out_dim, width(spec.action))
        self.decoder: kinds.Decoder = c.decoder.build(
            spec.obs, self.rssm.deter_dim, self.rssm.stoch_dim
        )
        self.reward: kinds.NumberHead = c.reward.build(self.rssm.out_dim)
        self.cont: kinds.ProbabilityHead = c.cont.build(self.rssm.out_dim)

    @property
    def discount(self) -> float:
        return 1 - 1 / self.config.horizon

    @property
    def decoded(self) -> dict[str, ArraySpec]:
        return self.decoder.decoded

    def initial(self, num: int, device: Any) -> Latent:
        """Return the initial states [num, ...]."""
        return self.rssm.initial(num, device)

    def embed(self, action: Shaped[Tensor, " ..."]) -> Float[Tensor, "... a"]:
        """Return actions as flat vectors in [-1, 1], with classes one-hot."""
        if self.action.classes is not None:
            return one_hot(action, self.action.classes)
        flat = action.float().reshape(*action.shape[: action.ndim - len(self.action.shape)], -1)
        return flat / flat.detach().abs().clamp(min=1)

    def observe(
        self,
        obs: Obs,
        action: Shaped[Tensor, "b t ..."],
        is_first: Bool[Tensor, "b t"],
        state: Latent,
        noise: Float[Tensor, "t b ..."] | None = None,
    ) -> Posterior:
        """Filter sequences from `state`; `action[:, i]` led to step i."""
        return self.filter(self.tokens(obs), action, is_first, state, noise)

    def filter(
        self,
        tokens: Float[Tensor, "b t e"],
        action: Shaped[Tensor, "b t ..."],
        is_first: Bool[Tensor, "b t"],
        state: Latent,
        noise: Float[Tensor, "t b ..."] | None = None,
    ) -> Posterior:
        """Filter sequences whose observations are encoded."""
        latent, post = self.rssm.observe(state, self.embed(action), tokens, is_first, noise)
        return Posterior(tokens, latent, post)

    @compilable
    def tokens(self, obs: Obs) -> Float[Tensor, "b t e"]:
        """Encode observations."""
        return self.encoder(obs)

    @compilable
    def losses(
        self,
        seen: Posterior,
        obs: Obs,
        reward: Float[Tensor, "b t"],
        is_terminal: Bool[Tensor, "b t"],
    ) -> tuple[dict[str, Float[Tensor, "b t"]], Metrics]:
        """Return losses and metrics; the loss of an observation is `rec/NAME`."""
        shape = reward.shape
        prior = self.rssm.prior(seen.latent.deter)
        dyn, rep, metrics = self.rssm.kl(seen.post, prior)
        out = {f"rec/{k}": v.view(shape) for k, v in self.reconstruction(seen, obs).items()}
        feature = seen.feature
        out["rew"] = self.reward.loss(self.reward(feature), reward)
        out["con"] = self.cont.loss(self.cont(feature), (~is_terminal).float() * self.discount)
        return {"dyn": dyn, "rep": rep, **out}, metrics

    def reconstruction(self, seen: Posterior, obs: Obs) -> dict[str, Float[Tensor, " n"]]:
        """Return the reconstruction loss of each observation, one value per step."""
        flat = seen.latent.flat()
        truth = {k: v.flatten(0, 1) for k, v in obs.items()}
        return self.decoder.losses(self.decoder(flat.deter, flat.stoch), truth)

    def imagine(
        self,
        start: Latent,
        policy: Policy,
        horizon: int,
        noise: Float[Tensor, "{horizon} n ..."] | None = None,
        advance: Advance | None = None,
    ) -> tuple[Latent, Shaped[Tensor, "n {horizon}+1 ..."]]:
        """Imagine from states [n, ...]; see `roll_out`. `advance` may be compiled."""
        num, device = len(start.deter), start.deter.device
        noise = self.rssm.noise(horizon, num, device=device) if noise is None else noise
        advance = advance or partial(self.advance, policy)
        return roll_out(advance, start, policy, noise)

    def advance(
        self, policy: Policy, latent: Latent, noise: Float[Tensor, "n ..."]
    ) -> tuple[Latent, Shaped[Tensor, "n ..."]]:
        """Sample an action from the policy; return the next state and the action."""
        action = policy(latent)
        return self.rssm.imagine_step(latent, self.embed(action), noise), action

    def predict(self, latent: Latent) -> dict[str, Any]:
        """Predict observations, reward and continuation of states [n, ...]."""
        obs = self.decoder(latent.deter, latent.stoch)
        return {"obs": self.decoder.natural(obs), **self.predict_reward(latent)}

    def predict_reward(self, latent: Latent) -> dict[str, Float[Tensor, "*b"]]:
        """Predict reward and continuation of states."""
        feature = latent.feature
        return {
            "reward": self.reward.mean(self.reward(feature)),
            "cont": torch.sigmoid(self.cont(feature)),
        }

    def discount_of(self, latent: Latent) -> Float[Tensor, "*b"]:
        """Return the discount, the same for all states."""
        return torch.full_like(latent.deter[..., 0], self.discount, dtype=torch.float32)
