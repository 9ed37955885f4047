"""Methods shared by all workflows with a world model."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from dreamlab.components.world_models import dreaming, open_loop
from dreamlab.components.world_models.open_loop import Sequences
from dreamlab.components.world_models.protocol import Policy
from dreamlab.core.types import Batch, Decision, Report, Tree
from dreamlab.ops.returns import lambda_return


class WorldModelWorkflow:
    """Mixin for a `Workflow` with a world model `model` and a `policy`.

    Its policy state is a dictionary: the latent's fields and the previous action.
    """

    model: Any

    def policy(self, latent: Any) -> Shaped[Tensor, "n ..."]:
        """Return actions for states [n, ...]."""
        raise NotImplementedError

    def rows_per_step(self, steps: int) -> int:
        """Return the rows per matrix product: the model processes sequences step by step."""
        return max(1, steps // 16)

    def imagine(
        self,
        horizon: int,
        start: Any,
        policy: Policy | None = None,
        noise: Float[Tensor, "h ..."] | None = None,
    ) -> tuple[Any, Shaped[Tensor, "n {horizon}+1 ..."]]:
        """Imagine from states [n, ...]; return states and actions [n, horizon + 1].

        Without `policy`, the agent's own is used.
        """
        return self.model.imagine(start, policy or self.policy, horizon, noise)

    def view(self, latent: Any) -> dict[str, Any]:
        """Return the predictions for states [n, ...]: `obs`, `reward`, and `cont` in [0, 1]."""
        seen = self.model.predict(latent)
        cont = seen["cont"] / self.model.discount_of(latent)
        return {**seen, "cont": cont.clamp(max=1.0)}

    def report(self, batch: Batch) -> Report:
        """Return open-loop prediction metrics on replayed sequences, and images of them."""
        return open_loop.report(self.model, self.sequences(batch), self.policy)

    def sequences(self, batch: Batch) -> Sequences:
        """Return windows to evaluate, from the initial state.

        Every window starts like an episode, so the action before it does not matter.
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
        """Return the decision with another action, also in the policy state."""
        return replace(decision, action=action, state={**decision.state, "action": action})


class DreamingWorkflow(WorldModelWorkflow):
    """Mixin for DreamerV3 and what is derived from it."""

    def rehearse(self, batch: Batch) -> None:
        """Call what launches kernels in an update of batches like this; see `Workflow`."""
        agent: Any = self
        model, c, device, (b, t) = self.model, agent.config, agent.device, batch.reward[:, 1:].shape
        noise = partial(model.rssm.noise, device=device)
        start = agent.decompress_latent({k: v[:, 0] for k, v in batch.extras.items()})
        action = model.embed(batch.action[:, :-1])
        tokens = torch.zeros(b, t, model.encoder.out_dim, device=device)
        if getattr(model.rssm, "scannable", False):
            model.rssm.observe(start, action, tokens, batch.is_first[:, 1:], noise(t, b))
        rows, steps = b * min(t, c.imagine_last or t), c.imagine
        if c.actor_grad == "reinforce" and dreaming.at_once(model, agent.actor, tokens):
            agent.imagined(model.initial(rows, device), None, noise(steps, rows))
        for shape in ((rows, steps + 1), (b, t)):
            zeros = torch.zeros(shape, device=device)
            lambda_return(zeros, zeros, zeros, c.lam)
