"""`fully_shard` as updates use it: several losses, modules called in loops, frozen modules.

Every case computes the same with plain and with sharded weights, in two processes.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dreamlab import build
from dreamlab.core import sharding, world
from dreamlab.core.errors import ConfigError
from dreamlab.core.sharded_init import shard_module
from dreamlab.nn.lstm import OneBiasLSTM
from dreamlab.nn.normed import EnsembleNormedMLP
from dreamlab.nn.target import TargetNetwork, passed_through
from tests.distributed.ranks import run_ranks
from tests.distributed.test_sharding import CASES, SHARDED
from tests.helpers import config_of, open_loop

CPU = torch.device("cpu")


class Net(nn.Module):
    """Layers of odd sizes: one is called several times, one never."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.core, self.head = nn.Linear(5, 7), nn.Linear(7, 7), nn.Linear(7, 3)
        self.act = nn.ReLU(inplace=True)  # in place on a view, if there are three dimensions
        self.unused = nn.Linear(7, 7)

    def states(self, x: Tensor) -> Tensor:
        h = self.act(self.into(x))
        for _ in range(3):
            h = h + self.act(self.core(h))
        return h


def weights(*modules: nn.Module) -> list[Tensor]:
    return [p for m in modules for p in m.parameters()]


def gathered(net: Any) -> list[Tensor]:
    """Return the tensors that torch gathers weights into."""
    sharding.gather(net.core)
    found = list(net.core.parameters())
    assert all(map(size, found))
    net.core.reshard()
    return found


def size(x: Tensor) -> int:
    return x.untyped_storage().size()


def several_losses(net: Net, x: Tensor) -> list[Any]:
    """Return gradients of losses that share weights and states, as updates compute them."""
    states = net.states(x)
    here = states.detach().requires_grad_()
    first, second = net.head(here).square().mean(), net.head(here.sin()).mean()
    at_head = [*weights(net.head), here]
    kept = sharding.gradients([first], at_head, keep_graph=True)
    both = sharding.gradients([first + second], at_head)
    back = sharding.gradients([states], weights(net), [both[-1]])
    with passed_through(net.core):
        dreamt = net.head(net.states(x)).sum()
    frozen = sharding.gradients([dreamt], weights(net.into, net.head))
    (slope,) = torch.autograd.grad(net.head(net.states(here[..., :5])).sum(), here)
    after = sharding.gradients([net.states(x).square().sum()], weights(net))
    return [*kept[:-1], *both[:-1], *back, *frozen, *after, kept[-1], both[-1], slope]


def in_two(case: Callable[[int], Any], folder: Any) -> None:
    assert all(run_ranks(case, folder))


def test_gradients_of_several_losses_are_parts_of_the_mean(tmp_path):
    def case(rank: int) -> bool:
        torch.manual_seed(0)
        plain, x = Net(), torch.randn(4, 6, 5) + rank
        net = nn.Sequential(deepcopy(plain))
        shard_module(net, 1, CPU)
        own = torch.autograd.grad(plain.states(x).sum(), plain.core.weight)[0]
        expected = several_losses(plain, x)
        for _ in range(2):
            found = several_losses(net[0], x)
            for i, (a, b) in enumerate(zip(expected, found, strict=True)):
                assert (a is None) == (b is None), i
                if a is None:
                    continue
                split = i < len(expected) - 3
                mean = world.mean(a) if split else a
                assert b.shape != a.shape or not split, "a part"
                placement = next(p for p in net.parameters() if p.shape == a.shape) if split else a
                mine = sharding.cut(mean, placement.placements[0]) if split else mean
                torch.testing.assert_close(b, mine, rtol=1e-5, atol=1e-6)
        # what the bridge is for: this is the gradient of this process alone, and whole
        whole = gathered(net[0])[0]
        alone = torch.autograd.grad(net[0].states(x).sum(), whole)[0]
        torch.testing.assert_close(alone, own)
        return True

    in_two(case, tmp_path)


