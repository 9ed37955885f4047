"""TD-MPC2's world model: an encoder, MLPs for dynamics and reward, and no decoder.

A latent is an output of the encoder if observed, or of the dynamics if imagined. Rewards depend on
a step, (z, action), so a latent of the protocol carries the reward that led to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from dreamlab.components.world_models.latent_encoder import (
    PAD,
    LatentEncoder,
    LatentEncoderConfig,
)
from dreamlab.components.world_models.protocol import Policy, roll_out
from dreamlab.core import sharding
from dreamlab.core.limits import Width
from dreamlab.core.types import ArraySpec, Obs, Spec
from dreamlab.nn.normed import NormedMLP, SimNorm
from dreamlab.ops.even_bins import EvenBins

TASK = "task"
"""Name of the observation with the task index."""


@dataclass(frozen=True)
class LatentModelConfig(LatentEncoderConfig):
    """Widths of the original's 5M model."""

    mlp_dim: Width = 512
    """Hidden width of all MLPs after the encoder."""
    task_dim: Width = 96
    """Size of a task embedding, if there are several tasks."""
    bins: EvenBins = field(default_factory=EvenBins)
    """Bins of rewards and values."""
    episodic: bool = False
    """Predict termination; required for tasks that terminate."""


class TaskLatent(NamedTuple):
    """A latent, its task, and the reward and continuation on arrival."""

    z: Float[Tensor, "*b d"]
    task: Int[Tensor, "*b"]
    reward: Float[Tensor, "*b"]
    cont: Float[Tensor, "*b"]
    """Discount times the probability that the episode continues."""


@dataclass(frozen=True)
class Followed:
    """Latents of sequences."""

    latent: TaskLatent


@torch.no_grad()
def limit_rows(weight: Float[Tensor, "n d"]) -> None:
    """Limit the norm of each row to 1."""
    (weight,) = sharding.sharded([weight])
    norm = weight.norm(dim=1, keepdim=True)
    weight.mul_((1 / (norm + 1e-7)).clamp(max=1.0))


