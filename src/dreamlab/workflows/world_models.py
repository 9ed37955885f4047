"""World Models (Ha and Schmidhuber 2018, arXiv:1803.10122): VAE, MDN-RNN and an evolved controller.

V, an autoencoder, compresses each step; M, a recurrent mixture density network, predicts the next
code; C, a linear layer on both, is evolved in the environment or in dreams of M. The phases
determine what is trained when.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from dreamlab.components.evolution import EVOLUTIONS, Evolution, as_worst
from dreamlab.components.world_models.codec import width
from dreamlab.components.world_models.mdn_rnn import Latent, MDNConfig, Target, VMModel
from dreamlab.components.world_models.protocol import map_latent
from dreamlab.components.world_models.vae import Code, VAEConfig, vae_losses
from dreamlab.components.world_models.workflow import WorldModelWorkflow
from dreamlab.components.world_models.world_model_planet import check_range
from dreamlab.core import world
from dreamlab.core.config import Part, part
from dreamlab.core.errors import ConfigError
from dreamlab.core.limits import Positive, PositiveInt
from dreamlab.core.optim import Optimizer, optimizer_field
from dreamlab.core.phase import Phase
from dreamlab.core.types import ArraySpec, Batch, Decision, Metrics, Mode, Obs, Spec, Tree
from dreamlab.core.workflow import Workflow, hook

LOOK_EVERY = 50
"""Dream steps between checks for surviving rollouts: each check synchronizes with the GPU."""


@dataclass(frozen=True)
class ControllerConfig:
    """Inputs of the controller, and episodes per evaluation."""

    cell: bool = False
    """Use the LSTM's cell state too, not only its output (the paper's Doom)."""
    rollouts: PositiveInt = 16
    """Episodes, real or imagined, per candidate evaluation."""


@dataclass(frozen=True)
class DreamConfig:
    """Options of dreams in which controllers are trained."""

    temperature: Positive = 1.15
    """Above 1, dreams are more uncertain than the data, which leaves less to exploit."""
    horizon: PositiveInt = 1_000
    """Maximum steps of a dream."""


@dataclass(frozen=True)
class WorldModelsConfig:
    """Defaults of the paper."""

    vae: VAEConfig = field(default_factory=VAEConfig)
    mdn: MDNConfig = field(default_factory=MDNConfig)
    controller: ControllerConfig = field(default_factory=ControllerConfig)
    evolution: Part = part("cma_es", EVOLUTIONS, Evolution)
    """Evolution strategy for the controller's weights."""
    dream: DreamConfig = field(default_factory=DreamConfig)
    vae_optimizer: Part = optimizer_field("adam", lr=1e-4)
    mdn_optimizer: Part = optimizer_field("adam", lr=1e-3)
    clip_value: Positive = 1.0
    """Clip value of each gradient entry of M."""


class LinearController(nn.Module):
    """C: one linear layer, trained by evolution, never by gradients."""

    def __init__(self, in_dim: int, action: ArraySpec) -> None:
        super().__init__()
        self.action, self.in_dim, self.out_dim = action, in_dim, width(action)
        num = (in_dim + 1) * self.out_dim
        self.weights = nn.Parameter(torch.zeros(num), requires_grad=False)

    def forward(
        self, feature: Float[Tensor, "p k d"], weights: Float[Tensor, "p n"]
    ) -> Shaped[Tensor, "p k ..."]:
        """Return the actions of p controllers in k states each."""
        matrix = weights[:, : self.in_dim * self.out_dim].unflatten(1, (self.in_dim, self.out_dim))
        bias = weights[:, None, self.in_dim * self.out_dim :]
        return self._shaped(torch.baddbmm(bias, feature, matrix))

    def _shaped(self, out: Float[Tensor, "p k a"]) -> Shaped[Tensor, "p k ..."]:
        classes = self.action.classes
        if classes is None:
            return torch.tanh(out).unflatten(-1, self.action.shape)
        if isinstance(classes, int):
            return out.argmax(-1)
        return torch.stack([x.argmax(-1) for x in out.split(list(classes), -1)], -1)


