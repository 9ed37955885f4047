"""Model-predictive control: learn a world model, plan with it at every step.

The model and the planner are parts: an ensemble of networks with the cross-entropy method is PETS
(Chua et al. 2018, arXiv:1805.12114), PlaNet's RSSM with it is PlaNet, TD-MPC2's latents with a
value is TD-MPC2 without a policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dreamlab.components import HOME
from dreamlab.components.world_models.planned import PlannedModel
from dreamlab.components.world_models.protocol import map_latent
from dreamlab.components.world_models.workflow import WorldModelWorkflow
from dreamlab.components.world_models.world_model_planet import check_continuous
from dreamlab.core.config import Part, part
from dreamlab.core.limits import NonNegative
from dreamlab.core.optim import optimizer_field
from dreamlab.core.phase import Phase
from dreamlab.core.types import Batch, Decision, Metrics, Mode, Obs, Spec, Tree
from dreamlab.core.workflow import Workflow, hook
from dreamlab.ops.planning import PLANNERS, Planner, shifted


@dataclass(frozen=True)
class MPCConfig:
    """Hyperparameters of PETS, except for a shorter horizon."""

    model: Part = part("ensemble", HOME, PlannedModel)
    """World model: `ensemble`, `planet_rssm`, `tdmpc2_latent`, or your own class."""
    planner: Part = part("cem", PLANNERS, Planner, horizon=20, iterations=5, samples=400, elites=40)
    """Planner: `cem`, `mppi`, `cma_es`, `random_shooting`."""
    warm_start: bool = True
    """Start each search from the last plan, shifted by one step."""
    noise: NonNegative = 0.0
    """Standard deviation of the exploration noise added to actions in training."""
    optimizer: Part = optimizer_field("adam", lr=1e-3)


class MPC(WorldModelWorkflow, Workflow[MPCConfig]):
    """Any world model with any planner."""

    Config = MPCConfig
    least_length: ClassVar[int] = 2
    tiny: ClassVar[dict[str, Any]] = {
        "model": {"members": 2, "units": 8, "layers": 1, "particles": 2},
        "planner": {"horizon": 3, "iterations": 2, "samples": 8, "elites": 4},
    }

    fixed_noise: Float[Tensor, "iterations 1 samples h a"]

    def build(self, spec: Spec) -> None:
        c = self.config
        check_continuous(spec.action, "MPC", "DreamerV2 or DreamerV3")
        self.model: Any = c.model.build(spec)
        self.planner: Planner[Any, Any] = c.planner.build()
        noise = self.planner.fixed_noise(spec.action.size)
        self.register_buffer("fixed_noise", noise, persistent=False)
        learnt = [p for p in self.model.parameters() if p.requires_grad]
        self.opt = self.optimizer("model", learnt, c.optimizer)

    # -- acting -----------------------------------------------------------------------------------

    def initial_state(self, num_envs: int) -> Tree:
        """Return the initial latent state and previous action, and an empty plan."""
        like = self.fixed_noise.new_zeros(num_envs, self.spec.action.size)
        return {**self.model.before(num_envs, self.device), "plan": self.planner.zeros(like)}

    def decide(self, obs: Obs, is_first: Bool[Tensor, " n"], state: Tree, mode: Mode) -> Decision:
        """Update the latent state and plan from it; in training, add noise."""
        latent = self.model.after(obs, is_first, state, mode)
        goes_on = (~is_first).float()[:, None, None] * float(self.config.warm_start)
        plan = self.plan(latent, shifted(state["plan"]) * goes_on, mode)
        action = plan[:, 0].unflatten(-1, self.spec.action.shape)
        if mode.samples and self.config.noise > 0:
            action = (action + self.config.noise * torch.randn_like(action)).clamp(-1, 1)
        return Decision(action, {**self.pack_state(latent, action), "plan": plan})

    def policy(self, latent: Any) -> Float[Tensor, "n ..."]:
        """Return the first action of a plan from each state [n, ...]."""
        like = latent[0].flatten(1)[:, :1].expand(-1, self.spec.action.size)
        plan = self.plan(latent, self.planner.zeros(like), Mode.EVAL)
        return plan[:, 0].unflatten(-1, self.spec.action.shape)

    @torch.no_grad()
    def plan(
        self, latent: Any, start: Float[Tensor, "n h a"], mode: Mode
    ) -> Float[Tensor, "n h a"]:
        """Run the planner from `start` for each state; return the best actions."""
        noise = self.fixed_noise if mode is Mode.FIXED else None
        score = lambda plans: self.score_plans(latent, plans, mode)  # noqa: E731
        return self.planner.search(score, start, noise=noise).mean

    def score_plans(
        self, latent: Any, plans: Float[Tensor, "n k h a"], mode: Mode = Mode.EVAL
    ) -> Float[Tensor, "n k"]:
        """Return the imagined return of k plans from each of n states.

        If the model has a value, that of the last state is added, discounted like a reward there.
        """
        n, k, h, _ = plans.shape
        start = map_latent(lambda x: x.repeat_interleave(k, 0), latent)
        todo = plans.flatten(0, 1).unflatten(-1, self.spec.action.shape).unbind(1)
        actions = iter([*todo, todo[-1]])  # the last action is chosen but not executed
        noise = self.model.noise(h, n * k, device=plans.device, mode=mode)
        imagined, _ = self.model.imagine(start, lambda _: next(actions), h, noise)
        seen = self.model.predict_reward(map_latent(lambda x: x[:, 1:], imagined))
        total = torch.zeros_like(seen["reward"][:, 0])
        counts = torch.ones_like(total)
        for reward, cont in zip(seen["reward"].unbind(1), seen["cont"].unbind(1), strict=True):
            total, counts = total + counts * reward, counts * cont
        value = self.model.predict_value(map_latent(lambda x: x[:, -1], imagined))
        return (total if value is None else total + counts * value).view(n, k)

    def expected_return(self, obs: Obs) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]] | None:
        """Return the model's value of observations that begin episodes, and the discount."""
        num = next(iter(obs.values())).shape[0]
        first = torch.ones(num, dtype=torch.bool, device=self.device)
        latent = self.model.after(obs, first, self.model.before(num, self.device), Mode.FIXED)
        value = self.model.predict_value(latent)
        return None if value is None else (value, self.model.discount_of(latent))

    # -- learning ---------------------------------------------------------------------------------

    @hook
    def update_world_model(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Take one gradient step on the world model."""
        self.model.watch(batch)
        losses = self.model.losses(batch)
        loss = torch.stack(list(losses.values())).sum()
        norm = self.opt.step(loss)
        named = {f"loss/{k}": v.detach() for k, v in losses.items()}
        return {"model_loss": loss.detach(), "model_grad_norm": norm.detach(), **named}
