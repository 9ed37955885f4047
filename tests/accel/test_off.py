"""`accel=off`: the same training, every number computed as it is written."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from dreamlab.accel import dispatch
from dreamlab.core.errors import ConfigError
from dreamlab.core.types import Batch
from dreamlab.engine.orchestrator import Orchestrator
from dreamlab.nn.ensemble import EnsembleMLP
from dreamlab.nn.mlp import MLP, MLPConfig
from dreamlab.ops.functional import log_softmax, softmax, tanh
from dreamlab.ops.losses import clipped_surrogate
from tests.contract.found import CASES
from tests.contract.test_workflows import make
from tests.helpers import config_of, open_loop

UPDATES = 3
LOSS = {"rtol": 1e-4, "atol": 1e-5}
"""How far metrics of an update may lie apart: a share of them, and an absolute distance."""
WEIGHT = {"rtol": 1e-3, "atol": 1e-5}
"""How far weights may lie apart after three updates."""


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    yield
    dispatch.set_reference(False)


def learnt(loop: Orchestrator, batch: Batch, reference: bool) -> tuple[list[Any], dict[str, Any]]:
    """Return the metrics of a few updates, and the weights after them; the loop stays as it was."""
    agent, phase = loop.workflow, loop.scheduler.phases[-1]
    before = copy.deepcopy(agent.state_dict())
    dispatch.set_reference(reference)
    results: list[Any] = []
    for i in range(UPDATES):
        torch.manual_seed(i)
        for name in phase.update_hooks:
            out = getattr(agent, name)(batch, phase=phase)
            results.append(out[0] if isinstance(out, tuple) else out)
    weights = {k: v.detach().clone() for k, v in agent.named_parameters()}
    agent.load_state_dict(before)
    dispatch.set_reference(False)
    return results, weights


@pytest.mark.parametrize(("cls", "name"), CASES)
def test_every_workflow_learns_the_same_with_accel_off(cls, name, tmp_path):
    loop = make(tmp_path, name)
    phases = loop.scheduler.phases
    buffer = loop.parts.buffers[phases[-1].buffer]
    filling = [i for i, p in enumerate(phases) if p.collects and p.buffer == phases[-1].buffer]
    loop.scheduler._enter(filling[0])
    while not buffer.ready():
        loop._do("collect")
    batch = buffer.sample().map(lambda x: x.clone())
    fast, plain = learnt(loop, batch, False), learnt(loop, batch, True)
    for a, b in zip(fast[0], plain[0], strict=True):
        for key in a:
            torch.testing.assert_close(a[key], b[key], **LOSS, msg=lambda m, k=key: f"{k}: {m}")
    for key, a in fast[1].items():
        torch.testing.assert_close(a, plain[1][key], **WEIGHT, msg=lambda m, k=key: f"{k}: {m}")


def test_the_option_switches_the_process_over_and_back(tmp_path):
    options = ("+experiment=ppo_cartpole", "tiny=true", "device=cpu", "eval.every_frames=0")
    off = open_loop(tmp_path / "off", *options, "accel=off", "training.total_frames=300")
    assert dispatch.Forms.reference
    assert off.run() == "finished"
    open_loop(tmp_path / "auto", *options)
    assert not dispatch.Forms.reference


def test_nothing_is_compiled_with_it(tmp_path):
    with pytest.raises(ConfigError, match="accel=off disables compilation"):
        open_loop(tmp_path / "a", "+experiment=ppo_cartpole", "accel=off", "compile=true")
    with pytest.raises(ConfigError, match="accel"):
        _ = config_of("+experiment=ppo_cartpole", "accel=of")


def test_the_reference_is_torchs_own():
    x = torch.randn(20, 6, requires_grad=True)
    mlp, several = MLP(MLPConfig((8, 8)), 6), EnsembleMLP(2, [6, 8], 1, "relu", False)
    forms: list[tuple[Any, Any]] = [
        (lambda: softmax(x), lambda: torch.softmax(x, -1)),
        (lambda: log_softmax(x), lambda: torch.log_softmax(x, -1)),
        (lambda: tanh(x), lambda: torch.tanh(x)),
        (lambda: mlp(x)[0], lambda: mlp.layers(x)),
        (lambda: several(x), lambda: several.layers(x.expand(2, *x.shape))),
        (
            lambda: clipped_surrogate(x, torch.ones_like(x), 0.2),
            lambda: torch.minimum(x.exp(), x.exp().clamp(0.8, 1.2)),
        ),
    ]
    for ours, theirs in forms:
        node = theirs().grad_fn.name()
        assert ours().grad_fn.name() != node
        torch.testing.assert_close(ours(), theirs())
        with dispatch.reference_kernels():
            assert torch.equal(ours(), theirs()), node
            assert ours().grad_fn.name() == node
        assert not dispatch.Forms.reference


def test_a_surrogate_has_the_same_gradient_in_both_forms():
    change = torch.tensor([-1.0, -0.1, 0.0, 0.1, 1.0] * 3, requires_grad=True)
    advantage = torch.tensor([1.0] * 5 + [-1.0] * 5 + [0.0] * 5)
    clip = torch.tensor(0.2)
    fused = torch.autograd.grad(clipped_surrogate(change, advantage, clip).sum(), change)[0]
    with dispatch.reference_kernels():
        plain = torch.autograd.grad(clipped_surrogate(change, advantage, clip).sum(), change)[0]
    torch.testing.assert_close(fused, plain)


def test_a_gpus_form_is_off_too(monkeypatch):
    monkeypatch.setattr(dispatch, "INTERPRETED", True)
    monkeypatch.setattr(dispatch, "HAS_TRITON", True)
    x = torch.zeros(1)
    assert dispatch.use_triton(x)
    with dispatch.reference_kernels():
        assert not dispatch.use_gpu_kernels(x)
        assert not dispatch.use_triton(x)
