"""What captured updates are made of, as far as it can be seen without a GPU."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from dreamlab.accel import cuda_graphs
from dreamlab.accel.bf16_weights import Bf16Weights
from dreamlab.accel.cuda_graphs import CapturedGraph, GraphedMethod, lay_out
from dreamlab.core import world
from dreamlab.core.types import Mode
from dreamlab.core.world import World
from tests.accel import gpu_form
from tests.helpers import open_loop, run_for


@pytest.fixture
def loop(tmp_path):
    loop = open_loop(
        tmp_path / "r", "+experiment=dreamer_debug", "device=cpu", "eval.every_frames=0"
    )
    run_for(loop, 40)
    return loop


def batch_of(loop):
    return loop.parts.buffers["replay"].sample().map(lambda x: x.clone())


def test_bf16_weights_compute_as_autocast_does_and_move_the_full_weights(loop):
    batch, agent = batch_of(loop), loop.workflow
    twin = copy.deepcopy(agent)
    twin.target_network = type(twin.target_network)(twin.slow, twin.critic)
    twin.optimizers["agent"] = type(agent.optimizers["agent"])(
        agent.optimizers["agent"].config,
        [p for m in (twin.model, twin.actor, twin.critic) for p in m.parameters()],
    )
    twin.load_state_dict(agent.state_dict())
    weights = Bf16Weights(twin, lay_out(twin, bf16=True))
    results = []
    for one, around in ((agent, None), (twin, weights.swapped_in)):
        torch.manual_seed(0)
        with torch.autocast("cpu", torch.bfloat16):
            if around is None:
                metrics, _ = one.update(batch)
            else:
                with around():
                    assert next(one.actor.parameters()).dtype == torch.bfloat16
                    metrics, _ = one.update(batch)
        results.append(metrics)
    for key, value in results[0].items():
        torch.testing.assert_close(results[1][key], value, rtol=0.02, atol=0.02, msg=key)
    assert all(p.dtype == torch.float32 for p in twin.parameters())
    pairs = zip(agent.parameters(), twin.parameters(), strict=True)
    near = [torch.isclose(a, b, atol=1e-4).float().mean() for a, b in pairs]
    assert min(near) > 0.9


def test_methods_are_compiled_inside_the_block_only():
    class One:
        enabled = False

    method = One()
    with cuda_graphs.enabled([method]):
        assert method.enabled
    assert not method.enabled


def test_arguments_of_several_types_are_copied_at_once():
    given = [
        torch.rand(2, 3),
        torch.tensor([True, False]),
        torch.rand(4).double(),
        torch.rand(3, 2).T,
    ]
    into = [torch.zeros_like(x) for x in given]
    cuda_graphs.copy_all(into, given)
    assert all(torch.equal(a, b) for a, b in zip(into, given, strict=True))


class Graph:
    """A CUDA graph of nothing, which tells when it is dropped."""

    def __init__(self, told: list[str]) -> None:
        self.told = told

    def replay(self) -> None:
        self.told.append("replayed")

    def reset(self) -> None:
        self.told.append("reset")


@pytest.fixture
def told(monkeypatch) -> list[str]:
    """Let graphs be captured without a GPU; return what happens to them and to the group."""
    told: list[str] = []
    stream = SimpleNamespace(wait_stream=lambda other: None)

    def capture(graph: Graph, stream: Any, capture_error_mode: str) -> Any:
        told.append(capture_error_mode)
        return nullcontext()

    for name, value in {
        "CUDAGraph": lambda: Graph(told), "graph": capture, "synchronize": lambda: None,
        "Stream": lambda priority: stream, "current_stream": lambda: stream,
        "stream": lambda stream: nullcontext(),
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    enter, leave = dist.init_process_group, dist.destroy_process_group
    monkeypatch.setattr(dist, "init_process_group", lambda _, **where: enter("gloo", **where))

    def left() -> None:
        told.append("left")
        leave()

    monkeypatch.setattr(dist, "destroy_process_group", left)
    return told


def test_graphs_are_dropped_before_their_group_ends(told, tmp_path):
    """A graph that holds collectives must not outlive nccl's communicator."""
    method = GraphedMethod(lambda x: x + 1)
    store = dist.FileStore(str(tmp_path / "store"), 1)
    with world.joined(World(), cuda=True, store=store):
        for _ in range(4):
            method(torch.ones(2))
    assert told == ["thread_local", "replayed", "replayed", "reset", "left"]
    assert torch.equal(method(torch.ones(2)), torch.full((2,), 2.0))  # warms up anew
    assert told[5:] == []


