"""Captured updates: what only a GPU can show. `pytest -m gpu` on a machine with one."""

from __future__ import annotations

import math

import pytest
import torch

from dreamlab.engine.observer import Observer
from tests.helpers import metrics, open_loop, run_for

pytestmark = pytest.mark.gpu
SMALL = (
    "+experiment=dreamer_debug", "device=cuda", "~workflow.rssm", "~workflow.encoder",
    "~workflow.decoder", "~workflow.reward", "~workflow.cont", "~workflow.actor",
    "~workflow.critic", "workflow.size=1m", "eval.video=false", "eval.episodes=1",
    "eval.every_frames=0", "report.every_frames=0", "log.every_frames=50",
    "checkpoint.every_frames=0", "checkpoint.every_s=0",
)  # fmt: skip


def loop_of(folder, *options):
    return open_loop(folder, *SMALL, *options)


class Interlude(Observer):
    """Evaluates and reports once, in the middle of training."""

    def started(self, loop):
        self.loop, self.left = loop, 60

    def after(self, action):
        self.left -= 1
        if self.left == 0:
            assert self.loop.counters.updates > 3  # by then updates are replayed
            assert self.loop.evaluate() is not None  # outside of the update's precision
            self.loop.report()


@pytest.fixture(scope="module", params=["fp32", "bf16"])
def trained(request, tmp_path_factory):
    """A run that was looked at in between, with its folder; each costs a minute of compiling."""
    folder = tmp_path_factory.mktemp(request.param) / "r"
    loop = loop_of(folder, f"precision={request.param}", "training.total_frames=400")
    interlude = Interlude()
    loop.observers.add(interlude)
    assert loop.run() == "finished"
    assert interlude.left < 0
    return loop, folder


def test_captured_training_evaluates_reports_and_goes_on(trained):
    loop, folder = trained
    losses = [v for r in metrics(folder) for k, v in r.items() if k.endswith("loss")]
    assert losses
    assert all(math.isfinite(v) for v in losses)
    assert loop.workflow.update.graphs


@pytest.mark.parametrize("trained", ["fp32"], indirect=True)  # in bf16 choices may fall otherwise
def test_captured_updates_are_the_plain_ones(trained, tmp_path):
    """Same start, same batches, same random numbers: the weights after five updates agree."""
    fast, _ = trained
    plain = loop_of(tmp_path / "b", "compile=false")
    buffer = fast.parts.buffers["replay"]
    batches = [buffer.sample().map(lambda x: x.clone()) for _ in range(5)]
    plain.workflow.load_state_dict(fast.workflow.state_dict())
    for loop in (fast, plain):
        for i, batch in enumerate(batches):
            torch.manual_seed(i)
            loop.workflow.update_agent(batch, phase=fast.scheduler.phase)
    pairs = zip(fast.workflow.named_parameters(), plain.workflow.parameters(), strict=True)
    for (name, a), b in pairs:
        near = torch.isclose(a, b, atol=1e-5, rtol=1e-3).float().mean()
        assert near > 0.96, (name, float(near))


def test_results_survive_the_next_replay(trained):
    loop, _ = trained
    batch = loop.parts.buffers["replay"].sample()
    update = loop.workflow.update_agent
    phase = loop.scheduler.phase
    first, _ = update(batch, phase=phase)
    loss = float(first["loss"])
    update(batch, phase=phase)
    assert float(first["loss"]) == loss


def test_resume_of_captured_training(tmp_path):
    # vectors alone: what is compiled for determinism is compiled anew
    options = ("deterministic=true", "training.total_frames=300", "env.id=counting")
    try:
        loop_of(tmp_path / "whole", *options).run()
        run_for(loop_of(tmp_path / "r", *options), 30)
        loop_of(tmp_path / "r", *options).run()
    finally:
        torch.use_deterministic_algorithms(False)
    assert metrics(tmp_path / "r") == metrics(tmp_path / "whole")
