"""What processes tell each other: tensors with their gradients, numbers, plain data."""

from __future__ import annotations

import pytest
import torch

from dreamlab.core import rng, world
from dreamlab.core.errors import LabError
from dreamlab.core.optim import AdamConfig, Optimizer
from dreamlab.ops.pooled import pooled_mean, pooled_standard, pooled_std_mean
from tests.distributed.ranks import run_ranks


def test_two_processes_agree(tmp_path):
    def tell(rank: int):
        x = torch.arange(3.0) + rank
        x.requires_grad_()
        y = world.mean(x)
        (y * (rank + 1)).sum().backward()
        with world.alone():
            own = world.mean(x), world.gather("alone"), world.size()
        assert torch.equal(own[0], x)
        assert own[1:] == (["alone"], 1)
        assert torch.equal(y.detach(), torch.tensor([0.5, 1.5, 2.5]))
        assert torch.equal(x.grad, torch.full((3,), 1.5)), "half of each process's pull"
        assert world.gathered(x).tolist() == [0, 1, 2, 1, 2, 3]
        assert world.largest(x).tolist() == [1, 2, 3]
        assert world.total(torch.tensor(rank + 1)) == 3
        assert world.gather({"rank": rank}) == [{"rank": 0}, {"rank": 1}]
        assert world.broadcast(("said by", rank)) == ("said by", 0)
        assert world.agree([rank, 2.0]) == [1.0, 4.0]
        assert world.any_of(rank == 1)
        assert not world.all_of(rank == 1)
        return world.derive(7, 0), world.derive(7, 2, 3), world.is_main(), world.size()

    first, second = run_ranks(tell, tmp_path)
    assert first[:2] == (rng.derive(7, 0), rng.derive(7, 2, 3)), "rank 0 has the seeds of one"
    assert not set(first[:2]) & set(second[:2])
    assert (first[2:], second[2:]) == ((True, 2), (False, 2))


def test_one_process_hears_itself_at_once():
    x = torch.ones(2, requires_grad=True)
    assert world.mean(x) is x
    assert world.total(x) is x
    assert world.largest(x) is x
    assert world.gathered(x) is x
    assert (world.rank(), world.size(), world.is_main()) == (0, 1, True)
    assert world.agree([1, 2]) == [1, 2]
    assert world.gather(3) == [3]


def test_statistics_of_parts_are_those_of_the_whole(tmp_path):
    data = torch.randn(9, 4, dtype=torch.float64)

    def part(rank: int):
        mine = data[:3] if rank else data[3:]  # one has more than the other
        std, mean = pooled_std_mean(mine)
        return std, mean, world.mean(pooled_mean(mine))

    def half(rank: int):
        mine = data[rank:8:2].clone().requires_grad_()
        loss = (pooled_standard(mine) ** 3 * torch.arange(4)).mean()
        return torch.autograd.grad(loss, mine)[0]

    for std, mean, again in run_ranks(part, tmp_path):
        torch.testing.assert_close(std, data.std())
        torch.testing.assert_close(mean, data.mean())
        torch.testing.assert_close(again, data.mean())
    whole = data[:8].clone().requires_grad_()
    loss = (pooled_standard(whole) ** 3 * torch.arange(4)).mean()
    expected = torch.autograd.grad(loss, whole)[0]
    for rank, grad in enumerate(run_ranks(half, tmp_path)):
        torch.testing.assert_close(grad / 2, expected[rank::2])


@pytest.mark.parametrize("accumulate", [1, 3])
def test_an_optimizer_follows_the_mean_of_all_gradients(accumulate, tmp_path):
    def steps(rows: torch.Tensor) -> torch.Tensor:
        weight, unused = torch.nn.Parameter(torch.ones(4)), torch.nn.Parameter(torch.ones(2))
        opt = Optimizer(AdamConfig(lr=0.1, clip=0.5), [weight, unused])
        opt.accumulate = accumulate
        for part in rows.unflatten(1, (3, 2)).unbind(1):
            opt.step((part @ weight).square().mean())
        assert torch.equal(unused, torch.ones(2)), "no loss has passed it"
        return weight.detach()

    data = torch.randn(2, 6, 4)
    first, second = run_ranks(lambda rank: steps(data[rank : rank + 1]), tmp_path)
    assert torch.equal(first, second)
    torch.testing.assert_close(first, steps(data))


def test_a_process_whose_peer_is_gone_says_so(tmp_path):
    def run(rank: int):
        world.barrier()  # both are connected
        if rank == 1:
            import os

            os._exit(0)
        with pytest.raises(world.PeerLostError, match="another process of this run has ended"):
            world.agree([1.0])
        raise LabError("it ended here")

    with pytest.raises(AssertionError, match="it ended here"):
        run_ranks(run, tmp_path)
