"""Ensemble of one-step dynamics networks (PETS, Chua et al. 2018, arXiv:1805.12114).

A latent is a cloud of particles, each assigned to one network: the cloud spreads where the networks
disagree or the dynamics are stochastic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from dreamlab.components import HOME
from dreamlab.components.rewards import RewardFunction
from dreamlab.components.world_models.protocol import Policy, roll_out
from dreamlab.core import world
from dreamlab.core.config import Part, optional_part
from dreamlab.core.errors import ConfigError
from dreamlab.core.limits import Depth, NonNegative, PositiveInt, Range, Share, Width
from dreamlab.core.types import ArraySpec, Batch, Mode, Obs, Spec, Tree
from dreamlab.nn.ensemble import EnsembleMLP
from dreamlab.nn.mlp import Act
from dreamlab.nn.standardize import Standardize


@dataclass(frozen=True)
class DynamicsEnsembleConfig:
    """PETS' ensemble and hyperparameters, with smaller networks."""

    members: Annotated[int, Range(1, 1_000)] = 5
    units: Width = 200
    layers: Depth = 3
    act: Act = "silu"
    particles: PositiveInt = 4
    """Particles per network."""
    probabilistic: bool = True
    """Predict Gaussians; otherwise means, and particles differ by network only."""
    reward: Part | None = optional_part(HOME, RewardFunction)
    """Reward function; None predicts rewards with the ensemble."""
    bound_scale: NonNegative = 0.01
    """Weight of the regularizer on the predicted variance bounds."""
    gamma: Share = 1.0


class Cloud(NamedTuple):
    """Particles [*b, p, ...]: concatenated observations, and the reward received on arrival."""

    particles: Float[Tensor, "*b p d"]
    rewards: Float[Tensor, "*b p"]


class Posterior(NamedTuple):
    """Latents of sequences [b, t]."""

    latent: Cloud


