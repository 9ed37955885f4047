"""M of World Models, and V and M together as a world model: a code and a recurrent state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from dreamlab.components.world_models.codec import one_hot, width
from dreamlab.components.world_models.protocol import Policy, roll_out
from dreamlab.components.world_models.vae import Code, VAEConfig, make_vae
from dreamlab.core import world
from dreamlab.core.limits import NonNegative, Positive, Width
from dreamlab.core.types import ArraySpec, Mode, Obs, Spec, Tree
from dreamlab.nn.init import glorot
from dreamlab.nn.lstm import OneBiasLSTM
from dreamlab.ops.mixtures import mixture_log_prob, sample_mixture


@dataclass(frozen=True)
class MDNConfig:
    """The paper's CarRacing hyperparameters, plus reward and termination heads for dreams."""

    hidden: Width = 256
    mixtures: Width = 5
    """Mixture components per latent dimension."""
    reward: bool = True
    """Predict the reward. Otherwise every imagined step has reward 1, as in the paper's Doom."""
    done: bool = True
    """Predict termination. Otherwise dreams continue to their horizon."""
    done_weight: Positive = 10.0
    """Loss weight of terminal steps relative to others."""
    reward_scale: NonNegative = 1.0


class Prediction(NamedTuple):
    """Predictions of M for the next step."""

    mixture: Float[Tensor, "*b z k"]
    reward: Float[Tensor, "*b"] | None
    done: Float[Tensor, "*b"] | None
    """Logit of termination."""


class MDNRNN(nn.Module):
    """An LSTM over codes and actions that predicts the next code as a Gaussian mixture."""

    def __init__(self, config: MDNConfig, latent: int, action: int) -> None:
        super().__init__()
        self.config, self.latent = config, latent
        self.lstm = OneBiasLSTM(latent + action, config.hidden)
        self.sizes = [latent * 3 * config.mixtures, int(config.reward), int(config.done)]
        self.out = nn.Linear(config.hidden, sum(self.sizes))

    def predict(self, h: Float[Tensor, "*b k"]) -> Prediction:
        """Predict the next step from recurrent states."""
        mixture, reward, done = self.out(h).float().split(self.sizes, -1)
        return Prediction(
            mixture.unflatten(-1, (self.latent, -1)),
            reward[..., 0] if self.config.reward else None,
            done[..., 0] if self.config.done else None,
        )


class Latent(NamedTuple):
    """A code, and the recurrent state of the steps before it."""

    z: Float[Tensor, "*b z"]
    h: Float[Tensor, "*b k"]
    c: Float[Tensor, "*b k"]


class Posterior(NamedTuple):
    """Latents of sequences [b, t]."""

    latent: Latent


class Target(NamedTuple):
    """Targets of windows [b, t] other than codes and actions."""

    reward: Float[Tensor, "b t"]
    is_first: Bool[Tensor, "b t"]
    is_terminal: Bool[Tensor, "b t"]


