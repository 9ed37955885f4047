"""Acting in chunks for workflows with critics: choose a chunk, execute all of it.

The critic evaluates whole chunks, so they are executed in full; a policy with chunks of one action
decides at every step.
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
    """Acts in chunks of `horizon` actions from `chunk`."""

    horizon: int

    @abstractmethod
    def chunk(self, obs: Obs, mode: Mode) -> Float[Tensor, "n h a"]:
        """Choose action chunks for observations [n, ...]."""

    def initial_state(self, num_envs: int) -> Tree:
        """Return an empty plan; chunks of one action need no state."""
        if self.horizon == 1:
            return ()
        rest = torch.zeros(num_envs, self.horizon, self.spec.action.size, device=self.device)
        return {"rest": rest, "left": torch.zeros(num_envs, device=self.device)}

    def decide(self, obs: Obs, is_first: Bool[Tensor, " n"], state: Tree, mode: Mode) -> Decision:
        """Continue the chunk, or start a new one if it is finished or the episode is new."""
        if self.horizon == 1:
            return Decision(self._shaped(self.chunk(obs, mode)[:, 0]))
        fresh, plan = is_first | (state["left"] < 1), state["rest"]
        if mode is Mode.FIXED or fresh.any():  # an exported graph must not read tensor values
            plan = torch.where(fresh[:, None, None], self.chunk(obs, mode), plan)
        left = torch.where(fresh, float(self.horizon), state["left"]) - 1
        rest = torch.cat([plan[:, 1:], plan[:, -1:]], 1)
        return Decision(self._shaped(plan[:, 0]), {"rest": rest, "left": left})

    def _shaped(self, flat: Float[Tensor, "n a"]) -> Float[Tensor, "n ..."]:
        return flat.unflatten(-1, self.spec.action.shape)


def whole_chunk(policy: Policy) -> int:
    """Return the length of a policy's chunks, or raise unless they are executed in full."""
    if policy.obs_steps != 1 or policy.execute != policy.horizon:
        raise ConfigError(
            "workflow.policy: critics value whole chunks from the newest observation on: set "
            f"obs_steps=1 and execute={policy.horizon}, the horizon"
        )
    return policy.horizon
