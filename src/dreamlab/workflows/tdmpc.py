"""TD-MPC, the first version (Hansen et al. 2022, arXiv:2203.04955), from vectors.

Plain MLPs, two scalar critics, a deterministic policy, a target copy of the whole model, and
prioritized windows; plans are longer than TD-MPC2's, and their horizon is annealed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dreamlab.components.latent_planning import (
    FixedNoise,
    PlanNoise,
    PlanSizes,
    draw_elite,
    draw_noise,
)
from dreamlab.components.world_models.latent_mlp import TaskLatent
from dreamlab.components.world_models.latent_plain import PlainModel, PlainModelConfig, plain_mlp
from dreamlab.components.world_models.workflow import WorldModelWorkflow
from dreamlab.components.world_models.world_model_planet import check_continuous
from dreamlab.core.config import Part, part
from dreamlab.core.limits import (
    Decay,
    Natural,
    NonNegative,
    Positive,
    PositiveInt,
    Share,
    SomeShare,
)
from dreamlab.core.optim import optimizer_field
from dreamlab.core.phase import Phase
from dreamlab.core.types import Batch, Decision, Metrics, Mode, Obs, Spec, Step, Tree
from dreamlab.core.workflow import Workflow, hook
from dreamlab.nn.counter import Count
from dreamlab.nn.mlp import linear
from dreamlab.nn.target import TargetNetwork, frozen_copy
from dreamlab.ops.planning import PLANNERS, Plan, Planner, shifted

MOST = 1e4
"""Upper bound of the losses and priorities of a window."""


@dataclass(frozen=True)
class PlainScales:
    """Weights of the losses."""

    consistency: NonNegative = 2.0
    reward: NonNegative = 0.5
    value: NonNegative = 0.1


@dataclass(frozen=True)
class TDMPCConfig(PlainModelConfig):
    """Defaults of the original."""

    gamma: Share = 0.99
    rho: SomeShare = 0.5
    """Discount of the loss per step of a window."""
    scales: PlainScales = field(default_factory=PlainScales)
    tau: SomeShare = 0.01
    target_every: PositiveInt = 2
    """Updates between target updates."""
    first_std: Positive = 0.5
    """Initial minimum deviation of plans and of the policy's noise; decays to `planner.min_std`."""
    noise_clip: Positive = 0.3
    """Clip value of the policy's noise."""
    anneal_updates: PositiveInt = 25_000
    """Updates during which the horizon grows from 1 to the planner's, and the deviation decays."""
    momentum: Decay = 0.1
    """Momentum of a plan's mean between iterations."""
    mpc: bool = True
    """Plan; otherwise the policy acts alone."""
    planner: Part = part("mppi", PLANNERS, Planner, horizon=5, samples=537)
    """`samples` are 512 plus those of the policy."""
    num_pi_plans: Natural = 25
    optimizer: Part = optimizer_field("adam", lr=1e-3, clip=10.0)
    policy_optimizer: Part = optimizer_field("adam", lr=1e-3, clip=10.0)

    def __post_init__(self) -> None:
        if self.num_pi_plans >= self.planner.config.samples:
            raise ValueError(
                f"num_pi_plans={self.num_pi_plans} must be below "
                f"planner.samples={self.planner.config.samples}"
            )


def critic(in_dim: int, hidden: int) -> nn.Sequential:
    """Build one of the two critics; its initial output is 0."""
    first, middle = linear(in_dim, hidden, 1.0), linear(hidden, hidden, 1.0)
    last = linear(hidden, 1, 1.0)
    nn.init.zeros_(last.weight)
    return nn.Sequential(first, nn.LayerNorm(hidden), nn.Tanh(), middle, nn.ELU(), last)


class Model(nn.Module):
    """The modules copied to the target: world model and critics."""

    def __init__(self, world: PlainModel, critics: nn.ModuleList) -> None:
        super().__init__()
        self.world, self.critics = world, critics

    def values(
        self, z: Float[Tensor, "*b d"], action: Float[Tensor, "*b a"]
    ) -> Float[Tensor, "2 ..."]:
        """Return the values of both critics."""
        x = torch.cat([z, action], -1)
        return torch.stack([q(x)[..., 0] for q in self.critics])


