"""PlaNet (Hafner et al. 2019, arXiv:1811.04551): learn a world model, plan in it.

There is no policy: at every step a planner, by default the cross-entropy method, searches the
model's latent space for the actions with the highest predicted reward, and executes the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dreamlab.components.world_models.planned import PlannedRSSMConfig
from dreamlab.components.world_models.rssm import Latent
from dreamlab.components.world_models.workflow import WorldModelWorkflow
from dreamlab.components.world_models.world_model_planet import (
    PlaNetModel,
    PlaNetModelConfig,
    Posterior,
    check_continuous,
)
from dreamlab.core.config import Part, part
from dreamlab.core.limits import NonNegative
from dreamlab.core.optim import optimizer_field
from dreamlab.core.phase import Phase
from dreamlab.core.types import Batch, Decision, Metrics, Mode, Obs, Spec, Tree
from dreamlab.core.workflow import Workflow, hook
from dreamlab.ops.planning import PLANNERS, Planner


@dataclass(frozen=True)
class PlaNetConfig(PlannedRSSMConfig):
    """Defaults of the paper: its model and its planner."""

    planner: Part = part("cem", PLANNERS, Planner)
    """Planner: `cem`, `mppi`, `cma_es`, `random_shooting`."""
    noise: NonNegative = 0.3
    """Standard deviation of the exploration noise added to actions in training."""
    optimizer: Part = optimizer_field("adam", lr=1e-3, eps=1e-4, clip=1000.0)


class PlaNet(WorldModelWorkflow, Workflow[PlaNetConfig]):
    """A world model and a planner."""

    Config = PlaNetConfig
    tiny: ClassVar[dict[str, Any]] = {
        "rssm": {"deter": 16, "hidden": 8, "stoch": 4},
        "codec": {"depth": 2, "units": 8, "layers": 1},
        "reward": {"units": 8, "layers": 1},
        "free_nats": 0.0,
        "planner": {"horizon": 3, "iterations": 2, "samples": 8, "elites": 4},
    }

    fixed_noise: Float[Tensor, "iterations 1 samples h a"]

    def build(self, spec: Spec) -> None:
        c = self.config
        check_continuous(spec.action, "PlaNet", "DreamerV2 or DreamerV3")
        # a plan sums undiscounted rewards, without termination
        self.model = PlaNetModel(PlaNetModelConfig(c.rssm, c.codec, c.reward, None, 1.0), spec)
        self.planner: Planner[Any, Any] = c.planner.build()
        noise = self.planner.fixed_noise(spec.action.size)
        self.register_buffer("fixed_noise", noise, persistent=False)
        self.opt = self.optimizer("model", self.model.parameters(), c.optimizer)

    # -- acting -----------------------------------------------------------------------------------

    def initial_state(self, num_envs: int) -> Tree:
        """Return the initial latent state and previous action."""
        return self.model.before(num_envs, self.device)

    def decide(self, obs: Obs, is_first: Bool[Tensor, " n"], state: Tree, mode: Mode) -> Decision:
        """Update the latent state and plan from it; in training, add noise."""
        latent = self.model.after(obs, is_first, state, mode)
        action = self.policy(latent, mode)
        if mode.samples:
            action = (action + self.config.noise * torch.randn_like(action)).clamp(-1, 1)
        return Decision(action, self.pack_state(latent, action))

    def policy(self, latent: Latent, mode: Mode = Mode.EVAL) -> Float[Tensor, "n ..."]:
        """Return the first action of a plan from each state [n, ...]."""
        return self.plan(latent, mode)[:, 0].unflatten(-1, self.spec.action.shape)

    @torch.no_grad()
    def plan(self, latent: Latent, mode: Mode = Mode.EVAL) -> Float[Tensor, "n h a"]:
        """Run the planner from each state; return the best actions."""
        start = self.planner.zeros(latent.deter[:, :1].expand(-1, self.spec.action.size))
        noise = self.fixed_noise if mode is Mode.FIXED else None
        score = lambda plans: self.score_plans(latent, plans, mode)  # noqa: E731
        return self.planner.search(score, start, noise=noise).mean

    def score_plans(
        self, latent: Latent, plans: Float[Tensor, "n k h a"], mode: Mode = Mode.EVAL
    ) -> Float[Tensor, "n k"]:
        """Return the imagined reward of k plans from each of n states."""
        rssm, (n, k, h, _) = self.model.rssm, plans.shape
        state = Latent(*(x.repeat_interleave(k, 0) for x in latent))
        noise = rssm.noise(h, n * k, device=plans.device, mode=mode)
        features: list[Tensor] = []
        for action, chance in zip(plans.flatten(0, 1).unbind(1), noise, strict=True):
            state = rssm.imagine_step(state, action, chance)
            features.append(state.feature)
        return self.model.rewards(torch.stack(features)).sum(0).view(n, k)

    # -- learning ---------------------------------------------------------------------------------

    @hook
    def update_world_model(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Take one gradient step on the world model."""
        c = self.config
        losses = {k: v.mean() for k, v in self.losses(self.model.follow(batch), batch).items()}
        scales = {"kl": c.kl_scale, "reward": c.reward_scale}
        loss = torch.stack([scales.get(k, 1.0) * v for k, v in losses.items()]).sum()
        norm = self.opt.step(loss)
        measured = {"model_loss": loss, "model_grad_norm": norm}
        return {k: v.detach() for k, v in {**measured, **_named(losses)}.items()}

    def losses(self, seen: Posterior, batch: Batch) -> dict[str, Float[Tensor, "b t"]]:
        """Return the losses of the variational bound (eq. 3), not yet weighted."""
        out = self.model.losses(seen, batch.reward, batch.is_terminal)
        return {**out, "kl": self.free_kl(seen.post, seen.prior)}

    def free_kl(
        self, post: Float[Tensor, "b t k"], prior: Float[Tensor, "b t k"]
    ) -> Float[Tensor, "b t"]:
        """Return the KL divergence between posterior and prior above the free nats."""
        dist = self.model.rssm.dist
        return (dist(post).kl(dist(prior)) - self.config.free_nats).clamp(min=0)


def _named(losses: dict[str, Float[Tensor, ""]]) -> Metrics:
    return {f"loss/{k}": v for k, v in losses.items()}
