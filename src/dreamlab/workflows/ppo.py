"""Proximal policy optimization (Schulman et al. 2017, arXiv:1707.06347), discrete and continuous.

With a recurrent `network` (rnn, transformer), minibatches are whole sequences, and each rollout
starts from the recurrent state stored when acting.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn.functional import mse_loss

from dreamlab.components.encoder import Encoder, EncoderConfig
from dreamlab.components.policies.heads import policy_head
from dreamlab.core import world
from dreamlab.core.config import Part, optional_part, part
from dreamlab.core.limits import NonNegative, Positive, PositiveInt, Share
from dreamlab.core.optim import optimizer_field
from dreamlab.core.phase import Phase
from dreamlab.core.types import Batch, Decision, Metrics, Mode, Obs, Spec, Tree
from dreamlab.core.workflow import Workflow, compilable, hook, varying_rows
from dreamlab.nn.dists import Dist
from dreamlab.nn.mlp import chain, linear
from dreamlab.ops.estimators import ESTIMATORS, Path, ReturnEstimator
from dreamlab.ops.losses import clipped_surrogate
from dreamlab.ops.pooled import pooled_mean, pooled_std_mean


@dataclass(frozen=True)
class PPOConfig:
    """Defaults of the paper's Atari and MuJoCo runs where they agree, else common choices."""

    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    network: Part = part("mlp")
    """Network between the encoder and the heads, one each for actor and critic."""
    critic_encoder: EncoderConfig | None = None
    """Encoder of the critic, if different; needs `share: nothing`."""
    critic_network: Part | None = optional_part()
    """Network of the critic, if different."""
    share: Literal["nothing", "encoder", "network"] = "encoder"
    """Modules shared by actor and critic; with `network`, only their last layers differ."""
    optimizer: Part = optimizer_field("adam", lr=3e-4, eps=1e-5, clip=0.5, schedule="linear")
    gamma: Share = 0.99
    returns: Part = part("gae", ESTIMATORS, ReturnEstimator)
    """Estimator of advantages and returns: `gae`, `lambda_return`, `n_step`, `monte_carlo`."""
    epochs: PositiveInt = 10
    minibatch: PositiveInt = 256
    """Transitions per gradient step (rounded to whole sequences if the network is recurrent)."""
    clip: Positive = 0.2
    anneal_clip: bool = False
    """Anneal `clip` and `clip_value` linearly to zero during training."""
    clip_value: Positive | None = None
    """Maximum change of the value per update; None does not clip."""
    value_coef: NonNegative = 0.5
    entropy_coef: NonNegative = 0.0
    normalize_advantage: bool = True
    target_kl: Positive | None = None
    """Stop the epochs once the KL divergence exceeds 1.5 times this; None never stops."""

    def __post_init__(self) -> None:
        if self.share == "network" and self.critic_network is not None:
            raise ValueError("critic_network has no effect with share=network")
        if self.share != "nothing" and self.critic_encoder is not None:
            raise ValueError(f"critic_encoder has no effect with share={self.share}")


@dataclass(frozen=True)
class Samples:
    """Training samples: [n, ...], or [sequences, t, ...] if the network is recurrent."""

    obs: Obs
    action: Shaped[Tensor, "n ..."]
    log_prob: Float[Tensor, "*b"]
    advantage: Float[Tensor, "*b"]
    value: Float[Tensor, "*b"]
    target: Float[Tensor, "*b"]
    mask: Bool[Tensor, "*b"]
    is_first: Bool[Tensor, "*b"]
    state: Tree

    def rows(self, index: Int[Tensor, " k"]) -> Samples:
        """Return the samples at these indices."""
        take = lambda x: x.index_select(0, index)  # noqa: E731
        values = {k: take(getattr(self, k)) for k in _PLAIN}
        obs = {k: take(v) for k, v in self.obs.items()}
        return Samples(obs=obs, state=_map_state(take, self.state), **values)


_PLAIN = ("action", "log_prob", "advantage", "value", "target", "mask", "is_first")


def _map_state(fn: Any, state: Tree) -> Tree:
    return {k: tuple(fn(s) for s in v) for k, v in state.items()} if state else state