class DynamicsEnsemble(nn.Module):
    """Observations are the state: vectors only, without termination."""

    Config = DynamicsEnsembleConfig
    Latent = Cloud

    def __init__(self, config: DynamicsEnsembleConfig, spec: Spec) -> None:
        super().__init__()
        c = self.config = config
        self.specs, self.action = _numbers(spec.obs), spec.action
        self.obs_dim = sum(s.size for s in spec.obs.values())
        self.num = c.members * c.particles
        self.given: RewardFunction | None = None if c.reward is None else c.reward.build()
        self.out_dim = self.obs_dim + (self.given is None)
        self.enter = Standardize(self.obs_dim + spec.action.size)
        self.leave = Standardize(self.out_dim)
        dims = [self.obs_dim + spec.action.size] + [c.units] * c.layers
        heads = 2 * self.out_dim if c.probabilistic else self.out_dim
        self.net = EnsembleMLP(c.members, dims, heads, c.act, norm=False)
        if c.probabilistic:
            self.most = nn.Parameter(torch.full((self.out_dim,), 0.5))
            self.least = nn.Parameter(torch.full((self.out_dim,), -10.0))

    @property
    def decoded(self) -> dict[str, ArraySpec]:
        return self.specs

    # -- the networks -----------------------------------------------------------------------------

    def describe(
        self, x: Float[Tensor, "m n d"]
    ) -> tuple[Float[Tensor, "m n k"], Float[Tensor, "m n k"] | None]:
        """Return normalized means and log-variances of state changes, for each network."""
        out = self.net.layers(self.enter(x))
        if not self.config.probabilistic:
            return out, None
        mean, raw = out.chunk(2, -1)
        logvar = self.most - F.softplus(self.most - raw)
        return mean, self.least + F.softplus(logvar - self.least)

    def advance(
        self,
        cloud: Cloud,
        action: Float[Tensor, "n a"],
        chance: Float[Tensor, "n p k"],
    ) -> Cloud:
        """Return the particles after an action."""
        m, q = self.config.members, self.config.particles
        before = cloud.particles
        told = action[:, None].expand(-1, self.num, -1)
        x = torch.cat([before, told], -1).unflatten(1, (m, q)).transpose(0, 1).flatten(1, 2)
        mean, logvar = self.describe(x)
        back = lambda y: y.unflatten(1, (-1, q)).transpose(0, 1).flatten(1, 2)  # noqa: E731
        change = back(mean)
        if logvar is not None:
            change = change + back((0.5 * logvar).exp()) * chance
        change = self.leave.inverse(change)
        after = before + change[..., : self.obs_dim]
        if self.given is None:
            return Cloud(after, change[..., -1])
        return Cloud(after, self.given.reward(before, told, after))

    # -- following what happens -------------------------------------------------------------------

    def initial(self, num: int, device: Any) -> Cloud:
        """Return the initial states."""
        none = torch.zeros(num, self.num, self.obs_dim, device=device)
        return Cloud(none, none[..., 0].clone())

    def flat(self, obs: Obs) -> Float[Tensor, "*b d"]:
        """Concatenate observations."""
        parts = [obs[k].float().flatten(-max(1, len(s.shape))) for k, s in self.specs.items()]
        return torch.cat(parts, -1)

    def numbers(self, action: Shaped[Tensor, " ..."]) -> Float[Tensor, "... a"]:
        """Return actions as flat vectors."""
        return action.float().reshape(*action.shape[: action.ndim - len(self.action.shape)], -1)

    def before(self, num: int, device: Any) -> Tree:
        """Return the initial state of an agent: latent and previous action."""
        action = torch.zeros(num, *self.action.shape, device=device)
        return {**self.initial(num, device)._asdict(), "action": action}

    def after(self, obs: Obs, is_first: Bool[Tensor, " n"], state: Tree, mode: Mode) -> Cloud:
        """Set all particles to the observation."""
        seen = self.flat(obs)[:, None].expand(-1, self.num, -1)
        return Cloud(seen, torch.zeros_like(seen[..., 0]))

    def observe(
        self,
        obs: Obs,
        action: Shaped[Tensor, "b t ..."],
        is_first: Bool[Tensor, "b t"],
        state: Cloud,
    ) -> Posterior:
        """Filter sequences; the reward of each step is the one-step prediction."""
        shape = is_first.shape
        seen = self.flat(obs)[:, :, None].expand(-1, -1, self.num, -1)
        past = torch.cat([state.particles[:, None], seen[:, :-1]], 1).flatten(0, 1)
        cloud = Cloud(past, torch.zeros_like(past[..., 0]))
        chance = self.noise(past.shape[0], device=past.device, mode=Mode.FIXED)
        guess = self.advance(cloud, self.numbers(action).flatten(0, 1), chance)
        rewards = guess.rewards.unflatten(0, shape) * ~is_first[..., None]
        return Posterior(Cloud(seen, rewards))

    # -- imagining --------------------------------------------------------------------------------

    def noise(self, *shape: int, device: Any, mode: Mode = Mode.TRAIN) -> Float[Tensor, " ..."]:
        """Sample the noise of imagined steps."""
        make = torch.zeros if mode is Mode.FIXED else torch.randn
        return make(*shape, self.num, self.out_dim, device=device)

    def imagine(
        self,
        start: Cloud,
        policy: Policy,
        horizon: int,
        noise: Float[Tensor, "{horizon} n p k"] | None = None,
    ) -> tuple[Cloud, Shaped[Tensor, "n {horizon}+1 ..."]]:
        """Imagine from clouds [n, ...]; see `roll_out`."""
        num, device = start.particles.shape[0], start.particles.device
        noise = self.noise(horizon, num, device=device) if noise is None else noise

        def advance(
            cloud: Cloud, chance: Float[Tensor, "n p k"]
        ) -> tuple[Cloud, Shaped[Tensor, "n ..."]]:
            action = policy(cloud)
            return self.advance(cloud, self.numbers(action), chance), action

        return roll_out(advance, start, policy, noise)

    def predict(self, latent: Cloud) -> dict[str, Any]:
        """Return the particle mean as observations, and the mean reward."""
        mean = latent.particles.mean(-2)
        parts = mean.split([s.size for s in self.specs.values()], -1)
        pairs = zip(self.specs.items(), parts, strict=True)
        obs = {k: part.reshape(*part.shape[:-1], *s.shape) for (k, s), part in pairs}
        return {"obs": obs, **self.predict_reward(latent)}

    def predict_reward(self, latent: Cloud) -> dict[str, Float[Tensor, "*b"]]:
        """Return the mean reward of clouds; episodes never terminate."""
        reward = latent.rewards.mean(-1)
        return {"reward": reward, "cont": self.discount_of(latent)}

    def discount_of(self, latent: Cloud) -> Float[Tensor, "*b"]:
        """Return the discount."""
        return torch.full_like(latent.rewards[..., 0], self.config.gamma)

    def predict_value(self, latent: Cloud) -> None:
        """Return nothing: plans are worth their rewards."""

    # -- learning ---------------------------------------------------------------------------------

    def watch(self, batch: Batch) -> None:
        """Update the normalization statistics of inputs and outputs."""
        x, change, weight = self._transitions(batch)
        self.enter.watch(x, weight)
        self.leave.watch(change, weight)

    def losses(self, batch: Batch) -> dict[str, Float[Tensor, ""]]:
        """Return the loss of the networks; each trains on its own part of the batch."""
        m = self.config.members
        x, change, weight = self._transitions(batch)
        rows = x.shape[0] // m
        if rows == 0:
            raise ConfigError(
                f"workflow.model.members={m}: a batch of {x.shape[0]} transitions has none for "
                "each of them. Raise buffers.replay.batch."
            )
        mine = lambda y: y[: rows * m].unflatten(0, (m, rows))  # noqa: E731
        mean, logvar = self.describe(mine(x))
        error = (mean - self.leave(mine(change))).square()
        weight = mine(weight)
        weight = weight / world.mean(weight.sum()).clamp(min=1)
        if logvar is None:
            return {"dynamics": (0.5 * error.sum(-1) * weight).sum()}
        likelihood = 0.5 * (error * torch.exp(-logvar) + logvar + math.log(2 * math.pi))
        bounds = (self.most - self.least).sum()
        return {
            "dynamics": (likelihood.sum(-1) * weight).sum(),
            "bounds": self.config.bound_scale * bounds,
        }

    def _transitions(
        self, batch: Batch
    ) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n k"], Float[Tensor, " n"]]:
        """Return inputs and state changes of a batch, and a mask of those within an episode."""
        seen = self.flat(batch.obs)
        x = torch.cat([seen, self.numbers(batch.action)], -1)[:, :-1]
        change = seen[:, 1:] - seen[:, :-1]
        if self.given is None:
            change = torch.cat([change, batch.reward[:, 1:, None]], -1)
        weight = (~batch.is_first[:, 1:]).float()
        return x.flatten(0, 1), change.flatten(0, 1), weight.flatten()


def _numbers(obs: dict[str, ArraySpec]) -> dict[str, ArraySpec]:
    """Return the observations if all of them are continuous, else raise."""
    for name, spec in obs.items():
        if spec.is_image or spec.is_discrete:
            kind = "an image" if spec.is_image else "a class"
            raise ConfigError(
                f"workflow.model: an ensemble predicts numbers, but {name!r} is {kind}. Use "
                "workflow.model=planet_rssm instead."
            )
    return obs