class VMModel(nn.Module):
    """V encodes, M remembers and predicts.

    step        0            1                    2
    z           V(o0)        V(o1)                V(o2)        in a dream: sampled from the mixture
    h           0       ──▶  M(z0, a0, h0)   ──▶  M(z1, a1, h1)
    predicted                o1, r1, end 1        o2, r2, end 2     from the h above it
    """

    Latent = Latent

    def __init__(self, vae: VAEConfig, mdn: MDNConfig, spec: Spec, temperature: float) -> None:
        super().__init__()
        self.action, self.temperature = spec.action, temperature
        self.specs, self.latent_dim = spec.obs, vae.latent
        self.vae = glorot(make_vae(vae, spec.obs))
        self.mdn = glorot(MDNRNN(mdn, vae.latent, width(spec.action)))

    @property
    def decoded(self) -> dict[str, ArraySpec]:
        return self.specs

    def initial(self, num: int, device: Any) -> Latent:
        """Return the initial states."""
        z = torch.zeros(num, self.latent_dim, device=device)
        h = torch.zeros(num, self.mdn.config.hidden, device=device)
        return Latent(z, h, h.clone())

    def embed(self, action: Shaped[Tensor, " ..."]) -> Float[Tensor, "... a"]:
        """Return actions as flat vectors; classes become one-hot."""
        if self.action.classes is not None:
            return one_hot(action, self.action.classes)
        return action.float().reshape(*action.shape[: action.ndim - len(self.action.shape)], -1)

    # -- following what happens -------------------------------------------------------------------

    def before(self, num: int, device: Any) -> Tree:
        """Return the initial state of an agent: latent and previous action."""
        spec = self.action
        dtype = torch.int64 if spec.is_discrete else torch.float32
        action = torch.zeros(num, *spec.shape, dtype=dtype, device=device)
        return {**self.initial(num, device)._asdict(), "action": action}

    def after(
        self, obs: Obs, is_first: Bool[Tensor, " n"], state: Tree, mode: Mode
    ) -> tuple[Latent, Code]:
        """Return the state after an observation, and its code, from which z is sampled."""
        code = self.vae.encode(self.vae.preprocess(obs))
        fixed = mode is Mode.FIXED
        z = code.mean if fixed else code.at(torch.randn_like(code.mean))
        past = Latent(state["z"], state["h"], state["c"])
        h, c = self.remember(past, state["action"])
        keep = (~is_first).to(h.dtype)[:, None]
        return Latent(z, h * keep, c * keep), code

    def remember(
        self, latent: Latent, action: Shaped[Tensor, "n ..."]
    ) -> tuple[Float[Tensor, "n k"], Float[Tensor, "n k"]]:
        """Return the recurrent state after an action."""
        entering = torch.cat([latent.z, self.embed(action)], -1)
        return self.mdn.lstm.step(entering, (latent.h, latent.c))

    def observe(
        self,
        obs: Obs,
        action: Shaped[Tensor, "b t ..."],
        is_first: Bool[Tensor, "b t"],
        state: Latent,
    ) -> Posterior:
        """Filter sequences from `state`; `action[:, i]` led to step i."""
        code = self.vae.encode(self.vae.preprocess(obs))
        z = code.at(torch.randn_like(code.mean))
        past = torch.cat([state.z[:, None], z[:, :-1]], 1)
        return Posterior(self.follow(z, past, action, is_first, state))

    def follow(
        self,
        z: Float[Tensor, "b t z"],
        past: Float[Tensor, "b t z"],
        action: Shaped[Tensor, "b t ..."],
        is_first: Bool[Tensor, "b t"],
        state: Latent,
    ) -> Latent:
        """Return the states of known codes `z`; `past` and `action` led to each of them.

        The recurrent state of a first step is empty, so its inputs are ignored.
        """
        entering = torch.cat([past, self.embed(action)], -1)
        h, c = self.mdn.lstm(entering, (state.h, state.c), _after_first(is_first))
        keep = (~is_first).to(h.dtype)[..., None]
        return Latent(z, h * keep, c * keep)

    # -- imagining --------------------------------------------------------------------------------

    def noise(self, *shape: int, device: Any) -> Float[Tensor, "... z 2"]:
        """Sample the noise of imagined steps."""
        return torch.randn(*shape, self.latent_dim, 2, device=device)

    def dream_step(
        self, latent: Latent, action: Shaped[Tensor, "n ..."], chance: Float[Tensor, "n z 2"]
    ) -> tuple[Latent, Prediction]:
        """Return the imagined state after an action, and M's predictions."""
        h, c = self.remember(latent, action)
        seen = self.mdn.predict(h)
        return Latent(sample_mixture(seen.mixture, chance, self.temperature), h, c), seen

    def imagine(
        self,
        start: Latent,
        policy: Policy,
        horizon: int,
        noise: Float[Tensor, "{horizon} n z 2"] | None = None,
    ) -> tuple[Latent, Shaped[Tensor, "n {horizon}+1 ..."]]:
        """Imagine from states [n, ...]; see `roll_out`."""
        num, device = start.z.shape[0], start.z.device
        noise = self.noise(horizon, num, device=device) if noise is None else noise

        def advance(
            latent: Latent, chance: Float[Tensor, "n z 2"]
        ) -> tuple[Latent, Shaped[Tensor, "n ..."]]:
            action = policy(latent)
            return self.dream_step(latent, action, chance)[0], action

        return roll_out(advance, start, policy, noise)

    def predict(self, latent: Latent) -> dict[str, Any]:
        """Return decoded observations, reward and continuation of states [n, ...]."""
        obs = self.vae.natural(self.vae.decode(latent.z).float())
        return {"obs": obs, **self.predict_reward(latent)}

    def predict_reward(self, latent: Latent) -> dict[str, Float[Tensor, "*b"]]:
        """Return M's predicted reward and continuation probability of states.

        Without a reward head every step until the end is worth 1, as in the dreams that controllers
        evolve in; without an end too, M is only a memory, and there is nothing to predict.
        """
        seen, none = self.mdn.predict(latent.h), torch.zeros_like(latent.h[..., 0])
        each = none if seen.done is None else none + 1
        return {
            "reward": each if seen.reward is None else seen.reward,
            "cont": none + 1 if seen.done is None else torch.sigmoid(-seen.done),
        }

    def discount_of(self, latent: Latent) -> Float[Tensor, "*b"]:
        """Return 1: continuation is a probability here."""
        return torch.ones_like(latent.h[..., 0])

    # -- learning ---------------------------------------------------------------------------------

    def mdn_losses(
        self,
        z: Float[Tensor, "b t z"],
        action: Shaped[Tensor, "b t ..."],
        target: Target,
    ) -> dict[str, Float[Tensor, ""]]:
        """Return the prediction losses of every step of a window but the first.

        `action` is the one taken at each step; the first step of an episode is not predicted.
        """
        entering = torch.cat([z, self.embed(action)], -1)[:, :-1]
        start = self.initial(z.shape[0], z.device)
        h, _ = self.mdn.lstm(entering, (start.h, start.c), target.is_first[:, :-1])
        seen, weight = self.mdn.predict(h), (~target.is_first[:, 1:]).float()
        weight = weight / world.mean(weight.sum()).clamp(min=1)
        density = mixture_log_prob(seen.mixture, z[:, 1:].float()).mean(-1)
        out = {"mdn": -(weight * density).sum()}
        if seen.reward is not None:
            gap = 0.5 * (seen.reward - target.reward[:, 1:]).square()
            out["reward"] = (weight * gap).sum()
        if seen.done is not None:
            over, c = target.is_terminal[:, 1:].float(), self.mdn.config
            positive = torch.tensor(c.done_weight, device=over.device)
            surprise = F.binary_cross_entropy_with_logits(
                seen.done, over, reduction="none", pos_weight=positive
            )
            out["done"] = (weight * surprise).sum()
        return out


def _after_first(is_first: Bool[Tensor, "b t"]) -> Bool[Tensor, "b t"]:
    """Return which steps follow a first step: their recurrent state is empty."""
    return torch.cat([is_first[:, :1], is_first[:, :-1]], 1)
