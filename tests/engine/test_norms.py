"""Norms by module: right, complete, exact over a resume, and also where steps are compiled."""

from __future__ import annotations

import pytest
import torch

from dreamlab.core.optim import AdamConfig, Optimizer
from dreamlab.engine.observer import Observer
from tests.helpers import metrics, open_loop, run_for

SMALL = (
    "tiny=true", "env.num_envs=2", "training.total_frames=600", "log.every_frames=100",
    "eval.episodes=1", "eval.every_frames=0", "eval.video=false", "device=cpu", "log.norms=true",
)  # fmt: skip


def norm(tensors):
    return torch.cat([t.detach().flatten() for t in tensors]).norm().item()


class Checks(Observer):
    """Computes the norms of a module by itself, whenever a record is made."""

    def __init__(self, module):
        self.module, self.expected = module, []
        self.then = [p.detach().clone() for p in module.parameters()]

    def flushing(self, record):
        now = [p.detach().clone() for p in self.module.parameters()]
        moved = [a - b for a, b in zip(now, self.then, strict=True)]
        grads = [p.grad for p in self.module.parameters() if p.grad is not None]
        self.then = now
        self.expected.append((norm(now), norm(moved), norm(grads) if grads else 0.0))


def test_norms_are_those_of_the_module(tmp_path):
    loop = open_loop(tmp_path / "r", "+experiment=dqn_cartpole", *SMALL)
    checks = Checks(loop.workflow.online)
    loop.observers.add(checks)
    loop.run()
    records = metrics(tmp_path / "r")
    found = [[r[f"norms/{k}/online"] for k in ("weight", "update", "grad")] for r in records]
    assert len(found) > 3
    for a, b in zip(found, checks.expected, strict=True):
        assert a == pytest.approx(b, rel=1e-5)
    assert max(moved for _, moved, _ in found) > 0 < max(grad for _, _, grad in found)
    assert records[-1]["norms/weight/online.advantage"] < records[-1]["norms/weight/online"]
    assert "norms/grad/target" not in records[-1]  # nothing follows a gradient there


def test_norms_change_nothing_and_are_not_there_unless_asked_for(tmp_path):
    plain = [o for o in SMALL if "norms" not in o]
    open_loop(tmp_path / "a", "+experiment=ppo_cartpole", *plain).run()
    open_loop(tmp_path / "b", "+experiment=ppo_cartpole", *SMALL).run()
    without = [
        {k: v for k, v in record.items() if not k.startswith("norms/")}
        for record in metrics(tmp_path / "b")
    ]
    assert metrics(tmp_path / "a") == without
    assert without != metrics(tmp_path / "b")


def test_norms_are_exact_over_a_resume(tmp_path):
    options = ("+experiment=ppo_cartpole", *SMALL)
    open_loop(tmp_path / "whole", *options).run()
    loop = open_loop(tmp_path / "r", *options)
    run_for(loop, 6)  # the next action makes a record, of weights and gradients of before
    assert loop.counters.updates == 3
    assert not metrics(tmp_path / "r")
    open_loop(tmp_path / "r", *options).run()
    assert metrics(tmp_path / "r") == metrics(tmp_path / "whole")


def test_norms_can_be_switched_on_later(tmp_path):
    plain = [o for o in SMALL if "norms" not in o]
    run_for(open_loop(tmp_path / "r", "+experiment=ppo_cartpole", *plain), 20)
    open_loop(tmp_path / "r", "+experiment=ppo_cartpole", *SMALL).run()
    assert "norms/update/critic" in metrics(tmp_path / "r")[-1]


def test_a_fused_step_leaves_its_norms_too():
    params = [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2))]
    opt = Optimizer(AdamConfig(), params)
    opt.fused = lambda grads: torch.zeros(())  # it keeps no gradient
    opt.watch_grads()
    opt.step((3 * params[0]).sum())
    assert opt.grad_norms.tolist() == pytest.approx([27**0.5, 0.0])
    assert params[0].grad is None