class TDMPC(WorldModelWorkflow, Workflow[TDMPCConfig]):
    """World model, critics, policy, planner."""

    Config = TDMPCConfig
    plans: ClassVar[bool] = True
    least_length: ClassVar[int] = 2
    within_episodes: ClassVar[bool] = True
    tiny: ClassVar[dict[str, Any]] = {
        "latent_dim": 8, "enc_dim": 16, "mlp_dim": 16, "num_pi_plans": 4, "anneal_updates": 10,
        "planner": {"iterations": 2, "samples": 12, "elites": 4},
    }  # fmt: skip

    def build(self, spec: Spec) -> None:
        c, dim = self.config, spec.action.size
        check_continuous(spec.action, "TD-MPC", "DreamerV3")
        world = PlainModel(c, spec, c.gamma)
        critics = nn.ModuleList(critic(world.step_dim, c.mlp_dim) for _ in range(2))
        self.online = Model(world, critics)
        self.target = frozen_copy(self.online)
        self.target_network = TargetNetwork(self.target, self.online)
        self.actor = plain_mlp(world.state_dim, c.mlp_dim, dim)
        self.planner: Planner[Any, Any] = c.planner.build()
        self.sizes = PlanSizes(self.planner.config, c.num_pi_plans, dim, 2)
        self.fixed_noise = FixedNoise(self.sizes)
        self.updates = Count()
        self.opt = self.optimizer("model", self.online.parameters(), c.optimizer)
        self.policy_opt = self.optimizer("policy", self.actor.parameters(), c.policy_optimizer)

    @property
    def model(self) -> PlainModel:
        """Return the world model."""
        return self.online.world

    @property
    def grown(self) -> float:
        """Return the progress of the annealing."""
        return min(1.0, self.updates.value / self.config.anneal_updates)

    @property
    def least_std(self) -> float:
        """Return the planner's current minimum deviation."""
        first, last = self.config.first_std, self.last_std
        return max(last, first + (last - first) * self.grown)

    @property
    def last_std(self) -> float:
        """Return the planner's final minimum deviation: that of the policy's noise."""
        return getattr(self.sizes.planner, "min_std", 0.05)

    @property
    def horizon(self) -> int:
        """Return the current planning horizon."""
        return max(1, int(1 + (self.sizes.planner.horizon - 1) * self.grown))

    def blind_to_ends(self) -> str:
        return "use TD-MPC2 with workflow.episodic=true"

    # -- acting -----------------------------------------------------------------------------------

    def initial_state(self, num_envs: int) -> Tree:
        """Return an empty plan and the initial latent."""
        shape = (num_envs, self.sizes.planner.horizon, self.sizes.action)
        mean = torch.zeros(shape, device=self.device)
        return {"mean": mean, **self.model.initial(num_envs, self.device)._asdict()}

    def decide(self, obs: Obs, is_first: Bool[Tensor, " n"], state: Tree, mode: Mode) -> Decision:
        """Plan from the observation, or act with the policy; in training, add noise."""
        num, fixed = is_first.shape[0], mode is Mode.FIXED
        noise = self.fixed_noise() if fixed else draw_noise(self.sizes, num, is_first.device)
        task = self.model.task_of(obs)
        z, mean = self.model.encode(obs, task), state["mean"]
        if self.config.mpc and mode is not Mode.POLICY:
            start = shifted(mean).masked_fill(is_first[:, None, None], 0.0)
            plan = self.plan(z, start[:, : self.horizon], noise)
            action, std = draw_elite(plan, noise.choice), plan.std[:, 0]
            mean = torch.cat([plan.mean, start[:, self.horizon :]], 1)
            action = (action + std * noise.action).clamp(-1, 1) if mode.samples else action
        else:
            action = self.policy_action(z, noise.action if mode.samples else None)
        after = {"mean": mean}
        if not fixed:  # dreams of a running agent start at this latent
            seen = TaskLatent(z, task, torch.zeros_like(z[:, 0]), self.model.goes_on(z, task))
            after |= seen._asdict()
        return Decision(action.unflatten(-1, self.spec.action.shape), after)

    def policy_action(
        self, z: Float[Tensor, "*b d"], noise: Float[Tensor, "... a"] | None
    ) -> Float[Tensor, "*b a"]:
        """Return the policy's actions; standard normal noise is scaled and clipped.

        Bounds do not stop the gradient, as in the original: it passes straight through them.
        """
        mean = torch.tanh(self.actor(z))
        if noise is None:
            return mean
        limit = self.config.noise_clip
        action = mean + (self.last_std * noise).clamp(-limit, limit)
        return action + (action.clamp(-1, 1) - action).detach()

    def fill(self, step: Step, state: Tree) -> Decision:
        """Return a decision without a plan, for a random action."""
        action = torch.zeros(len(step.is_first), *self.spec.action.shape, device=self.device)
        return Decision(action, state)

    def with_action(self, decision: Decision, action: Float[Tensor, "n ..."]) -> Decision:
        """Return the decision with another action than the planner's."""
        return replace(decision, action=action)

    def policy(self, latent: TaskLatent) -> Float[Tensor, "n ..."]:
        """Return the policy's actions for states [n, ...]."""
        return self.policy_action(latent.z, None).unflatten(-1, self.spec.action.shape)

    def expected_return(self, obs: Obs) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """Return the critics' value of the policy's action, and the discount."""
        z = self.model.encode(obs, self.model.task_of(obs))
        value = self.online.values(z, self.policy_action(z, None)).amin(0)
        return value, torch.full_like(value, self.config.gamma)

    @torch.no_grad()
    def plan(self, z: Float[Tensor, "n d"], mean: Float[Tensor, "n h a"], noise: PlanNoise) -> Plan:
        """Run the planner from `mean` for each state."""
        horizon, keep = mean.shape[1], self.config.momentum
        proposed = self.propose(z, noise.proposed[:horizon])
        plan = self.planner.start(mean, torch.full_like(mean, self.sizes.planner.std))
        for i in range(self.sizes.planner.iterations):
            draws = noise.at(i)
            drawn = self.planner.ask(plan, draws.candidates[:, :, :horizon])
            candidates = torch.cat([proposed, drawn], 1)
            score = self.score_plans(z, candidates, draws.last)
            score = score if draws.ties is None else score + draws.ties
            new = self.planner.tell(plan, candidates, score)
            middle = keep * plan.mean + (1 - keep) * new.mean
            plan = replace(new, mean=middle, std=new.std.clamp(min=self.least_std))
        return plan

    def propose(
        self, z: Float[Tensor, "n d"], noise: Float[Tensor, "h m p a"]
    ) -> Float[Tensor, "n p h a"]:
        """Roll out the policy in the model and return its action sequences."""
        state = z[:, None].expand(-1, noise.shape[2], -1)
        actions: list[Tensor] = []
        for chance in noise:
            actions.append(self.policy_action(state, chance))
            state = self.model.next(state, actions[-1], self._one)
        return torch.stack(actions, 2)

    def score_plans(
        self,
        z: Float[Tensor, "n d"],
        plans: Float[Tensor, "n s h a"],
        last: Float[Tensor, "m s a"],
    ) -> Float[Tensor, "n s"]:
        """Return the predicted rewards of plans plus the smaller value of their last state."""
        state, total, discount = z[:, None].expand(-1, plans.shape[1], -1), torch.zeros(()), 1.0
        total = torch.zeros_like(plans[:, :, 0, 0])
        for action in plans.unbind(2):
            reward = self.model.decode(self.model.reward_logits(state, action, self._one))
            total = total + discount * reward
            state = self.model.next(state, action, self._one)
            discount *= self.config.gamma
        value = self.online.values(state, self.policy_action(state, last)).amin(0)
        return (total + discount * value).nan_to_num(0.0)

    @property
    def _one(self) -> Int[Tensor, ""]:
        """Return the index of the only task."""
        return torch.zeros((), dtype=torch.int64, device=self.device)

    # -- learning ---------------------------------------------------------------------------------

    @hook
    def update_agent(
        self, batch: Batch, *, phase: Phase
    ) -> tuple[Metrics, dict[str, Float[Tensor, " b"]]]:
        """Take a gradient step each on the model and on the policy; return new priorities."""
        loss, zs, priority, metrics = self.model_loss(batch)
        norm = self.opt.step(loss)
        policy_loss = self.policy_loss(zs)
        policy_norm = self.policy_opt.step(policy_loss)
        self.updates.value += 1
        if self.updates.value % self.config.target_every == 0:
            self.target_network.update(self.config.tau)
        metrics |= {"loss": loss, "loss/policy": policy_loss}
        metrics |= {"model_grad_norm": norm, "policy_grad_norm": policy_norm}
        return {k: v.detach() for k, v in metrics.items()}, {"priority": priority}

    def model_loss(
        self, batch: Batch
    ) -> tuple[Float[Tensor, ""], list[Float[Tensor, "b d"]], Float[Tensor, " b"], Metrics]:
        """Return the loss of the model and the critics, the latents, and priorities."""
        c, model = self.config, self.model
        horizon = batch.reward.shape[1] - 1
        obs = [{k: v[:, t] for k, v in batch.obs.items()} for t in range(horizon + 1)]
        zs = [model.encode(obs[0], model.task_of(obs[0]))]
        parts = {
            k: torch.zeros_like(batch.reward[:, 0]) for k in ("consistency", "reward", "value")
        }
        priority = torch.zeros_like(batch.reward[:, 0])
        for t in range(horizon):
            z, action, weight = zs[-1], batch.action[:, t].flatten(1), c.rho**t
            q = self.online.values(z, action)
            reward = model.decode(model.reward_logits(z, action, self._one))
            zs.append(model.next(z, action, self._one))
            goal, target = self.targets(
                obs[t + 1], batch.reward[:, t + 1], batch.is_terminal[:, t + 1]
            )
            parts["consistency"] = parts["consistency"] + weight * (zs[-1] - goal).square().mean(1)
            parts["reward"] = parts["reward"] + weight * (reward - batch.reward[:, t + 1]).square()
            parts["value"] = parts["value"] + weight * (q - target).square().sum(0)
            priority = priority + weight * (q - target).abs().sum(0).detach()
        total = torch.stack([getattr(c.scales, k) * v.clamp(max=MOST) for k, v in parts.items()])
        share = batch.extras.get("weight", torch.ones_like(priority))
        metrics = {f"loss/{k}": v.mean() for k, v in parts.items()}
        # the original scales this gradient by one over the window length
        loss = (total.sum(0) * share).mean() / horizon
        return loss, zs, priority.clamp(max=MOST), metrics

    @torch.no_grad()
    def targets(
        self, obs: Obs, reward: Float[Tensor, " b"], terminal: Bool[Tensor, " b"]
    ) -> tuple[Float[Tensor, "b d"], Float[Tensor, " b"]]:
        """Return the target latents of the dynamics, and the TD targets."""
        task = self.model.task_of(obs)
        z = self.model.encode(obs, task)
        noise = torch.randn(len(z), self.sizes.action, device=z.device)
        value = self.target.values(z, self.policy_action(z, noise)).amin(0)
        goal = self.target.world.encode(obs, task)
        return goal, reward + self.config.gamma * (~terminal).float() * value

    def policy_loss(self, zs: list[Float[Tensor, "b d"]]) -> Float[Tensor, ""]:
        """Return the negative smaller value of the policy's actions."""
        z = torch.stack(zs).detach()
        noise = torch.randn(*z.shape[:2], self.sizes.action, device=z.device)
        q = self.online.values(z, self.policy_action(z, noise)).amin(0)
        weight = self.config.rho ** torch.arange(z.shape[0], device=z.device)
        return -(weight * q.mean(1)).sum()