class LatentModel(nn.Module):
    """Encoder, dynamics, reward and, if episodic, termination."""

    Latent = TaskLatent
    where: ClassVar[str] = "workflow"
    """Path of the options, for messages."""
    encoder: Any
    dynamics: nn.Module
    reward: nn.Module
    termination: nn.Module | None
    tasks: nn.Embedding | None
    discounts: Float[Tensor, " tasks"]
    bins: Float[Tensor, " n"]

    def __init__(self, config: LatentModelConfig, spec: Spec, discounts: list[float]) -> None:
        super().__init__()
        c = self.config = config
        self.tasks = nn.Embedding(len(spec.tasks), c.task_dim) if spec.tasks else None
        self.task_dim = c.task_dim if spec.tasks else 0
        obs = {k: s for k, s in spec.obs.items() if not spec.tasks or k != TASK}
        self.encoder = LatentEncoder(c, obs, self.task_dim, self.where)
        state, step = c.latent_dim + self.task_dim, c.latent_dim + self.task_dim + spec.action.size
        hidden = [c.mlp_dim, c.mlp_dim]
        self.dynamics = NormedMLP([step, *hidden], c.latent_dim, SimNorm(c.simnorm_dim))
        self.reward = NormedMLP([step, *hidden], c.bins.num, start="zero")
        self.termination = NormedMLP([state, *hidden], 1) if c.episodic else None
        self.state_dim, self.step_dim, self.latent_dim = state, step, c.latent_dim
        if self.tasks is not None:
            nn.init.uniform_(self.tasks.weight, -0.02, 0.02)
        self.register_buffer("bins", c.bins.tensor(), persistent=False)
        self.register_buffer("discounts", torch.tensor(discounts), persistent=False)

    # -- one step ---------------------------------------------------------------------------------

    def task_of(self, obs: Obs) -> Int[Tensor, "*b"]:
        """Return the task index of observations: 0 if there is only one task."""
        if self.tasks is not None:
            return obs[TASK].long()
        name, spec = next(iter(self.encoder.obs.items()))
        lead = obs[name].shape[: obs[name].ndim - len(spec.shape)]
        return torch.zeros(lead, dtype=torch.int64, device=obs[name].device)

    def about(
        self,
        task: Int[Tensor, " ..."],
        z: Float[Tensor, "*b d"],
        action: Float[Tensor, "*b a"] | None = None,
    ) -> Float[Tensor, "*b k"]:
        """Concatenate a latent, its task embedding, and an action if given."""
        parts = [z]
        if self.tasks is not None:
            known = self.tasks(task)
            parts.append(known.expand(*z.shape[:-1], known.shape[-1]))
        parts += [] if action is None else [action]
        return torch.cat(parts, -1) if len(parts) > 1 else z

    def encode(
        self, obs: Obs, task: Int[Tensor, "*b"], shift: Int[Tensor, "*b 2"] | None = None
    ) -> Float[Tensor, "*b d"]:
        """Return the latents of observations, with images shifted by `shift` if given."""
        return self.encoder(obs, None if self.tasks is None else self.tasks(task), shift)

    def draw_shift(self, *shape: int, device: Any) -> Int[Tensor, "... 2"] | None:
        """Sample random image shifts; None if there are no images."""
        if self.encoder.image is None:
            return None
        return torch.randint(0, 2 * PAD + 1, (*shape, 2), device=device)

    def next(
        self, z: Float[Tensor, "*b d"], action: Float[Tensor, "*b a"], task: Int[Tensor, " ..."]
    ) -> Float[Tensor, "*b d"]:
        """Predict the next latents."""
        return self.dynamics(self.about(task, z, action))

    def reward_logits(
        self, z: Float[Tensor, "*b d"], action: Float[Tensor, "*b a"], task: Int[Tensor, " ..."]
    ) -> Float[Tensor, "*b n"]:
        """Predict the reward distributions of steps."""
        return self.reward(self.about(task, z, action))

    def decode(self, logits: Float[Tensor, "*b n"]) -> Float[Tensor, "*b"]:
        """Return the mean values of distributions."""
        return self.config.bins.decode(logits, self.bins)

    def ends(self, z: Float[Tensor, "*b d"], task: Int[Tensor, " ..."]) -> Float[Tensor, "*b"]:
        """Return the logits of termination."""
        assert self.termination is not None
        return self.termination(self.about(task, z)).float()[..., 0]

    def limit_tasks(self) -> None:
        """Limit the norm of task embeddings to 1."""
        if self.tasks is not None:
            limit_rows(self.tasks.weight)

    def task_limit(self) -> Callable[[], None] | None:
        """Return `limit_tasks` for the optimizer, which may compute with copies of its weights.

        The original limits them in every forward pass, which a captured graph must not.
        """
        return None if self.tasks is None else partial(limit_rows, self.tasks.weight)

    # -- the protocol -----------------------------------------------------------------------------

    @property
    def decoded(self) -> dict[str, ArraySpec]:
        """Return nothing: there is no decoder."""
        return {}

    def initial(self, num: int, device: Any) -> TaskLatent:
        """Return the initial latents."""
        zeros = torch.zeros(num, self.latent_dim + 2, device=device)
        task = torch.zeros(num, dtype=torch.int64, device=device)
        return TaskLatent(zeros[:, 2:], task, zeros[:, 0], zeros[:, 1])

    def observe(
        self,
        obs: Obs,
        action: Shaped[Tensor, "b t ..."],
        is_first: Bool[Tensor, "b t"],
        state: TaskLatent,
    ) -> Followed:
        """Encode sequences; predictions of each step come from the latent before it."""
        task = self.task_of(obs)
        z = self.encode(obs, task)
        before = torch.cat([state.z[:, None].to(z.dtype), z[:, :-1]], 1)
        logits = self.reward_logits(before, action.flatten(2), task)
        reward = self.decode(logits).masked_fill(is_first, 0.0)
        return Followed(TaskLatent(z, task, reward, self.goes_on(z, task)))

    def goes_on(self, z: Float[Tensor, "*b d"], task: Int[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        """Return the discount times the probability of continuation."""
        discount = self.task_discount(task)
        return (
            discount if self.termination is None else discount * torch.sigmoid(-self.ends(z, task))
        )

    def task_discount(self, task: Int[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        """Return the discount of tasks."""
        return F.embedding(task, self.discounts[:, None])[..., 0]

    def advance(self, latent: TaskLatent, action: Shaped[Tensor, "n ..."]) -> TaskLatent:
        """Predict the latent after an action."""
        flat, task = action.flatten(1), latent.task
        reward = self.decode(self.reward_logits(latent.z, flat, task))
        z = self.next(latent.z, flat, task)
        return TaskLatent(z, task, reward, self.goes_on(z, task))

    def imagine(
        self,
        start: TaskLatent,
        policy: Policy,
        horizon: int,
        noise: Float[Tensor, "h ..."] | None = None,
    ) -> tuple[TaskLatent, Shaped[Tensor, "n {horizon}+1 ..."]]:
        """Imagine from latents; the dynamics are deterministic and ignore the noise."""

        def advance(
            latent: TaskLatent, chance: Float[Tensor, " ..."]
        ) -> tuple[TaskLatent, Shaped[Tensor, "n ..."]]:
            action = policy(latent)
            return self.advance(latent, action), action

        return roll_out(advance, start, policy, torch.zeros(horizon))

    def predict(self, latent: TaskLatent) -> dict[str, Any]:
        """Return the reward and continuation stored in latents, without observations."""
        return {"obs": {}, **self.predict_reward(latent)}

    def predict_reward(self, latent: TaskLatent) -> dict[str, Float[Tensor, "*b"]]:
        """Return the reward and continuation stored in latents."""
        return {"reward": latent.reward, "cont": latent.cont}

    def discount_of(self, latent: TaskLatent) -> Float[Tensor, "*b"]:
        """Return the discount of each latent's task."""
        return self.task_discount(latent.task)