def test_graphs_of_a_process_alone_live_as_long_as_their_method(told):
    method = GraphedMethod(lambda x: x + 1)
    with world.joined(World()):
        for _ in range(3):
            method(torch.ones(2))
    assert told == ["global", "replayed"]


def test_a_capture_that_failed_is_not_replayed(told):
    calls: list[int] = []

    def add(x: torch.Tensor) -> torch.Tensor:
        calls.append(len(calls))
        if calls[-1] == 2:
            raise RuntimeError("out of memory")
        return x + 1

    method = GraphedMethod(add)
    for _ in range(2):
        method(torch.ones(2))
    with pytest.raises(RuntimeError, match="out of memory"):
        method(torch.ones(2))
    assert torch.equal(method(torch.ones(2)), torch.full((2,), 2.0))
    assert told == ["global", "global", "replayed"]


def test_graphs_that_nobody_holds_need_no_end(told, tmp_path):
    store = dist.FileStore(str(tmp_path / "store"), 1)
    with world.joined(World(), cuda=True, store=store):
        for _ in range(3):
            GraphedMethod(lambda x: x + 1)._capture(CapturedGraph(), [torch.ones(2)], list)
    assert "reset" not in told


aten = torch.ops.aten
HOST = (
    aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten._unique2, aten.equal,
    aten.lift_fresh, aten.is_nonzero, aten.bincount, aten.repeat_interleave,
)  # fmt: skip


class NoHost(TorchDispatchMode):
    """Raise at what a graph cannot hold: numbers on their way to the host, or from it."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func.overloadpacket not in HOST, func
        if func.overloadpacket in (aten.index, aten.index_put, aten.index_put_):
            assert all(i is None or i.dtype != torch.bool for i in args[1]), func
        return func(*args, **(kwargs or {}))


def on_a_gpu(monkeypatch):
    """Take the GPU's form with tensors of the CPU; return the names of the kernels launched."""
    # torch's own looks at the numbers on a CPU, not on a GPU
    hot = lambda x, classes: (x[..., None] == torch.arange(classes)).long()  # noqa: E731
    monkeypatch.setattr(torch.nn.functional, "one_hot", hot)
    return gpu_form.take(monkeypatch)


@pytest.mark.parametrize("experiment", ["dreamer_debug", "dreamer_walker", "dreamer_atari100k"])
def test_a_captured_update_never_asks_the_host(experiment, tmp_path, monkeypatch):
    small = (
        "size=null", "rssm={deter: 128, hidden: 32, stoch: 8, classes: 4, blocks: 4}",
        "encoder={units: 16, depth: 2}", "decoder={units: 16, depth: 2, blocks: 4}",
        "reward.units=16", "cont.units=16", "actor.units=16", "critic.units=16", "imagine=3",
    )  # fmt: skip
    loop = open_loop(
        tmp_path / "r", f"+experiment={experiment}", "device=cpu", "precision=fp32",
        "eval.every_frames=0", "buffers.replay.batch=2",
        "buffers.replay.length=5", "buffers.replay.min_steps=40", "buffers.replay.capacity=1000",
        "env.num_envs=2", *(f"workflow.{size}" for size in small),
    )  # fmt: skip
    run_for(loop, 40)
    batch, agent = batch_of(loop), loop.workflow
    launched = on_a_gpu(monkeypatch)
    weights = Bf16Weights(agent, lay_out(agent, bf16=True))
    state = agent.initial_state(2)
    first, obs = batch.is_first[:, 0], {k: v[:, 0] for k, v in batch.obs.items()}
    with torch.autocast("cpu", torch.bfloat16), weights.swapped_in(), NoHost():
        agent.update(batch)
        with torch.no_grad():
            agent.decide(obs, first, state, Mode.TRAIN)
    assert launched > {"hidden_kernel", "hidden_back_kernel", "step_kernel", "recurrence_kernel"}


def test_numbers_on_their_way_to_the_host_are_seen():
    x = torch.ones(3)
    for ask in (lambda: float(x.sum()), lambda: x[x > 0], lambda: torch.tensor([1.0])):
        with pytest.raises(AssertionError), NoHost():
            ask()
