"""Two processes with a batch each learn what one learns from both batches together.

Every workflow runs a little, as the contract's tests run it. Batches of each of its phases are
then learnt from twice: by one process, and by two that have every other window each. Random draws
are constants: which process draws which number is all that may differ otherwise.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from dreamlab.core.phase import Phase
from dreamlab.core.tree import tree_leaves, tree_map
from dreamlab.core.types import Batch, Metrics
from dreamlab.core.workflow import Workflow
from dreamlab.engine.observer import Observer
from dreamlab.engine.orchestrator import Orchestrator
from dreamlab.engine.same_weights import digests
from tests.contract.found import CASES, workflows
from tests.contract.test_workflows import make
from tests.distributed.constant_random import ConstantRandom
from tests.distributed.ranks import run_ranks
from tests.helpers import run_for

GRADIENT, LATER, BUFFER = 1e-4, 1e-3, 1e-4
"""Largest distance, relative to the length: of the first gradient of an optimizer, of later ones
(weights differ in their last digits by then, and Adam divides by small numbers), of a buffer."""
STEP = 1e-3
"""Of what the state has changed by, tensor by tensor: weights, moments, averages."""
BATCHES = 2
QUICK = ("dqn_cartpole", "ppo_acrobot", "dreamer_cartpole")
WHOLE = {"PPO": {"minibatch": 10**6}}
"""Void steps are dropped before a rollout is cut, so that pieces are not those of both halves."""


class Kept(Observer):
    """Keeps the last batches of each phase."""

    def __init__(self, loop: Orchestrator) -> None:
        self.loop = loop
        self.batches: dict[str, tuple[Phase, list[Batch]]] = {}

    def updated(self, batch: Batch, metrics: Metrics) -> None:
        phase = self.loop.scheduler.phase
        _, before = self.batches.setdefault(phase.name, (phase, []))
        before.append(_rows(batch, slice(None)))
        del before[:-BATCHES]


def _rows(batch: Batch, which: slice) -> Batch:
    """Return a copy of some windows of a batch."""
    take = lambda x: x[which].clone() if isinstance(x, Tensor) else x  # noqa: E731
    return Batch(**{f.name: tree_map(take, getattr(batch, f.name)) for f in fields(batch)})


def learn(workflow: Workflow[Any], kept: Kept, which: slice) -> dict[str, Any]:
    """Learn from a part of every batch; return all gradients that were followed and the state."""
    before = {k: v.clone() for k, v in tensors_of(workflow.state_dict()).items()}
    grads: dict[str, list[Tensor]] = {name: [] for name in workflow.optimizers}
    for name, opt in workflow.optimizers.items():
        zero = [torch.zeros_like(p) for p in opt.params]

        def hear(new: Any, name: str = name, zero: Any = zero) -> None:
            flat = [(z if g is None else g).flatten() for g, z in zip(new, zero, strict=True)]
            grads[name].append(torch.cat(flat).detach().clone())

        opt.heard = hear
    with ConstantRandom():
        for phase, batches in kept.batches.values():
            for batch in batches:
                for hook in phase.update_hooks:
                    getattr(workflow, hook)(_rows(batch, which), phase=phase)
    named = {k: v.detach().clone() for k, v in tensors_of(workflow.state_dict()).items()}
    return {
        "grads": grads,
        "tensors": named,
        "before": before,
        "digest": digests([*named.values()]),
    }


def tensors_of(state: Any) -> dict[str, Tensor]:
    """Return the tensors of a state by their place: weights, buffers, moments, averages, steps."""
    return {k: v for k, v in tree_leaves(state) if isinstance(v, Tensor)}


def prepared(name: str, folder: Any) -> tuple[Workflow[Any], Kept]:
    """Return a workflow that was trained a little, and batches of all its phases."""
    loop = make(folder / "run", name)
    kept = Kept(loop)
    loop.observers.add(kept)
    run_for(loop, None)
    workflow = loop.workflow
    options = WHOLE.get(type(workflow).__name__)
    if options is not None:
        workflow.config = replace(workflow.config, **options)
    return workflow, kept


@pytest.mark.parametrize(
    ("cls", "name"),
    [
        pytest.param(*case.values, id=case.id, marks=() if case.id in QUICK else pytest.mark.slow)
        for case in CASES
    ],
)
def test_two_processes_learn_what_one_learns_from_twice_the_batch(cls, name, tmp_path):
    workflow, kept = prepared(name, tmp_path)
    if not cls.hooks():
        return
    assert kept.batches, "nothing was learnt: there is nothing to compare"
    halves = run_ranks(lambda rank: learn(workflow, kept, slice(rank, None, 2)), tmp_path / "r")
    hooks = {h for phase, _ in kept.batches.values() for h in phase.update_hooks}
    if "update_controller_in_dream" in hooks:  # candidates dream once from each of so many windows
        controller = workflow.config.controller
        twice = replace(controller, rollouts=2 * controller.rollouts)
        workflow.config = replace(workflow.config, controller=twice)
    whole = learn(workflow, kept, slice(None))
    assert halves[0]["digest"] == halves[1]["digest"], "the weights of two processes differ"
    for optimizer, expected in whole["grads"].items():
        found = halves[0]["grads"][optimizer]
        assert len(found) == len(expected)
        for i, (a, b) in enumerate(zip(found, expected, strict=True)):
            assert distance(a, b) < (LATER if i else GRADIENT), (optimizer, i)
    for optimizer, followed in whole["grads"].items():
        assert followed, f"{optimizer} did not step"
    buffers, learned = {k for k, _ in workflow.named_buffers()}, whole["before"]
    assert halves[0]["tensors"].keys() == whole["tensors"].keys()
    for key, expected in whole["tensors"].items():
        found, first = halves[0]["tensors"][key], learned[key]
        if key in buffers:
            assert distance(found, expected) < BUFFER, key
        elif expected.is_floating_point() and not torch.equal(first, expected):
            step, wanted = found.double() - first, expected.double() - first
            assert distance(step, wanted) < STEP, (key, distance(step, wanted))
        else:
            assert torch.equal(found, expected), key


def distance(a: Tensor, b: Tensor) -> float:
    """Return how far apart two tensors are, relative to the length of one."""
    a, b = a.double(), b.double()
    same = (a == b) | (a.isnan() & b.isnan())  # infinities included
    return float(torch.where(same, 0, a - b).norm() / b[b.isfinite()].norm().clamp(min=1e-12))


def test_every_workflow_is_among_the_cases():
    assert {c.values[0] for c in CASES} == set(workflows())
