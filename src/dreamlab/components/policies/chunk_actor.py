"""How workflows with critics act: a chunk is decided and carried out, then the next one is.

What a critic values is the whole chunk, so that the whole of it is carried out; a policy whose
chunks are single actions decides at every step.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dreamlab.components.policies.protocol import Policy
from dreamlab.core.errors import ConfigError
from dreamlab.core.types import Decision, Mode, Obs, Tree
from dreamlab.core.workflow import C, Workflow


class ChunkActor(Workflow[C]):
    """Acts by chunks of `horizon` actions that `chunk` decides."""

    horizon: int

    @abstractmethod
    def chunk(self, obs: Obs, mode: Mode) -> Float[Tensor, "n h a"]:
        """Return what to do from observations [n, ...] on."""

    def initial_state(self, num_envs: int) -> Tree:
        """Return no plan; where a chunk is one action, there is nothing to remember."""
        if self.horizon == 1:
            return ()
        rest = torch.zeros(num_envs, self.horizon, self.spec.action.size, device=self.device)
        return {"rest": rest, "left": torch.zeros(num_envs, device=self.device)}

    def decide(self, obs: Obs, is_first: Bool[Tensor, " n"], state: Tree, mode: Mode) -> Decision:
        """Continue the chunk, or start a new one where it has ended or the episode is new."""
        if self.horizon == 1:
            return Decision(self._shaped(self.chunk(obs, mode)[:, 0]))
        fresh, plan = is_first | (state["left"] < 1), state["rest"]
        if mode is Mode.FIXED or fresh.any():  # what is exported never asks what a tensor holds
            plan = torch.where(fresh[:, None, None], self.chunk(obs, mode), plan)
        left = torch.where(fresh, float(self.horizon), state["left"]) - 1
        rest = torch.cat([plan[:, 1:], plan[:, -1:]], 1)
        return Decision(self._shaped(plan[:, 0]), {"rest": rest, "left": left})

    def _shaped(self, flat: Float[Tensor, "n a"]) -> Float[Tensor, "n ..."]:
        return flat.unflatten(-1, self.spec.action.shape)


def whole_chunk(policy: Policy) -> int:
    """Return how many actions a policy's chunk has, all of which are carried out, or raise."""
    if policy.obs_steps != 1 or policy.execute != policy.horizon:
        raise ConfigError(
            "workflow.policy: critics value whole chunks from the newest observation on: set "
            f"obs_steps=1 and execute={policy.horizon}, the horizon"
        )
    return policy.horizon
