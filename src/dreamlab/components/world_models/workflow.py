"""What every workflow with a world model can do, whichever model it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from dreamlab.components.world_models import open_loop
from dreamlab.components.world_models.open_loop import Sequences
from dreamlab.components.world_models.protocol import Policy
from dreamlab.core.types import Batch, Decision, Report, Tree


class WorldModelWorkflow:
    """Beside `Workflow` among a class's bases: it has a `model` to dream with, and a `policy`.

    Its state while acting is a dictionary: the latent's fields and the action that was taken last.
    """

    model: Any

    def policy(self, latent: Any) -> Shaped[Tensor, "n ..."]:
        """Return actions for states [n, ...]."""
        raise NotImplementedError

    def rows_per_step(self, steps: int) -> int:
        """Return the rows of one product: a sequence goes through the model step by step."""
        return max(1, steps // 16)

    def imagine(
        self,
        horizon: int,
        start: Any,
        policy: Policy | None = None,
        noise: Float[Tensor, "h ..."] | None = None,
    ) -> tuple[Any, Shaped[Tensor, "n {horizon}+1 ..."]]:
        """Dream on from states [n, ...]; return states and actions [n, horizon + 1].

        Without a policy the agent's own decides.
        """
        return self.model.imagine(start, policy or self.policy, horizon, noise)

    def view(self, latent: Any) -> dict[str, Any]:
        """Return what is dreamt of in states [n, ...]: `obs`, `reward`, and `cont` in [0, 1]."""
        seen = self.model.predict(latent)
        return {**seen, "cont": (seen["cont"] / self.model.discount).clamp(max=1.0)}

    def report(self, batch: Batch) -> Report:
        """Return how well the model dreams on from replayed sequences, and images of it."""
        return open_loop.report(self.model, self.sequences(batch), self.policy, self.model.discount)

    def sequences(self, batch: Batch) -> Sequences:
        """Return windows to look at, from the state before anything was seen.

        Every window starts as an episode does, so the action before it does not matter.
        """
        action = torch.cat([batch.action[:, :1], batch.action[:, :-1]], 1)
        start = self.model.initial(len(action), action.device)
        return Sequences(batch.obs, action, batch.reward, batch.is_first, batch.is_terminal, start)

    def unpack_state(self, state: Tree) -> Any:
        """Return the latent part of a policy state."""
        return self.model.Latent(*(state[k] for k in self.model.Latent._fields))

    def pack_state(self, latent: Any, action: Shaped[Tensor, "b ..."]) -> Tree:
        """Return the policy state after an action."""
        return {**latent._asdict(), "action": action}

    def with_action(self, decision: Decision, action: Shaped[Tensor, "b ..."]) -> Decision:
        """Return a decision for another action, which is also what will be remembered."""
        return replace(decision, action=action, state={**decision.state, "action": action})
