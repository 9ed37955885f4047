"""TD-MPC2's latents for model-predictive control: its world model with a value, without a policy.

The value is that of the behaviour in the replay buffer, learned by TD on the actions that were
taken. These are the planner's own, so acting improves on the value and the value follows: policy
iteration with the planner as policy. A policy prior, which TD-MPC2 evaluates instead, would need an
optimizer and a loss of its own. No maximum enters the targets, so one value network suffices where
TD-MPC2 takes the smaller of two.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from dreamlab.components.tdmpc2_options import DiscountConfig, Scales, discounts_of
from dreamlab.components.world_models.latent_mlp import LatentModel, LatentModelConfig, TaskLatent
from dreamlab.core import world
from dreamlab.core.errors import ConfigError
from dreamlab.core.limits import Share, SomeShare
from dreamlab.core.types import Batch, Mode, Obs, Spec, Tree
from dreamlab.nn.normed import NormedMLP
from dreamlab.nn.target import TargetNetwork, frozen_copy


@dataclass(frozen=True)
class PlannedLatentConfig(LatentModelConfig):
    """TD-MPC2's 5M model and hyperparameters."""

    rho: SomeShare = 0.5
    """Discount of the loss per step of a window."""
    scales: Scales = field(default_factory=Scales)
    tau: SomeShare = 0.01
    """Step size of the target value towards the value at each update."""
    gamma: Share | None = None
    """Discount; None derives it from the episode length, by `discount`."""
    discount: DiscountConfig = field(default_factory=DiscountConfig)


class PlannedLatent(LatentModel):
    """Encoder, dynamics, reward, value and, if episodic, termination."""

    Config = PlannedLatentConfig
    where: ClassVar[str] = "workflow.model"
    config: PlannedLatentConfig
    masks: Float[Tensor, "tasks a"]

    def __init__(self, config: PlannedLatentConfig, spec: Spec) -> None:
        c = config
        super().__init__(c, spec, discounts_of(spec, c.gamma, c.discount, self.where))
        self.action = spec.action
        self.value = NormedMLP([self.state_dim, c.mlp_dim, c.mlp_dim], c.bins.num, start="zero")
        self.target = frozen_copy(self.value)
        self.target_network = TargetNetwork(self.target, self.value)
        dims = [t.action_dim for t in spec.tasks] or [spec.action.size]
        mask = torch.arange(spec.action.size) < torch.tensor(dims)[:, None]
        self.register_buffer("masks", mask.float(), persistent=False)

    def about(
        self,
        task: Int[Tensor, " ..."],
        z: Float[Tensor, "*b d"],
        action: Float[Tensor, "*b a"] | None = None,
    ) -> Float[Tensor, "*b k"]:
        """Concatenate as the base class does; action entries that a task does not have are 0."""
        if action is not None and self.tasks is not None:
            action = action * F.embedding(task, self.masks)
        return super().about(task, z, action)

    # -- acting -----------------------------------------------------------------------------------

    def before(self, num: int, device: Any) -> Tree:
        """Return the initial state of an agent: latent and previous action."""
        action = torch.zeros(num, *self.action.shape, device=device)
        return {**self.initial(num, device)._asdict(), "action": action}

    def after(self, obs: Obs, is_first: Bool[Tensor, " n"], state: Tree, mode: Mode) -> TaskLatent:
        """Encode the observation: nothing is remembered."""
        fixed, num, device = mode is Mode.FIXED, is_first.shape[0], is_first.device
        task = self.task_of(obs)
        z = self.encode(obs, task, None if fixed else self.draw_shift(num, device=device))
        return TaskLatent(z, task, torch.zeros_like(z[:, 0]), self.goes_on(z, task))

    def noise(self, *shape: int, device: Any, mode: Mode) -> Float[Tensor, " ..."]:
        """Return zeros: the dynamics are deterministic."""
        return torch.zeros(*shape, device=device)

    def predict_value(self, latent: TaskLatent) -> Float[Tensor, "*b"]:
        """Return the value of latents."""
        return self.decode(self.value(self.about(latent.task, latent.z)))

    # -- learning ---------------------------------------------------------------------------------

    def watch(self, batch: Batch) -> None:
        """Move the target value, and limit the task embeddings, after the last gradient step."""
        self.target_network.update(self.config.tau)
        self.limit_tasks()

    def losses(self, batch: Batch) -> dict[str, Float[Tensor, ""]]:
        """Return the losses of windows, until their first episode ends.

        step      0      1      2
        latent    z0 ──▶ z1 ──▶ z2     z0 encoded, the others predicted with the actions taken
        encoded          e1     e2     what z1 and z2 must match
        reward           r1     r2     predicted from z0 and a0, z1 and a1
        value     v0     v1            trained towards r1 + d1 V(e1) and r2 + d2 V(e2)
        """
        c, bins, task = self.config, self.config.bins, self.task_of(batch.obs)
        if task.shape[1] < 2:
            raise ConfigError("buffers.replay.length=1: TD-MPC2's latents need windows of 2 steps")
        shift = self.draw_shift(*task.shape, device=task.device)
        cut = lambda part: None if shift is None else shift[:, part]  # noqa: E731
        encoded, target = self.targets(batch, task, cut(slice(1, None)))
        zs = [self.encode({k: v[:, 0] for k, v in batch.obs.items()}, task[:, 0], cut(0))]
        action = batch.action[:, :-1].flatten(2)
        for taken in action.unbind(1):
            zs.append(self.next(zs[-1], taken, task[:, 0]))
        before, after = torch.stack(zs[:-1], 1), torch.stack(zs[1:], 1)
        task = task[:, :1].expand(action.shape[:2])  # the first episode's: the rest is masked
        same = torch.cumprod((~batch.is_first[:, 1:]).float(), 1)
        same = same / world.mean(same.sum()).clamp(min=1)
        weight = same * c.rho ** torch.arange(same.shape[1], device=same.device)
        reward = self.reward_logits(before, action, task)
        value = self.value(self.about(task, before))
        out = {
            "consistency": (weight * (after - encoded).square().mean(-1)).sum(),
            "reward": (weight * bins.loss(reward, batch.reward[:, 1:])).sum(),
            "value": (weight * bins.loss(value, target)).sum(),
        }
        if self.termination is not None:
            ends, over = self.ends(after, task), batch.is_terminal[:, 1:].float()
            surprise = F.binary_cross_entropy_with_logits(ends, over, reduction="none")
            out["termination"] = (same * surprise).sum()
        return {k: getattr(c.scales, k) * v for k, v in out.items()}

    @torch.no_grad()
    def targets(
        self, batch: Batch, task: Int[Tensor, "b t"], shift: Int[Tensor, "b t-1 2"] | None
    ) -> tuple[Float[Tensor, "b t-1 d"], Float[Tensor, "b t-1"]]:
        """Return the encoded latents of every step but the first, and the TD targets before it."""
        task = task[:, 1:]
        encoded = self.encode({k: v[:, 1:] for k, v in batch.obs.items()}, task, shift)
        value = self.decode(self.target(self.about(task, encoded)))
        going = (~batch.is_terminal[:, 1:]).float() * self.task_discount(task)
        return encoded, batch.reward[:, 1:] + going * value
