"""TD-MPC2 (Hansen et al. 2024, arXiv:2310.16828): plan in the latents of a model without a decoder.

One update: windows of H + 1 steps of one episode are encoded; from the first latent, the dynamics
roll out open loop and must match the encoder's latents. Rewards and values are learned on the
predicted latents, a policy prior on the values. Acting is an MPPI search over H actions that
includes policy rollouts and bootstraps from the critics at the last state.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from dreamlab.components.critics.two_hot import TwoHotCritics, draw_pairs
from dreamlab.components.latent_planning import (
    Draws,
    FixedNoise,
    PlanNoise,
    PlanSizes,
    draw_elite,
    draw_noise,
)
from dreamlab.components.plan_nets import PlanNets
from dreamlab.components.policies.latent_prior import LatentPrior
from dreamlab.components.tdmpc2_options import MANY_ACTIONS, TDMPC2Config, discounts_of
from dreamlab.components.world_models.latent_mlp import LatentModel, TaskLatent
from dreamlab.components.world_models.workflow import WorldModelWorkflow
from dreamlab.components.world_models.world_model_planet import check_continuous
from dreamlab.core.phase import Phase
from dreamlab.core.types import Batch, Decision, Metrics, Mode, Obs, Spec, Step, Tree
from dreamlab.core.workflow import Workflow, capturable, compilable, hook
from dreamlab.nn import latent_plans
from dreamlab.nn.latent_plans import Packed
from dreamlab.nn.target import TargetNetwork, frozen_copy
from dreamlab.ops.planning import Plan, Planner, shifted
from dreamlab.ops.scaling import update_spread


@dataclass(frozen=True)
class Window:
    """Training windows of H + 1 steps, time first."""

    obs: Obs
    """[h + 1, b, ...]"""
    action: Float[Tensor, "h b a"]
    reward: Float[Tensor, "h b"]
    terminal: Float[Tensor, "h b"]
    task: Int[Tensor, " b"]
    extras: dict[str, Float[Tensor, "h b ..."]]
    """[h, b, ...], of the steps at which the actions were taken."""


class TDMPC2(WorldModelWorkflow, Workflow[TDMPC2Config]):
    """World model, critics, policy prior, planner."""

    Config = TDMPC2Config
    plans: ClassVar[bool] = True
    least_length: ClassVar[int] = 2
    within_episodes: ClassVar[bool] = True
    tiny: ClassVar[dict[str, Any]] = {
        "size": None, "enc_dim": 16, "mlp_dim": 16, "latent_dim": 16, "task_dim": 4, "num_q": 3,
        "bins": {"num": 21}, "num_pi_plans": 4,
        "planner": {"iterations": 2, "samples": 12, "elites": 4},
    }  # fmt: skip
    value_scale: Float[Tensor, ""]
    quantiles: Float[Tensor, " 2"]
    masks: Float[Tensor, "tasks a"]

    def build(self, spec: Spec) -> None:
        c = self.config
        check_continuous(spec.action, "TD-MPC2", "DreamerV3")
        discounts = discounts_of(spec, c.gamma, c.discount, LatentModel.where)
        self.model = LatentModel(c, spec, discounts)
        self.critics = TwoHotCritics(c.num_q, self.model.step_dim, c.mlp_dim, c.bins, c.dropout)
        self.target = frozen_copy(self.critics)
        self.target_network = TargetNetwork(self.target, self.critics)
        self.prior = LatentPrior(self.model.state_dim, c.mlp_dim, spec.action.size, c.log_std)
        self.register_buffer("value_scale", torch.ones(()))
        self.register_buffer("quantiles", torch.tensor([0.05, 0.95]), persistent=False)
        dims = [t.action_dim for t in spec.tasks] or [spec.action.size]
        mask = torch.arange(spec.action.size) < torch.tensor(dims)[:, None]
        self.register_buffer("masks", mask.float(), persistent=False)
        self._build_planner(spec.action.size)
        learnt = [*self.model.parameters(), *self.critics.parameters()]
        self.opt = self.optimizer("model", learnt, c.optimizer)
        self.opt.limit = self.model.task_limit()
        self.policy_opt = self.optimizer("policy", self.prior.parameters(), c.policy_optimizer)

    def _build_planner(self, dim: int) -> None:
        c, planner = self.config, self.config.planner
        if dim >= MANY_ACTIONS and c.more_iterations:
            planner = planner.but(iterations=planner.config.iterations + c.more_iterations)
        self.planner: Planner[Any, Any] = planner.build()
        self.sizes = PlanSizes(self.planner.config, c.num_pi_plans, dim, c.num_q)
        self.fixed_noise = FixedNoise(self.sizes)
        self.packable = self.parts.packable(planner.config.samples)

    @property
    def parts(self) -> PlanNets:
        """Return what plans are rolled out with and scored by."""
        return PlanNets(self.model, self.prior, self.critics)

    def blind_to_ends(self) -> str:
        return "" if self.model.termination is not None else "set workflow.episodic=true"

    # -- acting -----------------------------------------------------------------------------------

    def initial_state(self, num_envs: int) -> Tree:
        """Return an empty plan and the initial latent."""
        shape = (num_envs, self.sizes.planner.horizon, self.sizes.action)
        mean = torch.zeros(shape, device=self.device)
        return {"mean": mean, **self.model.initial(num_envs, self.device)._asdict()}

    @capturable
    def decide(self, obs: Obs, is_first: Bool[Tensor, " n"], state: Tree, mode: Mode) -> Decision:
        """Plan from the observation, or act with the policy prior; in training, add noise."""
        num, fixed = is_first.shape[0], mode is Mode.FIXED
        noise = self.fixed_noise() if fixed else draw_noise(self.sizes, num, is_first.device)
        task = self.model.task_of(obs)
        shift = None if fixed else self.model.draw_shift(num, device=is_first.device)
        seen, start = self.see(obs, task, shift, state["mean"], is_first)
        z = seen.z
        if self.config.mpc and mode is not Mode.POLICY:
            plan = self.plan(z, task, start, noise)
            centre, action = self.choose(plan, noise.choice, noise.action)
            std, mean, action = plan.std[:, 0], plan.mean, action if mode.samples else centre
        else:
            mask = self.mask_of(task)
            middle, log_std = self.prior(self.model.about(task, z), mask)
            centre, std, mean = torch.tanh(middle), log_std.exp(), state["mean"]
            std = std if mask is None else std * mask
            action = torch.tanh(middle + std * noise.action) if mode.samples else centre
        after = {"mean": mean}
        if not fixed:  # dreams of a running agent start at this latent
            after |= seen._asdict()
        action = action.unflatten(-1, self.spec.action.shape)
        return Decision(action, after, self.extras(centre, std))

    @compilable
    def see(
        self,
        obs: Obs,
        task: Int[Tensor, " n"],
        shift: Int[Tensor, "n 2"] | None,
        mean: Float[Tensor, "n h a"],
        is_first: Bool[Tensor, " n"],
    ) -> tuple[TaskLatent, Float[Tensor, "n h a"]]:
        """Return latents of observations, and where the searches start: at the rest of the last."""
        z = self.model.encode(obs, task, shift)
        seen = TaskLatent(z, task, torch.zeros_like(z[:, 0]), self.model.goes_on(z, task))
        return seen, shifted(mean).masked_fill(is_first[:, None, None], 0.0)

    @compilable
    def choose(
        self, plan: Plan, gumbel: Float[Tensor, "m e"], noise: Float[Tensor, "m a"]
    ) -> tuple[Float[Tensor, "n a"], Float[Tensor, "n a"]]:
        """Return the first action of an elite, and the same with noise."""
        centre = draw_elite(plan, gumbel)
        return centre, (centre + plan.std[:, 0] * noise).clamp(-1, 1)

    def extras(
        self, centre: Float[Tensor, "n a"], std: Float[Tensor, "n a"]
    ) -> dict[str, Float[Tensor, "n a"]]:
        """Return the extra data to store with a step: none here."""
        return {}

    def fill(self, step: Step, state: Tree) -> Decision:
        """Return a decision without a plan, for a random action."""
        device, num = self.device, len(step.is_first)
        action = torch.zeros(num, self.spec.action.size, device=device)
        extras = self.extras(action, torch.zeros_like(action))
        return Decision(action.unflatten(-1, self.spec.action.shape), state, extras)

    def with_action(self, decision: Decision, action: Float[Tensor, "n ..."]) -> Decision:
        """Return the decision with another action than the planner's."""
        return replace(decision, action=action)

    def mask_of(self, task: Int[Tensor, "*b"]) -> Float[Tensor, "*b a"] | None:
        """Return the mask of valid action entries, if it differs between tasks."""
        return F.embedding(task, self.masks) if self.spec.tasks else None

    def policy(self, latent: TaskLatent) -> Float[Tensor, "n ..."]:
        """Sample actions from the policy prior for states [n, ...]."""
        x, mask = self.model.about(latent.task, latent.z), self.mask_of(latent.task)
        noise = torch.randn(*x.shape[:-1], self.sizes.action, device=x.device)
        return self.prior.act(x, noise, mask).unflatten(-1, self.spec.action.shape)

    def expected_return(self, obs: Obs) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """Return the critics' value of the policy's mode action, and the discount."""
        task = self.model.task_of(obs)
        z = self.model.encode(obs, task)
        mean, _ = self.prior(self.model.about(task, z), self.mask_of(task))
        value = self.critics.values(self.model.about(task, z, torch.tanh(mean))).mean(0)
        return value, self.model.task_discount(task)

    # -- planning ---------------------------------------------------------------------------------

    @torch.no_grad()
    def plan(
        self,
        z: Float[Tensor, "n d"],
        task: Int[Tensor, " n"],
        mean: Float[Tensor, "n h a"],
        noise: PlanNoise,
    ) -> Plan:
        """Run the planner from `mean` for each state."""
        nets = self.pack(z, task) if self.packable and latent_plans.available(z) else None
        proposed = None
        if self.config.num_pi_plans:
            proposed = self.propose(z, task, noise.proposed, nets)
        plan = self.begin(mean)
        for i in range(self.sizes.planner.iterations):
            plan = self.improve(z, task, plan, proposed, noise.at(i), nets)
        return plan

    @compilable
    def begin(self, mean: Float[Tensor, "n h a"]) -> Plan:
        """Return the state of a search before any scores."""
        plan = self.planner.start(mean, torch.full_like(mean, self.sizes.planner.std))
        return replace(plan, elites=plan.elites.contiguous())  # one layout: `improve` has one form

    @compilable
    def pack(self, z: Float[Tensor, "n d"], task: Int[Tensor, " n"]) -> Packed:
        """Return the networks as kernels take them, once for all iterations."""
        return self.parts.pack(z, task, self.mask_of(task), self.sizes.planner.horizon)

    @compilable
    def propose(
        self,
        z: Float[Tensor, "n d"],
        task: Int[Tensor, " n"],
        noise: Float[Tensor, "h m p a"],
        nets: Packed | None = None,
    ) -> Float[Tensor, "n p h a"]:
        """Roll out the policy in the model and return its action sequences."""
        if nets is not None:
            return latent_plans.proposals(nets, noise)
        return self.parts.propose(z, task, self.mask_of(task), noise)

    @compilable
    def improve(
        self,
        z: Float[Tensor, "n d"],
        task: Int[Tensor, " n"],
        plan: Plan,
        proposed: Float[Tensor, "n p h a"] | None,
        draws: Draws,
        nets: Packed | None = None,
    ) -> Plan:
        """Run one search iteration: sample candidates, score them, refit to the elites."""
        candidates = self.planner.ask(plan, draws.candidates)
        if proposed is not None:
            candidates = torch.cat([proposed, candidates], 1)
        mask = self.mask_of(task)
        if mask is not None:
            candidates = candidates * mask[:, None, None]
        score = self.score_plans(z, task, candidates, draws.last, draws.pair, nets)
        score = score if draws.ties is None else score + draws.ties
        plan = self.planner.tell(plan, candidates, score)
        return plan if mask is None else replace(plan, std=plan.std * mask[:, None])

    def score_plans(
        self,
        z: Float[Tensor, "n d"],
        task: Int[Tensor, " n"],
        plans: Float[Tensor, "n s h a"],
        last: Float[Tensor, "m s a"],
        pair: Int[Tensor, " 2"],
        nets: Packed | None = None,
    ) -> Float[Tensor, "n s"]:
        """Return the predicted rewards of plans plus the critics' value of their last state."""
        if nets is not None:
            gains = latent_plans.gains(nets, plans, last, pair)
        else:
            gains = self.parts.gains(z, task, self.mask_of(task), plans, last, pair)
        powers = torch.arange(gains.shape[0], device=gains.device).clamp(max=plans.shape[2])
        gamma = F.embedding(task, self.model.discounts[:, None])
        return (gains * gamma ** powers[:, None, None]).sum(0).nan_to_num(0.0)

    # -- learning ---------------------------------------------------------------------------------

    @hook
    def update_agent(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Take a gradient step each on the model with its critics, and on the policy."""
        return self.update(replace(batch, index=None))

    @capturable
    def update(self, batch: Batch) -> Metrics:
        """Implement `update_agent`, with metrics as tensors."""
        window = self.window(batch)
        h, b, a = window.action.shape
        noise = torch.randn(2 * h + 1, b, a, device=self.device)
        target_pair, policy_pair = draw_pairs(2, self.config.num_q, self.device).unbind()
        shift = self.model.draw_shift(h + 1, b, device=self.device)
        after = None if shift is None else shift[1:]
        next_z, target = self.td_target(window, noise[:h], target_pair, after)
        loss, zs, metrics = self.model_loss(
            window, next_z, target, None if shift is None else shift[0]
        )
        norm = self.opt.step(loss)
        policy_loss, more = self.policy_loss(zs.detach(), window, noise[h:], policy_pair)
        policy_norm = self.policy_opt.step(policy_loss)
        self.target_network.update(self.config.tau)
        norms = {"model_grad_norm": norm, "policy_grad_norm": policy_norm}
        found = {**metrics, **more, **norms, "loss": loss, "loss/policy": policy_loss}
        return {k: v.detach() for k, v in found.items()}

    def window(self, batch: Batch) -> Window:
        """Transpose a batch to time first; align rewards and ends with their actions.

        Entries of actions that a task does not have are 0, as in plans: random actions fill all.
        """
        first = lambda x: x.transpose(0, 1)  # noqa: E731
        obs = {k: first(v) for k, v in batch.obs.items()}
        task = self.model.task_of({k: v[0] for k, v in obs.items()})
        action, mask = first(batch.action[:, :-1].flatten(2)), self.mask_of(task)
        return Window(
            obs,
            action if mask is None else action * mask,
            first(batch.reward[:, 1:]),
            first(batch.is_terminal[:, 1:]).float(),
            task,
            {
                k: first(v[:, :-1])
                for k, v in batch.extras.items()
                if v.ndim > 1 and v.is_floating_point()
            },
        )

    @compilable
    @torch.no_grad()
    def td_target(
        self,
        w: Window,
        noise: Float[Tensor, "h b a"],
        pair: Int[Tensor, " 2"],
        shift: Int[Tensor, "h b 2"] | None,
    ) -> tuple[Float[Tensor, "h b d"], Float[Tensor, "h b"]]:
        """Return the next latents and the TD targets (eq. 4)."""
        task = w.task.expand(noise.shape[:2])
        next_z = self.model.encode({k: v[1:] for k, v in w.obs.items()}, task, shift)
        action = self.prior.act(self.model.about(task, next_z), noise, self.mask_of(task))
        value = self.target.values(self.model.about(task, next_z, action), pair).amin(0)
        discount = self.model.task_discount(task)
        return next_z, w.reward + discount * (1 - w.terminal) * value

    @compilable
    def model_loss(
        self,
        w: Window,
        next_z: Float[Tensor, "h b d"],
        target: Float[Tensor, "h b"],
        shift: Int[Tensor, "b 2"] | None,
    ) -> tuple[Float[Tensor, ""], Float[Tensor, "h+1 b d"], Metrics]:
        """Return the loss of the model and the critics (eq. 3), and the predicted latents."""
        c, model, task = self.config, self.model, w.task
        zs = [model.encode({k: v[0] for k, v in w.obs.items()}, task, shift)]
        for action in w.action:
            zs.append(model.next(zs[-1], action, task))
        before, after = torch.stack(zs[:-1]), torch.stack(zs[1:])
        weight = self.weights(w.reward)
        reward = c.bins.loss(model.reward_logits(before, w.action, task), w.reward)
        logits = self.critics(model.about(task, before, w.action), drop=True)
        value = c.bins.loss(logits, target)
        losses = {
            "consistency": (weight * (after - next_z).square().mean((1, 2))).mean(),
            "reward": (weight * reward.mean(1)).mean(),
            "value": (weight * value.mean((0, 2))).mean(),
        }
        if model.termination is not None:
            ends = model.ends(after, task)
            losses["termination"] = F.binary_cross_entropy_with_logits(ends, w.terminal)
        total = torch.stack([getattr(c.scales, k) * v for k, v in losses.items()]).sum()
        metrics = {f"loss/{k}": v for k, v in losses.items()}
        metrics |= {"target": target.mean(), "q": self.critics.decode(logits.detach()).mean()}
        return total, torch.stack(zs), metrics

    def weights(self, like: Float[Tensor, "h b"]) -> Float[Tensor, " h"]:
        """Return the weight of each step of a window."""
        return self.config.rho ** torch.arange(like.shape[0], device=like.device)

    @compilable
    def policy_loss(
        self,
        zs: Float[Tensor, "t b d"],
        w: Window,
        noise: Float[Tensor, "t b a"],
        pair: Int[Tensor, " 2"],
    ) -> tuple[Float[Tensor, ""], Metrics]:
        """Return the policy loss (eq. 5)."""
        _, gain, metrics = self.policy_gain(zs, w.task, noise, pair)
        return -(self.weights(gain) * gain.mean(1)).mean(), metrics

    def policy_gain(
        self,
        zs: Float[Tensor, "t b d"],
        task: Int[Tensor, " b"],
        noise: Float[Tensor, "t b a"],
        pair: Int[Tensor, " 2"],
    ) -> tuple[Float[Tensor, "t b a"], Float[Tensor, "t b"], Metrics]:
        """Return policy actions, and their normalized values plus entropy."""
        c = self.config
        prior = self.prior.sample(self.model.about(task, zs), noise, self.mask_of(task))
        q = self.critics.values(self.model.about(task, zs, prior.action), pair, drop=True).mean(0)
        scale = update_spread(q[0].detach(), self.quantiles, self.value_scale, c.scale_rate)
        metrics = {"entropy": prior.entropy.mean(), "value_scale": scale, "policy_q": q.mean()}
        return prior.action, q / scale + c.entropy * prior.scaled_entropy, metrics