class PPO(Workflow[PPOConfig]):
    """Clipped policy gradient on whole rollouts."""

    Config = PPOConfig
    tiny: ClassVar[dict[str, Any]] = {"network": {"hidden": (8, 8)}, "epochs": 2, "minibatch": 32}

    def build(self, spec: Spec) -> None:
        c = self.config
        self.encoder = Encoder(c.encoder, spec.obs)
        self.actor_net = c.network.build(self.encoder.out_dim)
        own = None if c.critic_encoder is None else Encoder(c.critic_encoder, spec.obs)
        if c.share != "network":
            self.critic_net = (c.critic_network or c.network).build((own or self.encoder).out_dim)
        nets = self.networks()
        self.actor = policy_head(self.actor_net.out_dim, spec.action)
        self.critic = linear(nets.get("critic", self.actor_net).out_dim, 1, 1.0)
        if c.share == "nothing":
            self.critic_encoder = own or Encoder(c.encoder, spec.obs)
        self.returns: ReturnEstimator = c.returns.build()
        self.recurrent = any(getattr(net, "recurrent", False) for net in nets.values())
        self.opt = self.optimizer("ppo", self.parameters(), c.optimizer)

    def networks(self) -> dict[str, Any]:
        """Return the possibly recurrent networks: one, or the actor's and the critic's."""
        nets = {"actor": self.actor_net}
        return nets if self.config.share == "network" else {**nets, "critic": self.critic_net}

    def critic_features(self, obs: Obs, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b k"]:
        """Return the critic's features of observations; `x` are the actor's."""
        return self.critic_encoder(obs) if self.config.share == "nothing" else x

    def rows_per_step(self, steps: int) -> int:
        """Return the number of rows in a minibatch."""
        return min(self.config.minibatch, steps)

    def initial_state(self, num_envs: int) -> Tree:
        """Return the initial state of a recurrent network."""
        if not self.recurrent:
            return ()
        nets = self.networks()
        return {k: net.initial_state(num_envs, self.device) for k, net in nets.items()}

    def decide(self, obs: Obs, is_first: Bool[Tensor, " n"], state: Tree, mode: Mode) -> Decision:
        """Sample from the policy; in evaluation, take its mode."""
        x = self.encoder(obs)
        if not self.recurrent:
            dist = self.actor.dist(chain(self.actor_net, self.actor.layer, x)[0])
            return Decision(dist.sample() if mode.samples else dist.mode())
        first = is_first[:, None]
        y, after = self.actor_net(x[:, None], state["actor"], first)
        following = {"actor": after}
        dist = self.actor(y[:, 0])
        if mode is Mode.FIXED:
            return Decision(dist.mode(), following)
        if "critic" in state:
            seen = self.critic_features(obs, x)[:, None]
            following["critic"] = self.critic_net(seen, state["critic"], first)[1]
        extras = {f"{net}/{i}": s for net, parts in state.items() for i, s in enumerate(parts)}
        action = dist.sample() if mode.samples else dist.mode()
        return Decision(action, following, extras)

    @hook
    def update_controller(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Train `epochs` times on a rollout [num_envs, t + 1]; the last step only bootstraps."""
        c = self.config
        left = 1.0 - phase.progress if c.anneal_clip else 1.0
        clip = torch.tensor(c.clip * left, device=self.device)
        limit = None if c.clip_value is None else torch.tensor(c.clip_value * left).to(clip)
        samples = self.prepare(batch)
        num = len(samples.action)
        size = max(1, c.minibatch // samples.action.shape[1]) if self.recurrent else c.minibatch
        # all processes must take the same number of steps, even with unequal numbers of rows
        pieces = int(world.agree([num])[0]) // (size * world.size())
        history: list[Metrics] = []
        cuts: list[Tensor] = []
        for _ in range(c.epochs):
            # the remainder joins the last minibatch: a step on a few rows would be too noisy
            cuts = [torch.arange(num)] if pieces < 2 else _cut(torch.randperm(num), size, pieces)
            for index in cuts:
                rows = samples if len(cuts) == 1 else samples.rows(index.to(self.device))
                history.append(self.minibatch(rows, clip, limit))
            if c.target_kl is not None and world.mean(history[-1]["kl"]) > 1.5 * c.target_kl:
                break
        last = history[-len(cuts) :]
        metrics = {k: torch.stack([m[k] for m in last]).mean() for k in last[0]}
        return {**metrics, **self.diagnose(samples), "steps": torch.tensor(float(len(history)))}

    @torch.no_grad()
    def prepare(self, batch: Batch) -> Samples:
        """Compute old log-probabilities, values and advantages of a rollout at once.

        The weights are unchanged since collection, so these equal the values when acting.
        """
        state = self._stored_state(batch)
        dist, value = self.evaluate(batch.obs, batch.is_first, state)
        log_prob = dist.log_prob(batch.action)[:, :-1]
        cont = (~batch.is_terminal).to(value.dtype)
        path = Path(batch.reward, cont, value, self.config.gamma, batch.is_last)
        advantage, target = self.returns.both(path)
        cut = {k: v[:, :-1] for k, v in batch.obs.items()}
        samples = Samples(
            cut, batch.action[:, :-1], log_prob, advantage, value[:, :-1], target,
            ~batch.is_last[:, :-1], batch.is_first[:, :-1], state,
        )  # fmt: skip
        return samples if self.recurrent else _flatten(samples)

    def _stored_state(self, batch: Batch) -> Tree:
        """Return the recurrent state before the rollout's first step."""
        if not self.recurrent:
            return ()
        out: dict[str, list[Tensor]] = {k: [] for k in self.networks()}
        for name in sorted(batch.extras):
            out[name.split("/")[0]].append(batch.extras[name][:, 0])
        return {k: tuple(v) for k, v in out.items()}

    def evaluate(
        self, obs: Obs, is_first: Bool[Tensor, "*b"], state: Tree
    ) -> tuple[Dist, Float[Tensor, "*b"]]:
        """Return the policy and the value at each step."""
        x, before = self.encoder(obs), state if self.recurrent else {"actor": (), "critic": ()}
        if self.config.share == "network":
            y, _ = self.actor_net(x, before["actor"], is_first)
            return self.actor(y), self.critic(y)[..., 0].float()
        policy, _ = chain(self.actor_net, self.actor.layer, x, before["actor"], is_first)
        seen = self.critic_features(obs, x)
        value, _ = chain(self.critic_net, self.critic, seen, before["critic"], is_first)
        return self.actor.dist(policy), value[..., 0].float()

    @compilable
    @varying_rows
    def minibatch(
        self, s: Samples, clip: Float[Tensor, ""], limit: Float[Tensor, ""] | None
    ) -> Metrics:
        """Take one gradient step (eq. 7 and 9 of the paper); `limit` clips the value change."""
        c = self.config
        dist, value = self.evaluate(s.obs, s.is_first, s.state)
        advantage = (
            _standardise(s.advantage, s.mask if self.recurrent else None)
            if c.normalize_advantage
            else s.advantage
        )
        change = dist.log_prob(s.action) - s.log_prob
        mean = (lambda x: pooled_mean(x[s.mask])) if self.recurrent else pooled_mean
        policy_loss = -mean(clipped_surrogate(change, advantage, clip))
        value_loss = mean(_value_error(value, s, limit))
        loss = policy_loss + c.value_coef * value_loss
        metrics = {"policy_loss": policy_loss, "value_loss": value_loss}
        if c.entropy_coef:
            metrics["entropy"] = mean(dist.entropy())
            loss = loss - c.entropy_coef * metrics["entropy"]
        metrics["grad_norm"] = self.opt.step(loss)
        with torch.no_grad():  # low-variance KL estimate (Schulman 2020)
            metrics["kl"] = mean(change.expm1() - change)
        return {k: v.detach() for k, v in metrics.items()}

    @torch.no_grad()
    def diagnose(self, s: Samples) -> Metrics:
        """Return diagnostics of the update."""
        target, value = s.target[s.mask], s.value[s.mask]
        explained = 1 - (target - value).var() / target.var().clamp(min=1e-8)
        return {
            "explained_variance": explained,
            "value": value.mean(),
            "lr": torch.tensor(self.opt.lr),
        }


def _value_error(
    value: Float[Tensor, "*b"], s: Samples, limit: Float[Tensor, ""] | None
) -> Float[Tensor, "*b"]:
    """Return the squared value error, or that of the clipped value if larger."""
    error = mse_loss(value, s.target, reduction="none")
    if limit is None:
        return error
    near = s.value + (value - s.value).clamp(-limit, limit)
    return torch.max(error, (near - s.target).square())


def _cut(order: Int[Tensor, " n"], size: int, pieces: int) -> list[Int[Tensor, " _"]]:
    """Split into pieces of at least `size`; each process splits its own rows."""
    if world.size() > 1:
        return list(order.tensor_split(pieces))
    return list(order.tensor_split([size * i for i in range(1, pieces)]))


def _flatten(s: Samples) -> Samples:
    """Flatten environments and time into one axis, and drop void transitions."""
    keep = s.mask.flatten().nonzero()[:, 0]
    take = lambda x: x.flatten(0, 1).index_select(0, keep)  # noqa: E731
    values = {k: take(getattr(s, k)) for k in _PLAIN}
    return Samples(obs={k: take(v) for k, v in s.obs.items()}, state=(), **values)


def _standardise(x: Float[Tensor, "*b"], mask: Bool[Tensor, "*b"] | None) -> Float[Tensor, "*b"]:
    std, mean = pooled_std_mean(x if mask is None else x[mask])
    return (x - mean) / (std + 1e-8)
