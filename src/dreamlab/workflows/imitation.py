"""Imitation: train any policy on demonstrated actions with its own loss.

`policy: gaussian` is behavior cloning (Pomerleau 1988), `diffusion` is diffusion policy (Chi et al.
2023, arXiv:2303.04137); `flow`, `autoregressive` and `categorical` work as well. It acts in chunks
with a receding horizon, and is evaluated with averaged weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from jaxtyping import Bool
from torch import Tensor

from dreamlab.components import HOME
from dreamlab.components.policies import acting
from dreamlab.components.policies.chunks import Chunks, chunks
from dreamlab.components.policies.protocol import Policy
from dreamlab.core import world
from dreamlab.core.config import Part, part
from dreamlab.core.optim import optimizer_field
from dreamlab.core.phase import Phase
from dreamlab.core.types import Batch, Decision, Metrics, Mode, Obs, Spec, Tree
from dreamlab.core.workflow import Workflow, compilable, hook


@dataclass(frozen=True)
class ImitationConfig:
    """The policy and its training options, as in diffusion policy."""

    policy: Part = part("gaussian", HOME, Policy)
    optimizer: Part = optimizer_field(
        "adamw", lr=1e-4, betas=(0.95, 0.999), weight_decay=1e-6, ema=0.9999, ema_power=0.75
    )


class Imitation(Workflow[ImitationConfig]):
    """One supervised update on windows of at least `horizon` steps, from any source."""

    Config = ImitationConfig
    reads_padding: ClassVar[bool] = True
    tiny: ClassVar[dict[str, Any]] = {"policy": {"hidden": (8, 8)}}

    def build(self, spec: Spec) -> None:
        self.policy: Policy = self.config.policy.build(spec)
        self.opt = self.optimizer("policy", self.policy.parameters(), self.config.optimizer)

    def initial_state(self, num_envs: int) -> Tree:
        return acting.initial_state(self.policy, self.spec, num_envs, self.device)

    def decide(self, obs: Obs, is_first: Bool[Tensor, " n"], state: Tree, mode: Mode) -> Decision:
        """Continue the action chunk, or sample the next one."""
        return acting.act(self.policy, obs, is_first, state, mode)

    @hook
    def update_policy(self, batch: Batch, *, phase: Phase) -> Metrics:
        """Take one gradient step on the policy's own loss."""
        return self.learn(chunks(batch, self.policy.obs_steps, self.policy.horizon))

    @compilable
    def learn(self, rows: Chunks) -> Metrics:
        """Take the gradient step; ignore rows without an action."""
        each = self.policy.loss(rows.obs, self.policy.flat(rows.action))
        loss = (each * rows.valid).sum() / world.mean(rows.valid.sum()).clamp(min=1)
        norm = self.opt.step(loss)
        return {"loss": loss.detach(), "grad_norm": norm}
