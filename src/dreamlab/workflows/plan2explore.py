"""Plan2Explore (Sekar et al. 2020, arXiv:2005.05960): explore where the world model is uncertain.

Two policies are trained in DreamerV3's world model. The explorer collects the data: its reward is
the disagreement of an ensemble of one-step predictors. The task policy is trained on the rewards
predicted in dreams, does not collect data, and is used in evaluation, which measures task
performance after task-agnostic exploration.

A phase calls `update_agent` (model and task) and then `update_explorer`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from dreamlab.components.actor_critic import ActorCritic
from dreamlab.components.exploration.ensemble import EnsembleConfig, LatentEnsemble, Magnitude
from dreamlab.components.world_models.codec import width
from dreamlab.components.world_models.dreaming import Guess
from dreamlab.components.world_models.rssm import Latent
from dreamlab.core.config import Part
from dreamlab.core.limits import NonNegative, SomeShare
from dreamlab.core.optim import optimizer_field, optional_optimizer, without_groups
from dreamlab.core.phase import Phase
from dreamlab.core.types import Batch, Decision, Metrics, Mode, Obs, Spec, Tree
from dreamlab.core.workflow import capturable, compilable, hook
from dreamlab.workflows.dreamer_v3 import DreamerV3, DreamerV3Config, Scales


@dataclass(frozen=True)
class TaskScales(Scales):
    """DreamerV3's weights except one: the replayed actions are the explorer's."""

    repval: NonNegative = 0.0


@dataclass(frozen=True)
class Plan2ExploreConfig(DreamerV3Config):
    """DreamerV3's defaults, also for the explorer's policy, and an ensemble."""

    scales: TaskScales = field(default_factory=TaskScales)
    ensemble: EnsembleConfig = field(default_factory=EnsembleConfig)
    ensemble_optimizer: Part = optimizer_field("adam", lr=3e-4, eps=1e-5, clip=100.0)
    explorer_optimizer: Part | None = optional_optimizer()
    """Optimizer of the explorer's actor and critic; None uses `optimizer`."""
    novelty_rate: SomeShare = 0.01
    """Update rate of the mean disagreement that normalizes the explorer's rewards."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.actor_grad != "reinforce":
            raise ValueError("Plan2Explore's policies learn by actor_grad=reinforce only")
        if self.scales.repval:
            raise ValueError(
                "scales.repval must be 0: the returns in the replay are the explorer's, and the "
                "task's critic would learn them"
            )


class Plan2Explore(DreamerV3):
    """World model, two policies, and an ensemble that measures novelty."""

    Config = Plan2ExploreConfig
    former_names: ClassVar[dict[str, str]] = DreamerV3.former_names | {
        "explorer.low": "explorer.return_low", "explorer.high": "explorer.return_high",
    }  # fmt: skip
    tiny: ClassVar[dict[str, Any]] = {
        **DreamerV3.tiny,
        "ensemble": {"num": 3, "layers": 1, "units": 8},
    }

    def build(self, spec: Spec) -> None:
        super().build(spec)
        c, rssm = self.config, self.model.rssm
        assert isinstance(c, Plan2ExploreConfig)
        # task heads read the states, but their gradients must not shape them
        self.model.reward.register_forward_pre_hook(_apart)
        action_dim = width(spec.action)
        self.ensemble = LatentEnsemble(c.ensemble, rssm.out_dim, action_dim, rssm.stoch_dim)
        self.novelty = Magnitude(c.novelty_rate)
        self.explorer = ActorCritic(c, rssm.out_dim, spec.action)
        self.optimizer("ensemble", self.ensemble.parameters(), c.ensemble_optimizer)
        config = c.explorer_optimizer or without_groups(c.optimizer)
        self.optimizer("explorer", self.explorer.learnt(), config)

    @capturable
    def decide(self, obs: Obs, is_first: Bool[Tensor, " n"], state: Tree, mode: Mode) -> Decision:
        """Act with the explorer while collecting, with the task policy in evaluation."""
        decision = super().decide(obs, is_first, state, mode)
        if mode is not Mode.TRAIN:
            return decision
        return self.with_action(decision, self.explorer.policy(self.unpack_state(decision.state)))

    @compilable
    def replay_guess(self, feature: Float[Tensor, "b t d"]) -> Guess:
        """Predict task values, whose gradient does not reach the model."""
        return self.guess(feature[:, :-1].detach())

    @hook
    def update_explorer(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Train the ensemble on next states, and the explorer in dreams of the current model."""
        latent = self.followed(batch)
        metrics = self.learn_ensemble(latent, batch)
        last = self.config.imagine_last
        recent = slice(-last, None) if last else slice(None)
        metrics |= self.learn_explorer(Latent(*(x[:, recent] for x in latent)).flat())
        return {k: v.detach() for k, v in metrics.items()}

    @torch.no_grad()
    def followed(self, batch: Batch) -> Latent:
        """Return the states [b, t] of windows [b, 1 + t]; the first step only provides context."""
        start = self.decompress_latent({k: v[:, 0] for k, v in batch.extras.items()})
        obs = {k: v[:, 1:] for k, v in batch.obs.items()}
        return self.model.observe(obs, batch.action[:, :-1], batch.is_first[:, 1:], start).latent

    def learn_ensemble(self, latent: Latent, batch: Batch) -> Metrics:
        """Take one gradient step on predicting the stochastic part of the next states."""
        action = self.model.embed(batch.action[:, 1:-1])
        error = self.ensemble.losses(latent.feature[:, :-1], action, latent.stoch[:, 1:])
        loss = (error * ~batch.is_first[:, 2:]).mean()
        norm = self.optimizers["ensemble"].step(loss)
        return {"ensemble_loss": loss, "ensemble_grad_norm": norm}

    def learn_explorer(self, start: Latent) -> Metrics:
        """Take one gradient step in dreams from states [n, ...], rewarded by disagreement."""
        with torch.no_grad():
            latent, action = self.imagine(self.config.imagine, start, self.explorer.policy)
            feature = latent.feature
            taken = self.model.embed(action[:, :-1])
            novelty = self.ensemble.disagreement(feature[:, :-1], taken)
            reward = torch.cat([torch.zeros_like(novelty[:, :1]), self.novelty(novelty)], 1)
            cont = torch.sigmoid(self.model.cont(feature))
        losses, metrics = self.explorer.losses(feature, action, reward, cont)
        scales = self.config.scales
        loss = (scales.policy * losses["policy"] + scales.value * losses["value"]).mean()
        norm = self.optimizers["explorer"].step(loss)
        self.explorer.update_target()
        found = {f"explorer_{k}": v for k, v in metrics.items()}
        return {**found, "disagreement": novelty.mean(), "explorer_grad_norm": norm}


def _apart(head: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Detach the inputs of a head, as a forward pre-hook."""
    return tuple(x.detach() for x in inputs)
