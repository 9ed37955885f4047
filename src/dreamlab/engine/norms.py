"""Norms of gradients, weights and their changes, by module: `log.norms=true`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dreamlab.core.workflow import Workflow
from dreamlab.engine.observer import Observer

if TYPE_CHECKING:
    from dreamlab.engine.orchestrator import Orchestrator


class Norms(Observer):
    """Adds `norms/...` to every record, for each module of the workflow and those one level below.

    grad     of the last gradient step, before clipping; 0 where nothing came
    weight   now
    update   how far the weights have moved since the last record

    Optimizers leave the norms of their gradients where they are computed, also inside compiled and
    recorded steps; everything is read at once when a record is written. It is a sink as well, so
    that a checkpoint holds the weights that the next record is compared with.
    """

    def __init__(self, workflow: Workflow[Any]) -> None:
        named = list(workflow.named_parameters())
        self.groups = [modules_of(name) for name, _ in named]
        self.weights: list[Tensor] = [p for _, p in named]
        self.past: list[Tensor] = []
        place = {id(p): i for i, (_, p) in enumerate(named)}
        self.optimizers = workflow.optimizers
        self.stepped = [place[id(p)] for opt in self.optimizers.values() for p in opt.params]
        for opt in self.optimizers.values():
            opt.watch_grads()

    def started(self, loop: Orchestrator) -> None:
        if not self.past:
            self._remember()

    @torch.no_grad()
    def flushing(self, record: dict[str, float]) -> None:
        moved = torch._foreach_sub(self.weights, self.past)
        found = [*torch._foreach_norm(self.weights), *torch._foreach_norm(moved)]
        norms = torch.cat([torch.stack(found).float(), *self._grads().values()]).tolist()
        count = len(self.weights)
        self._add(record, "weight", range(count), norms[:count])
        self._add(record, "update", range(count), norms[count : 2 * count])
        self._add(record, "grad", self.stepped, norms[2 * count :])
        self._remember()

    def _add(self, record: dict[str, float], kind: str, places: Any, norms: list[float]) -> None:
        squares: dict[str, float] = {}
        for place, norm in zip(places, norms, strict=True):
            for group in self.groups[place]:
                squares[group] = squares.get(group, 0.0) + norm**2
        record |= {f"norms/{kind}/{group}": value**0.5 for group, value in squares.items()}

    def _grads(self) -> dict[str, Tensor]:
        found = {name: opt.grad_norms for name, opt in self.optimizers.items()}
        return {name: norms for name, norms in found.items() if norms is not None}

    @torch.no_grad()
    def _remember(self) -> None:
        if not self.past:
            self.past = [w.detach().clone() for w in self.weights]
        else:
            torch._foreach_copy_(self.past, self.weights)

    # -- a sink, for its state -------------------------------------------------------------------

    def write(self, record: dict[str, float]) -> None:
        """Do nothing: the numbers are in the record already."""

    def get_state(self) -> dict[str, Any]:
        return {"past": self.past, "grads": self._grads()}

    def set_state(self, state: dict[str, Any]) -> None:
        self.past = [w.to(p.device) for w, p in zip(state["past"], self.weights, strict=True)]
        for name, norms in self._grads().items():
            norms.copy_(state["grads"][name])

    def restart(self) -> None: ...

    def close(self) -> None: ...


def modules_of(name: str) -> list[str]:
    """Return a parameter's module at the top and the one below; without one, the parameter."""
    path = name.split(".")[:-1] or [name]
    return [".".join(path[:depth]) for depth in (1, 2)[: len(path)]]