def test_gathered_weights_are_freed_after_use(tmp_path):
    def case(rank: int) -> bool:
        net = nn.Sequential(Net())
        shard_module(net, 1, CPU)
        loss = net[0].states(torch.randn(4, 5)).sum()
        wholes = gathered(net[0])
        assert sum(map(size, wholes)) == 0, "kept for the backward pass"
        grads = sharding.gradients([loss], weights(net))
        assert sum(g is not None for g in grads) == 4
        assert sum(map(size, wholes)) == 0
        parts = sharding.parts(list(net.parameters()))
        assert sum(p.numel() for p in parts) < 0.7 * sum(p.numel() for p in net.parameters())
        return True

    in_two(case, tmp_path)


class Reader(nn.Module):
    """Reads its own weight in a method."""

    weight_methods = ("twice",)

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def twice(self, x: Tensor) -> Tensor:
        return x @ self.weight @ self.weight


def lstm(module: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(module, OneBiasLSTM)
    memory = (x[:, 0, :3], x[:, 0, 1:4])
    first = torch.zeros(x.shape[:2], dtype=torch.bool)
    step = module.step(x[:, 0], memory)[0]
    return module(x, memory, first)[0].square().sum() + step.sum()


def ensemble(module: nn.Module, x: Tensor) -> Tensor:
    pair = torch.tensor([2, 0])
    return module(x, pair).square().sum() + module(x.sin(), learn=False).sum() + module(x).sum()


MODULES: dict[str, tuple[Callable[[], nn.Module], Callable[[Any, Tensor], Tensor]]] = {
    "lstm": (lambda: OneBiasLSTM(4, 3), lstm),
    "ensemble": (lambda: EnsembleNormedMLP(3, [4, 6], 2, 0.0), ensemble),
    "attention": (
        lambda: nn.MultiheadAttention(4, 2, batch_first=True),
        lambda m, x: m(x, x, x)[0].square().sum(),
    ),
    "method": (Reader, lambda m, x: m.twice(x).square().sum()),
    "gru": (lambda: nn.GRUCell(4, 4), lambda m, x: m(m(x[0], x[1]), x[2]).square().sum()),
}


@pytest.mark.parametrize("name", list(MODULES))
def test_modules_that_read_weights_elsewhere(name, tmp_path):
    make, loss = MODULES[name]

    def case(rank: int) -> bool:
        torch.manual_seed(0)
        plain, x = make(), torch.randn(3, 5, 4) + rank
        net = nn.Sequential(deepcopy(plain))
        shard_module(net, 2, CPU)
        expected = sharding.gradients([loss(plain, x)], list(plain.parameters()))
        found = sharding.gradients([loss(net[0], x)], weights(net))
        for p, a, b in zip(net.parameters(), expected, found, strict=True):
            assert a is not None
            assert b is not None
            mean, placements = world.mean(a), getattr(p, "placements", None)
            mine = sharding.cut(mean, placements[0]) if placements else mean
            torch.testing.assert_close(
                b if placements else world.mean(b), mine, rtol=1e-5, atol=1e-6
            )
        return True

    in_two(case, tmp_path)


def test_a_target_network_follows_and_weights_are_bounded_in_parts(tmp_path):
    def case(rank: int) -> bool:
        torch.manual_seed(0)
        plain = nn.ModuleList([nn.Embedding(5, 3), nn.Embedding(5, 3)])
        TargetNetwork(plain[0], plain[1]).update(0.25)
        torch.manual_seed(0)
        net = nn.ModuleList([nn.Embedding(5, 3), nn.Embedding(5, 3)])
        target = TargetNetwork(net[0], net[1])
        shard_module(net, 1, CPU)
        target.update(0.25)
        for module in (plain, net):
            weight: Any = module[0].weight
            with torch.no_grad():  # as TD-MPC2 bounds its tasks
                norm = weight.norm(dim=1, keepdim=True)
                weight.mul_((1 / (norm + 1e-7)).clamp(max=1.0))
        rows = torch.arange(5)
        torch.testing.assert_close(net[0](rows), plain[0](rows))
        return True

    in_two(case, tmp_path)


def leave_or_go_on(rank: int) -> None:
    """Let rank 1 end; rank 0 may hear of it in any call, even before both are connected."""
    net, x = nn.Sequential(nn.Linear(64, 64)), torch.randn(2, 64)
    shard_module(net, 1, CPU)
    net(x)
    if rank == 1:
        os._exit(0)
    for _ in range(100):
        net(x)


def test_a_lost_peer_is_told_in_a_sentence_though_torch_gathers(tmp_path):
    def case(rank: int) -> None:
        with pytest.raises(RuntimeError) as caught:
            leave_or_go_on(rank)
        (tmp_path / "told").write_text(str(world.peer_lost(caught.value)))
        os._exit(0)

    with pytest.raises(AssertionError, match="rank 1"):  # both end without a result
        run_ranks(case, tmp_path)
    assert "another process of this run has ended" in (tmp_path / "told").read_text()
    assert world.peer_lost(RuntimeError("a shape does not fit")) is None


def test_what_cannot_be_sharded_is_an_error(tmp_path):
    def case(rank: int) -> bool:
        tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        tied[1].weight = tied[0].weight
        with pytest.raises(ConfigError, match="shares a weight"):
            shard_module(tied, 1, CPU)
        with pytest.raises(ConfigError, match="LSTM cannot be sharded"):
            shard_module(nn.Sequential(nn.LSTM(4, 4)), 1, CPU)
        with pytest.raises(ConfigError, match="max_norm"):
            shard_module(nn.Sequential(nn.Embedding(4, 4, max_norm=1.0)), 1, CPU)
        return True

    in_two(case, tmp_path)


def test_rank_0_alone_has_the_whole_average(tmp_path):
    loop = open_loop(tmp_path / "run", *CASES["unet"])
    config, spec = config_of(*CASES["unet"], *SHARDED), loop.workflow.spec

    def case(rank: int) -> bool:
        workflow = build.build_workflow(config, spec)
        (opt,) = workflow.optimizers.values()
        opt.allocate()
        for average in opt.average:
            average.mul_(0.5)
        named = {k for k, _ in workflow.named_parameters()}
        whole = sharding.whole_state(workflow)
        before = {k: v.clone() for k, v in whole.items() if k in named}
        with sharding.assembled(workflow):
            if rank == 0:
                with world.alone(), workflow.averaged():
                    for name, p in workflow.named_parameters():
                        assert not hasattr(p, "device_mesh"), name
                        assert torch.equal(p, before[name] * 0.5), name
        after = sharding.whole_state(workflow)
        assert sharding.is_sharded(workflow)
        return all(torch.equal(v, after[k]) for k, v in before.items())

    in_two(case, tmp_path / "r")


def test_a_state_of_two_processes_is_read_by_three(tmp_path):
    loop = open_loop(tmp_path / "run", *CASES["tdmpc2"])
    spec = loop.workflow.spec

    def saved(rank: int) -> bytes:
        workflow = build.build_workflow(config_of(*CASES["tdmpc2"], *SHARDED, "seed=3"), spec)
        for i, opt in enumerate(workflow.optimizers.values()):
            opt.allocate()
            for j, p in enumerate(opt.params):
                getattr(opt.inner, opt.inner.names[0])[j].copy_(p * (i + 1))
        file = io.BytesIO()
        torch.save(sharding.whole_state(workflow), file)
        return file.getvalue()

    kept = run_ranks(saved, tmp_path / "two")[0]
    three = ["distributed.processes=3", *SHARDED[1:]]

    def loaded(rank: int) -> bool:
        state = torch.load(io.BytesIO(kept), weights_only=True)
        workflow = build.build_workflow(config_of(*CASES["tdmpc2"], *three), spec)
        sharding.take_state(workflow, state)
        again = sharding.whole_state(workflow)
        if rank:
            return again == {}
        assert again.keys() == state.keys()
        for key, value in state.items():
            if isinstance(value, Tensor):
                assert torch.equal(again[key], value), key
        for key, opt in state["_extra_state"].items():
            for a, b in zip(opt["inner"]["mean"], again["_extra_state"][key]["inner"]["mean"],
                            strict=True):  # fmt: skip
                assert torch.equal(a, b)
        return True

    assert all(run_ranks(loaded, tmp_path / "three", size=3))