class WorldModels(WorldModelWorkflow, Workflow[WorldModelsConfig]):
    """V, M and C."""

    Config = WorldModelsConfig
    tiny: ClassVar[dict[str, Any]] = {
        "vae": {"latent": 4, "units": 8, "layers": 1},
        "mdn": {"hidden": 8, "mixtures": 2},
        "controller": {"rollouts": 2},
        "evolution": {"population": 4},
        "dream": {"horizon": 8},
    }

    total: Float[Tensor, " p"]
    played: Int[Tensor, " p"]
    turn: Int[Tensor, ""]
    seen: Int[Tensor, ""]

    def build(self, spec: Spec) -> None:
        c = self.config
        check_range(spec.action, "World Models")
        self.model = VMModel(c.vae, c.mdn, spec, c.dream.temperature)
        memory = c.mdn.hidden * (2 if c.controller.cell else 1)
        self.controller = LinearController(c.vae.latent + memory, spec.action)
        self.evolution: Any = c.evolution.build(self.controller.weights.numel())
        population = self.evolution.candidates.shape[0]
        self.register_buffer("total", torch.zeros(population))  # returns of this generation
        self.register_buffer("played", torch.zeros(population, dtype=torch.int64))
        self.register_buffer("turn", torch.zeros((), dtype=torch.int64))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))  # updates of V
        self.vae_opt = self.optimizer("vae", self.model.vae.parameters(), c.vae_optimizer)
        self.mdn_opt = self.optimizer("mdn", self.model.mdn.parameters(), c.mdn_optimizer)

    # -- acting -----------------------------------------------------------------------------------

    def initial_state(self, num_envs: int) -> Tree:
        """Return the initial latent state and previous action."""
        return self.model.before(num_envs, self.device)

    @torch.no_grad()
    def decide(self, obs: Obs, is_first: Bool[Tensor, " n"], state: Tree, mode: Mode) -> Decision:
        """Act with the search mean; while collecting, each environment runs a candidate."""
        latent, code = self.model.after(obs, is_first, state, mode)
        if mode is Mode.TRAIN:
            who = self.candidates_of(is_first.shape[0])
            weights = self.evolution.candidates[who]
            action = self.controller(self.features(latent)[:, None], weights)[:, 0]
        else:
            action = self.policy(latent)
        return Decision(action, self.pack_state(latent, action), self.codes(code))

    def candidates_of(self, num: int) -> Int[Tensor, " {num}"]:
        """Return the candidate that each of `num` environments of this process runs now."""
        population, first = self.evolution.candidates.shape[0], world.rank() * num
        return (self.turn + first + torch.arange(num, device=self.turn.device)) % population

    def policy(self, latent: Latent) -> Shaped[Tensor, "n ..."]:
        """Return the actions of the search mean."""
        return self.controller(self.features(latent)[None], self.controller.weights[None])[0]

    def features(self, latent: Latent) -> Float[Tensor, "*b d"]:
        """Return the controller's input features."""
        memory = (latent.h, latent.c) if self.config.controller.cell else (latent.h,)
        return torch.cat([latent.z, *memory], -1)

    def codes(self, code: Code) -> dict[str, Shaped[Tensor, " ..."]]:
        """Return what is stored with a step: its code, and the number of V's updates."""
        age = self.seen.expand(code.mean.shape[:-1]).to(torch.int32)
        return {"mean": code.mean, "logvar": code.logvar, "seen": age}

    # -- V and M ----------------------------------------------------------------------------------

    @hook
    def update_vae(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Take one gradient step on V with every step of the batch."""
        c, vae = self.config.vae, self.model.vae
        obs = {k: v.flatten(0, 1) for k, v in batch.obs.items()}
        vae.watch(vae.preprocess(obs))
        noise = torch.randn(batch.reward.numel(), c.latent, device=batch.reward.device)
        losses = vae_losses(vae, c, vae.preprocess(obs), noise)
        loss = losses["reconstruction"] + c.kl_scale * losses["kl"]
        norm = self.vae_opt.step(loss)
        self.seen += 1
        return {"vae_grad_norm": norm.detach(), **_named(losses)}

    @hook
    @torch.no_grad()
    def encode(self, batch: Batch, *, phase: Phase) -> tuple[Metrics, Obs]:
        """Encode the steps of the batch with the current V."""
        codes = self.codes(self.model.vae.encode(self.model.vae.preprocess(batch.obs)))
        return {"encoded_steps": torch.tensor(float(batch.reward.numel()))}, codes

    @hook
    def update_mdn(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Take one gradient step on M with latents resampled from stored codes."""
        if batch.reward.shape[1] < 2:
            raise ConfigError("buffers: length=1: the MDN-RNN needs windows of at least 2 steps")
        target = Target(batch.reward, batch.is_first, batch.is_terminal)
        losses = self.model.mdn_losses(self.stored(batch), batch.action, target)
        scales = {"reward": self.config.mdn.reward_scale}
        loss = torch.stack([scales.get(k, 1.0) * v for k, v in losses.items()]).sum()
        norm = self._clipped(self.mdn_opt, loss)
        stale = (batch.extras["seen"] != self.seen).float().mean()
        return {"mdn_grad_norm": norm.detach(), "stale_codes": stale, **_named(losses)}

    def stored(self, batch: Batch) -> Float[Tensor, "b t z"]:
        """Sample latents from the codes stored with the steps."""
        code = Code(batch.extras["mean"].float(), batch.extras["logvar"].float())
        return code.at(torch.randn_like(code.mean))

    def _clipped(self, opt: Optimizer, loss: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """Take a gradient step with elementwise gradient clipping."""
        most = self.config.clip_value
        grads = opt.gradients(loss)
        return opt.follow([None if g is None else g.clamp(-most, most) for g in grads])

    # -- C ----------------------------------------------------------------------------------------

    @hook
    @torch.no_grad()
    def update_controller(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Score candidates by the first episode of each environment.

        Once every candidate has enough rollouts, the search takes a step.
        """
        returns = first_returns(batch)
        who = world.gathered(self.candidates_of(returns.shape[0]))
        returns = world.gathered(returns)
        self.total.index_add_(0, who, returns)
        self.played.index_add_(0, who, torch.ones_like(who))
        self.turn += returns.shape[0]
        counted = {"controller_evaluations": torch.tensor(float(returns.shape[0]))}
        # one device synchronization per thousands of environment steps
        if bool((self.played >= self.config.controller.rollouts).all()):
            return {**self._evolve(self.total / self.played), **counted}
        return counted

    @hook
    @torch.no_grad()
    def update_controller_in_dream(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Evaluate every candidate in dreams that start at the ends of the batch's windows."""
        if not (self.config.mdn.reward or self.config.mdn.done):
            raise ConfigError(
                f"phase {phase.name!r}: a dream that predicts neither reward nor end tells "
                "controllers nothing: set workflow.mdn.reward or workflow.mdn.done"
            )
        start, awake = self.dream_starts(batch)
        returns = self.dream_returns(start, awake)
        dreamt = world.total(torch.tensor(float(returns.numel())))
        found = self._evolve(world.mean(returns.mean(1)))
        return {**found, "controller_evaluations": dreamt}

    def dream_starts(self, batch: Batch) -> tuple[Latent, Bool[Tensor, " k"]]:
        """Return dream start states, one per rollout, and which of them can continue."""
        k, z = self.config.controller.rollouts, self.stored(batch)
        rows = torch.arange(k, device=z.device) % z.shape[0]
        led = torch.cat([batch.action[:, :1], batch.action[:, :-1]], 1)
        past = torch.cat([torch.zeros_like(z[:, :1]), z[:, :-1]], 1)
        nothing = self.model.initial(z.shape[0], z.device)
        latent = self.model.follow(z, past, led, batch.is_first, nothing)
        return map_latent(lambda x: x[rows, -1], latent), ~batch.is_last[rows, -1]

    def dream_returns(self, start: Latent, awake: Bool[Tensor, " k"]) -> Float[Tensor, "p k"]:
        """Return the return of each candidate from each start, with common random numbers."""
        weights, model = self.evolution.candidates, self.model
        p, k = weights.shape[0], start.z.shape[0]
        latent = map_latent(lambda x: x.repeat(p, 1), start)
        going = awake.float().repeat(p)
        total = torch.zeros_like(going)
        for step in range(self.config.dream.horizon):
            if step % LOOK_EVERY == LOOK_EVERY - 1 and not bool(going.any()):
                break
            feature = self.features(latent).view(p, k, -1)
            action = self.controller(feature, weights).flatten(0, 1)
            chance = model.noise(k, device=total.device).repeat(p, 1, 1)
            latent, seen = model.dream_step(latent, action, chance)
            total += going if seen.reward is None else going * seen.reward
            if seen.done is not None:
                going = going * (seen.done <= 0)
        return total.view(p, k)

    def _evolve(self, fitness: Float[Tensor, " p"]) -> Metrics:
        """Update the search with the candidates' fitness, and act with its new mean."""
        self.evolution.tell(fitness)
        fitness = as_worst(fitness)
        self.controller.weights.copy_(self.evolution.mean())
        self.total.zero_()
        self.played.zero_()
        self.turn.zero_()
        return {
            "fitness": fitness.mean(), "fitness_best": fitness.max(), "fitness_std": fitness.std(),
            "step_size": self.evolution.step_size(),
        }  # fmt: skip


def first_returns(batch: Batch) -> Float[Tensor, " n"]:
    """Return the undiscounted return of the first episode in each row, whether it ended or not."""
    over = torch.cumsum(batch.is_last.int(), 1) - batch.is_last.int() > 0
    return (batch.reward * ~over).sum(1)


def _named(losses: dict[str, Float[Tensor, ""]]) -> Metrics:
    return {f"loss/{k}": v.detach() for k, v in losses.items()}
