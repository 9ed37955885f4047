"""Uniformly random actions: the baseline of all other scores."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dreamlab.core.errors import ConfigError
from dreamlab.core.types import Decision, Mode, Obs, Spec, Tree
from dreamlab.core.workflow import Workflow


@dataclass(frozen=True)
class RandomConfig:
    """No options."""


class Random(Workflow[RandomConfig]):
    """Ignores observations and learns nothing; its phases only collect or evaluate."""

    Config = RandomConfig
    low: Float[Tensor, ""]
    span: Float[Tensor, " ..."]

    def build(self, spec: Spec) -> None:
        action = spec.action
        if action.classes is None and (action.low is None or action.high is None):
            raise ConfigError(
                "workflow: random actions need bounds, but this environment's continuous actions "
                "have none"
            )
        low = torch.tensor(action.low or 0.0)
        span = torch.tensor((action.high or 0.0) - (action.low or 0.0))
        if action.classes is not None:
            low, span = torch.tensor(0.0), torch.tensor(action.classes, dtype=torch.float32)
        self.register_buffer("low", low, persistent=False)
        self.register_buffer("span", span, persistent=False)

    @torch.no_grad()
    def decide(self, obs: Obs, is_first: Bool[Tensor, " n"], state: Tree, mode: Mode) -> Decision:
        """Sample uniform actions, in evaluation too; a deterministic decision is the midpoint."""
        action = self.spec.action
        half = torch.full_like(is_first, 0.5, dtype=torch.float32)
        unit = half.view(-1, *(1 for _ in action.shape)).expand(-1, *action.shape)
        if mode is not Mode.FIXED:
            unit = torch.rand_like(unit)
        if action.classes is None:
            return Decision(self.low + self.span * unit)
        return Decision((self.span * unit).long().minimum(self.span.long() - 1))
