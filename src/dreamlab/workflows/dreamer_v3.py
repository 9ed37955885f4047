"""DreamerV3 (Hafner et al. 2025, doi:10.1038/s41586-025-08744-2): learn a world model, act in it.

One update: the world model is trained on replayed sequences; from every posterior state it imagines
`imagine` steps ahead with the current policy; actor and critic are trained on these dreams, the
critic also on the sequences themselves; then a single optimizer updates everything.

Matches the original as of 2026; older variants are options (the `norm` of each part, the `bins` of
`reward` and `critic`, `actor.unimix`, `actor_grad`, an optimizer for each part).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from dreamlab.components.actor_critic import ActorCriticConfig
from dreamlab.components.world_models import dreaming
from dreamlab.components.world_models.dreaming import Dream, Guess
from dreamlab.components.world_models.open_loop import Sequences
from dreamlab.components.world_models.protocol import Policy
from dreamlab.components.world_models.rssm import Latent
from dreamlab.components.world_models.workflow import DreamingWorkflow
from dreamlab.components.world_models.world_model import WorldModel, WorldModelConfig
from dreamlab.core.config import Part, check_presets
from dreamlab.core.gathering import Followed, Gathering
from dreamlab.core.limits import Natural, NonNegative, PositiveInt
from dreamlab.core.optim import Grads, optimizer_field, optional_optimizer
from dreamlab.core.phase import Phase
from dreamlab.core.types import Batch, Decision, Metrics, Mode, Obs, Spec, Tree
from dreamlab.core.workflow import Workflow, capturable, compilable, hook
from dreamlab.nn.dists import Dist
from dreamlab.nn.target import TargetNetwork, frozen_copy, passed_through
from dreamlab.ops.overlap import InHalves, overlapped
from dreamlab.ops.returns import lambda_return
from dreamlab.ops.scaling import update_return_range

Size = Literal["1m", "12m", "25m", "50m", "100m", "200m", "400m"]


def _sizes(deter: int, hidden: int, classes: int, depth: int, units: int) -> dict[str, Any]:
    """Return the options of a model of this size."""
    net, codec = {"units": units}, {"depth": depth, "units": units}
    rssm = {"deter": deter, "hidden": hidden, "classes": classes}
    heads = dict.fromkeys(("reward", "cont", "actor", "critic"), net)
    return {"rssm": rssm, "encoder": codec, "decoder": codec, **heads}


SIZES: dict[str, dict[str, Any]] = {
    "1m": _sizes(512, 64, 4, 4, 64),
    "12m": _sizes(2048, 256, 16, 16, 256),
    "25m": _sizes(3072, 384, 24, 24, 384),
    "50m": _sizes(4096, 512, 32, 32, 512),
    "100m": _sizes(6144, 768, 48, 48, 768),
    "200m": {},  # the defaults of the parts
    "400m": _sizes(12288, 1536, 96, 96, 1536),
}


@dataclass(frozen=True)
class Scales:
    """Loss weights; `rec` applies to the loss of every observation (`rec/NAME`)."""

    rec: NonNegative = 1.0
    rew: NonNegative = 1.0
    con: NonNegative = 1.0
    dyn: NonNegative = 1.0
    rep: NonNegative = 0.1
    policy: NonNegative = 1.0
    value: NonNegative = 1.0
    repval: NonNegative = 0.3

    def of(self, loss: str) -> float:
        """Return the weight of a loss."""
        return self.rec if loss.startswith("rec/") else getattr(self, loss)


@dataclass(frozen=True)
class DreamerV3Config(ActorCriticConfig, WorldModelConfig):
    """Defaults of the original; `size` sets options of every part unless given explicitly."""

    size: Size | None = "200m"
    """None uses the given options, else the defaults of each part."""
    imagine: PositiveInt = 15
    """Imagination horizon in steps."""
    imagine_last: Natural = 0
    """Imagine only from this many last states of each window; 0 uses all."""
    scales: Scales = field(default_factory=Scales)
    optimizer: Part = optimizer_field("laprop", lr=4e-5, eps=1e-20, agc=0.3, warmup_steps=1000)
    """Optimizer of everything, or of the world model if actor and critic have their own (2023)."""
    actor_optimizer: Part | None = optional_optimizer()
    critic_optimizer: Part | None = optional_optimizer()
    actor_grad: Literal["reinforce", "dynamics"] = "reinforce"
    """`dynamics` backpropagates returns through the dream (2023, continuous actions)."""
    presets: ClassVar[dict[str, dict[str, Any]]] = {"size": SIZES}

    def __post_init__(self) -> None:
        check_presets(self)
        if (self.actor_optimizer is None) != (self.critic_optimizer is None):
            raise ValueError("actor_optimizer and critic_optimizer come together or not at all")
        if self.actor_grad == "dynamics" and self.actor_optimizer is None:
            raise ValueError(
                "actor_grad=dynamics needs an actor_optimizer and a critic_optimizer: the gradient "
                "of returns must not move the world model"
            )


class DreamerV3(DreamingWorkflow, Workflow[DreamerV3Config]):
    """World model, actor and critic."""

    Config = DreamerV3Config
    Model: ClassVar[type[WorldModel]] = WorldModel
    tiny: ClassVar[dict[str, Any]] = {
        "size": None,
        "rssm": {"deter": 16, "hidden": 8, "stoch": 4, "classes": 4, "blocks": 4},
        "encoder": {"depth": 2, "units": 8, "layers": 1},
        "decoder": {"depth": 2, "units": 8, "layers": 1, "blocks": 4},
        "reward": {"units": 8, "num_bins": 15},
        "cont": {"units": 8},
        "actor": {"units": 8, "layers": 1},
        "critic": {"units": 8, "layers": 1, "num_bins": 15},
        "imagine": 3,
    }
    former_names: ClassVar[dict[str, str]] = {"low": "return_low", "high": "return_high"}
    return_low: Float[Tensor, ""]
    return_high: Float[Tensor, ""]
    quantiles: Float[Tensor, " 2"]

    def build(self, spec: Spec) -> None:
        self.model = self.Model(self.config, spec)
        dim = self.model.rssm.out_dim
        self.actor = self.config.actor.build(dim, spec.action)
        self.critic = self.config.critic.build(dim)
        self.slow = frozen_copy(self.critic)
        self.target_network = TargetNetwork(self.slow, self.critic)
        self.register_buffer("return_low", torch.zeros(()))
        self.register_buffer("return_high", torch.zeros(()))
        self.register_buffer("quantiles", torch.tensor([0.05, 0.95]), persistent=False)
        self._build_optimizers()

    def _build_optimizers(self) -> None:
        c = self.config
        if c.actor_optimizer is not None and c.critic_optimizer is not None:
            self.optimizer("model", self.model.parameters(), c.optimizer)
            self.optimizer("actor", self.actor.parameters(), c.actor_optimizer)
            self.optimizer("critic", self.critic.parameters(), c.critic_optimizer)
            return
        parts = (self.model, self.actor, self.critic)
        self.optimizer("agent", [p for m in parts for p in m.parameters()], c.optimizer)

    # -- acting -----------------------------------------------------------------------------------

    def initial_state(self, num_envs: int) -> Tree:
        """Return the initial latent state and previous action."""
        latent = self.model.rssm.initial(num_envs, self.device)
        spec = self.spec.action
        dtype = torch.int64 if spec.is_discrete else torch.float32
        action = torch.zeros(num_envs, *spec.shape, dtype=dtype, device=self.device)
        return self.pack_state(latent, action)

    @capturable
    def decide(self, obs: Obs, is_first: Bool[Tensor, " n"], state: Tree, mode: Mode) -> Decision:
        """Update the latent state and act; the latents are stored with the step."""
        model, rssm = self.model, self.model.rssm
        noise = rssm.noise(is_first.shape[0], device=is_first.device, mode=mode)
        latent, _ = rssm.observe_step(
            self.unpack_state(state),
            model.embed(state["action"]),
            model.encoder(obs),
            is_first,
            noise,
        )
        dist = self.actor(latent.feature)
        action = self.actor.shaped(dist.sample() if mode.samples else dist.mode())
        return Decision(
            action, self.pack_state(latent.float(), action), self.compress_latent(latent)
        )

    def compress_latent(self, latent: Latent) -> dict[str, Shaped[Tensor, " ..."]]:
        """Return latent states in the format of the replay."""
        return self.model.rssm.compress(latent)

    def decompress_latent(self, extras: dict[str, Shaped[Tensor, " ..."]]) -> Latent:
        """Return the latent states stored by `compress_latent`."""
        return self.model.rssm.decompress(extras)

    # -- learning ---------------------------------------------------------------------------------

    @hook
    def update_agent(
        self, batch: Batch, *, phase: Phase
    ) -> tuple[Metrics, dict[str, Shaped[Tensor, "b t ..."]]]:
        """Train on windows [b, 1 + t]; the first step only provides its stored state and action.

        The new states [b, t] are written back to the replay, so that the next window starts from
        them.
        """
        return self.update(replace(batch, index=None))

    @capturable
    def update(self, batch: Batch) -> tuple[Metrics, dict[str, Shaped[Tensor, "b t ..."]]]:
        """Implement `update_agent`, with metrics as tensors."""
        start = self.decompress_latent({k: v[:, 0] for k, v in batch.extras.items()})
        obs = {k: v[:, 1:] for k, v in batch.obs.items()}
        flags = (batch.reward, batch.is_first, batch.is_last, batch.is_terminal)
        reward, first, last, terminal = (x[:, 1:] for x in flags)
        recent = slice(-self.config.imagine_last, None) if self.config.imagine_last else slice(None)
        draw = partial(self.model.rssm.noise, device=self.device)
        action, chance = batch.action[:, :-1], draw(*first.shape[::-1])
        tokens = self.model.tokens(obs)
        seen, ahead = overlapped(
            self.device,
            lambda: self.model.filter(tokens, action, first, start, chance),
            lambda: draw(self.config.imagine, first[:, recent].numel()),
        )
        here = seen.as_leaves()  # all losses accumulate gradients here, for one backward pass
        known = [x[:, recent] for x in (reward, last, terminal)]
        origin = Latent(*(x[:, recent] for x in seen.latent)).flat()
        gather = self.gathering()
        model_losses = partial(self.model.losses, here, obs, reward, terminal)
        (world, guess), dream = overlapped(
            self.device,
            lambda: (
                gather.follow(*model_losses(), here=here.tensors),
                self.replay_guess(here.feature[:, recent]) if self.config.scales.repval else None,
            ),
            lambda: self.dream(origin, noise=ahead),
            urgent=True,  # many small sequential steps
        )

        replayed = gather.follow(self.replay_losses(dream, guess, *known), {}, here.tensors)
        before, (acting, means, after) = overlapped(
            self.device,
            lambda: gather.go_back(seen.tensors, world, replayed),  # long, and leaves room beside
            lambda: self._act(gather, dream, world.losses | replayed.losses, seen.latent),
        )
        metrics = world.metrics | acting.metrics | means
        metrics["loss"] = world.total + acting.total + replayed.total
        metrics |= self.move(gather, world.grads, replayed.grads, acting.grads, before)
        return {k: v.detach() for k, v in metrics.items()}, after

    def _act(
        self, gather: Gathering, dream: Dream, losses: dict[str, Float[Tensor, " ..."]], now: Latent
    ) -> tuple[Followed, Metrics, dict[str, Shaped[Tensor, "b t ..."]]]:
        """Return the losses of actor and critic; mean losses, the others' too; states to store."""
        acting = gather.follow(*self.behaviour_losses(dream))
        means = {f"loss/{k}": v.mean() for k, v in (losses | acting.losses).items()}
        return acting, means, self.compress_latent(now.detach())

    def learn(self, losses: dict[str, Float[Tensor, " ..."]]) -> Metrics:
        """Take a gradient step on the weighted losses, then update the slow critic."""
        gather = self.gathering()
        followed = gather.follow(losses, {})
        return {**self.move(gather, followed.grads), "loss": followed.total}

    def gathering(self) -> Gathering:
        """Return the optimizers of an update: one for everything, or one per part."""
        names = ("agent", "actor", "critic", "model")
        opts = {k: self.optimizers[k] for k in names if k in self.optimizers}
        return Gathering(opts, self.config.scales.of, self.device)

    def move(self, gather: Gathering, *grads: dict[str, Grads]) -> Metrics:
        """Take one step along the summed gradients, then update the slow critic; return norms."""
        norms = gather.move(*grads)
        self.target_network.update(self.config.slow_rate)
        return {"grad_norm" if k == "agent" else f"{k}_grad_norm": v for k, v in norms.items()}

    def sequences(self, batch: Batch) -> Sequences:
        """Return training sequences; the first step only provides its stored state and action."""
        start = self.decompress_latent({k: v[:, 0] for k, v in batch.extras.items()})
        obs = {k: v[:, 1:] for k, v in batch.obs.items()}
        flags = (batch.reward, batch.is_first, batch.is_terminal)
        reward, first, terminal = (x[:, 1:] for x in flags)
        return Sequences(obs, batch.action[:, :-1], reward, first, terminal, start)

    def policy(self, latent: Latent) -> Shaped[Tensor, "n ..."]:
        """Sample actions for states [n, ...], without gradients to the states."""
        return self.actor.shaped(self.actor(latent.detach().feature).sample())

    @compilable
    def dream_step(
        self, latent: Latent, noise: Float[Tensor, "n ..."]
    ) -> tuple[Latent, Shaped[Tensor, "n ..."]]:
        """Sample an action from the actor; return the next state and the action."""
        return self.model.advance(self.policy, latent, noise)

    @compilable
    def dream_action(
        self, hidden: Float[Tensor, "n v"]
    ) -> tuple[Shaped[Tensor, "n ..."], Float[Tensor, "n u"]]:
        """Sample an action from the actor's last hidden layer, for a dream in one call."""
        return dreaming.chosen(self.model, self.actor, hidden)

    def dream(
        self,
        start: Latent,
        policy: Policy | None = None,
        noise: Float[Tensor, "h n ..."] | None = None,
    ) -> Dream:
        """Imagine from every state and predict rewards and values."""
        through = self.config.actor_grad == "dynamics"
        fixed = (self.model, self.critic) if through else ()
        values = InHalves(self.predict_values)
        with torch.set_grad_enabled(through), passed_through(*fixed):
            feature, action = self.imagined(start.detach(), policy, noise, values.begin)
            reward, cont, value = values.of(feature)
            ret = lambda_return(reward, cont, value, self.config.lam)
        with torch.no_grad():
            weight = torch.cumprod(cont, 1)
        return Dream(feature, action, reward, cont, value, weight, ret)

    def imagined(
        self, start: Latent, policy: Policy | None, noise: Float[Tensor, "h n ..."] | None,
        halfway: Callable[[Float[Tensor, "n half f"]], None] | None = None,
    ) -> tuple[Float[Tensor, "n t d"], Shaped[Tensor, "n t ..."]]:  # fmt: skip
        """Return states and actions imagined with this policy, or else with the actor."""
        steps = self.config.imagine
        if policy is not None:
            latent, action = self.model.imagine(start, policy, steps, noise)
            return latent.feature, action
        dreamer = dreaming.Dreamer(self.model, self.actor, self.dream_step, self.dream_action)
        return dreamer.dream(start, self.policy, steps, noise, halfway)

    @compilable
    def predict_values(
        self, feature: Float[Tensor, "n t d"]
    ) -> tuple[Float[Tensor, "n t"], Float[Tensor, "n t"], Float[Tensor, "n t"]]:
        """Predict reward, continuation and value of states."""
        reward = self.model.reward.mean(self.model.reward(feature))
        cont = torch.sigmoid(self.model.cont(feature))
        return reward, cont, self.critic.mean(self.critic(feature))

    def actor_critic_losses(
        self, dream: Dream, feature: Float[Tensor, "b t d"], reward: Float[Tensor, "b t"],
        last: Bool[Tensor, "b t"], terminal: Bool[Tensor, "b t"],
    ) -> tuple[dict[str, Float[Tensor, " ..."]], Metrics]:  # fmt: skip
        """Return the losses of actor and critic, on dreams and on the replayed sequences."""
        losses, metrics = self.behaviour_losses(dream)
        shape = reward.shape
        losses = {k: v.view(shape) for k, v in losses.items()}
        guess = self.replay_guess(feature) if self.config.scales.repval else None
        return losses | self.replay_losses(dream, guess, reward, last, terminal), metrics

    @compilable
    def behaviour_losses(self, dream: Dream) -> tuple[dict[str, Float[Tensor, " n"]], Metrics]:
        """Return the losses of actor and critic for each dream."""
        policy, metrics = self.actor_loss(dream, self.return_scale(dream.ret.detach()))
        value = self.critic_loss(self.guess(dream.feature[:, :-1].detach()), dream.ret)
        value = value * dream.weight[:, :-1]
        return {"policy": policy.mean(1), "value": value.mean(1)}, metrics

    @compilable
    def replay_guess(self, feature: Float[Tensor, "b t d"]) -> Guess:
        """Return what the critics predict for replayed states but the last."""
        return self.guess(feature[:, :-1])

    @compilable
    def replay_losses(
        self, dream: Dream, guess: Guess | None, reward: Float[Tensor, "b t"],
        last: Bool[Tensor, "b t"], terminal: Bool[Tensor, "b t"],
    ) -> dict[str, Float[Tensor, "b t-1"]]:  # fmt: skip
        """Return the critic loss on the replayed sequences; its gradient reaches the model."""
        if guess is None:
            return {}
        ret = self.replay_return(dream.ret[:, 0].view(reward.shape), reward, last, terminal)
        return {"repval": self.critic_loss(guess, ret) * (~last[:, :-1]).float()}

    def actor_loss(
        self, dream: Dream, scale: Float[Tensor, ""]
    ) -> tuple[Float[Tensor, "n h"], Metrics]:
        """Return the actor loss, with advantages divided by the return scale."""
        c = self.config
        advantage = (dream.ret - dream.value[:, :-1]) / scale
        dist: Dist = self.actor(dream.feature.detach())
        entropy = dist.entropy()[:, :-1]
        if c.actor_grad == "reinforce":
            gain = dist.log_prob(dream.action)[:, :-1] * advantage.detach()
        else:
            gain = advantage
        loss = -dream.weight[:, :-1] * (gain + c.entropy * entropy)
        metrics = {
            "return": dream.ret.mean(), "value": dream.value.mean(), "advantage": advantage.mean(),
            "advantage_size": advantage.abs().mean(), "return_scale": scale,
            "entropy": entropy.mean(), "imagined_reward": dream.reward.mean(),
            "imagined_cont": dream.cont.mean(), "weight": dream.weight.mean(),
        }  # fmt: skip
        return loss, metrics

    def return_scale(self, ret: Float[Tensor, "n t"]) -> Float[Tensor, ""]:
        """Update the 5th and 95th return percentiles; return their distance, at least 1."""
        return update_return_range(
            ret, self.quantiles, (self.return_low, self.return_high), self.config.return_rate
        )

    def guess(self, feature: Float[Tensor, "n t d"]) -> Guess:
        """Predict values by the critic, as logits, and by the slow critic."""
        with torch.no_grad():
            slow = self.slow.mean(self.slow(feature))
        return Guess(self.critic(feature), slow)

    def critic_loss(self, guess: Guess, ret: Float[Tensor, "n t"]) -> Float[Tensor, "n t"]:
        """Return the loss of values against returns, and against the slow critic's values."""
        return self.critic.loss(guess.logits, ret) + self.critic.loss(guess.logits, guess.slow)

    def replay_return(
        self, boot: Float[Tensor, "b t"], reward: Float[Tensor, "b t"], last: Bool[Tensor, "b t"],
        terminal: Bool[Tensor, "b t"],
    ) -> Float[Tensor, "b t-1"]:  # fmt: skip
        """Return the returns of replayed steps but the last, bootstrapped with imagined returns."""
        discount = (~terminal).float() * self.model.discount
        lam = (~last).float() * self.config.lam
        return lambda_return(reward, discount, boot.detach(), lam)
