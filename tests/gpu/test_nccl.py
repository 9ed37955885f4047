"""nccl with the one process that one GPU allows: collectives, captured updates, a whole run.

A process that is alone computes nothing over a group. Where a test says that there are two, sums
go through nccl all the same: they lack the other's part, so that gradients are half as large.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from dreamlab.core import world
from dreamlab.core.optim import AdamConfig, Optimizer
from dreamlab.core.world import World
from tests.helpers import metrics, open_loop, run_for

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
PPO = (
    "+experiment=ppo_cartpole", "tiny=true", "training.total_frames=400", "log.every_frames=100",
    "eval.episodes=1", "eval.every_frames=0", "eval.video=false", f"device={DEVICE}",
)  # fmt: skip
DREAMER = (
    "+experiment=dreamer_debug", f"device={DEVICE}", "env.id=counting", "~workflow.rssm",
    "~workflow.encoder", "~workflow.decoder", "~workflow.reward", "~workflow.cont",
    "~workflow.actor", "~workflow.critic", "workflow.size=1m", "eval.video=false",
    "eval.episodes=1", "eval.every_frames=0", "report.every_frames=0", "log.every_frames=50",
    "training.total_frames=160", "checkpoint.every_frames=0", "checkpoint.every_s=0",
)  # fmt: skip


@pytest.fixture
def group(tmp_path) -> Iterator[None]:
    """The group of a run on GPUs, of one process."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    with world.joined(World(), cuda=True, timeout_s=60.0, store=store):
        yield


@pytest.fixture
def two(group, monkeypatch) -> None:
    """Let this process believe that there is another one."""
    monkeypatch.setattr(world, "_here", World(0, 2, 0, 2))


def test_tensors_go_through_nccl_and_numbers_through_gloo(two):
    x = torch.arange(3.0, device=DEVICE, requires_grad=True)
    y = world.mean(x)
    y.sum().backward()
    assert y.tolist() == [0, 1, 2]
    assert x.grad is not None
    assert x.grad.tolist() == [1, 1, 1]
    assert world.total(x).tolist() == world.largest(x).tolist() == [0, 1, 2]
    assert world.gathered(x).tolist() == [0, 1, 2, 0, 0, 0]
    assert world.agree([1.0, 2.0]) == [1.0, 2.0]
    assert world.broadcast({"rank": 0}) == {"rank": 0}
    grads = world.mean_gradients([torch.ones(2, device=DEVICE), None])
    assert grads[0] is not None
    assert grads[0].tolist() == [0.5, 0.5]
    assert grads[1] is None


def test_an_optimizer_follows_the_mean(two):
    def after(scale: float) -> torch.Tensor:
        p = torch.nn.Parameter(torch.ones(4, device=DEVICE))
        opt = Optimizer(AdamConfig(lr=0.1, eps=1.0), [p])
        opt.step((scale * p * torch.arange(4.0, device=DEVICE)).sum())
        return p.detach()

    halved = after(1.0)
    with world.alone():
        torch.testing.assert_close(halved, after(0.5))


def test_a_run_in_the_group_resumes(group, tmp_path):
    try:
        options = (*PPO, "deterministic=true")
        open_loop(tmp_path / "whole", *options).run()
        run_for(open_loop(tmp_path / "r", *options), 9)
        assert list((tmp_path / "r").glob("checkpoints/[0-9]*"))
        open_loop(tmp_path / "r", *options).run()
    finally:
        torch.use_deterministic_algorithms(False)
    assert metrics(tmp_path / "r") == metrics(tmp_path / "whole")


def test_captured_updates_reduce_their_gradients(group, tmp_path, monkeypatch):
    """Sums are recorded in the graph: replayed updates are the plain ones of the same group."""
    plain = open_loop(tmp_path / "plain", *DREAMER, "compile=false")
    plain.run()
    fast = open_loop(tmp_path / "fast", *DREAMER)
    fast.workflow.load_state_dict(plain.workflow.state_dict())
    batch = plain.parts.buffers["replay"].sample().map(lambda x: x.clone())
    monkeypatch.setattr(world, "_here", World(0, 2, 0, 2))
    for loop in (fast, plain):
        for i in range(5):  # the fourth is a replay
            torch.manual_seed(i)
            loop.workflow.update_agent(batch, phase=loop.scheduler.phase)
    if DEVICE == "cuda":
        assert fast.workflow.update.graphs
    pairs = zip(fast.workflow.named_parameters(), plain.workflow.parameters(), strict=True)
    for (name, a), b in pairs:
        near = torch.isclose(a, b, atol=1e-5, rtol=1e-3).float().mean()
        assert near > 0.96, (name, float(near))
