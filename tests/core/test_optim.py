"""The optimizers: against torch's own, against formulas, in single operations and as a kernel."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from dreamlab.core.optim import Adam, LaProp, OptimConfig, Optimizer


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def loss_of(model: nn.Module) -> torch.Tensor:
    torch.manual_seed(1)
    return model(torch.randn(5, 3)).square().mean()


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adam_takes_torchs_steps(decay):
    ours, theirs = net(), net()
    opt = Optimizer(OptimConfig(lr=1e-2, weight_decay=decay), ours.parameters())
    peer = torch.optim.AdamW(theirs.parameters(), lr=1e-2, weight_decay=decay)
    for _ in range(5):
        opt.step(loss_of(ours))
        peer.zero_grad()
        loss_of(theirs).backward()
        peer.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_single_operations_take_the_same_steps_as_the_kernel():
    fused, plain = net(), net()
    config = OptimConfig(lr=1e-2, weight_decay=0.1)
    kernel, single = Adam(config, list(fused.parameters())), Adam(config, list(plain.parameters()))
    for step in range(4):
        for inner in (kernel, single):
            inner.set_lr(1e-2 / (step + 1))
        grads = torch.autograd.grad(loss_of(fused), kernel.params)
        kernel.step(grads)
        single.allocate().add_(1)
        single._plain(zip(single.params, grads, single.mean, single.square, strict=True))
    for a, b in zip(fused.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_laprop_normalises_before_it_averages():
    p = nn.Parameter(torch.tensor([2.0, -1.0]))
    opt = LaProp(OptimConfig("laprop", lr=0.1, eps=1e-20), [p])
    mean, square, theta = torch.zeros(2), torch.zeros(2), p.detach().clone()
    for t, grad in enumerate((torch.tensor([0.5, -3.0]), torch.tensor([0.1, 1.0])), 1):
        opt.step([grad])
        square = 0.999 * square + 0.001 * grad.square()
        mean = 0.9 * mean + 0.1 * grad / ((square / (1 - 0.999**t)).sqrt() + 1e-20)
        theta = theta - 0.1 * mean / (1 - 0.9**t)
        torch.testing.assert_close(p.detach(), theta)


def test_laprop_warms_up_from_zero_and_clips_each_tensor_by_its_own_size():
    big, small = nn.Parameter(torch.full((4,), 10.0)), nn.Parameter(torch.full((4,), 0.1))
    opt = LaProp(OptimConfig("laprop", lr=1.0, agc=0.3, warmup=2), [big, small])
    grads = [torch.ones(4), torch.ones(4)]
    assert opt._clipped(grads)[0].norm() == 2.0  # shorter than 0.3 * 20: left alone
    torch.testing.assert_close(opt._clipped(grads)[1].norm(), torch.tensor(0.3 * 0.2))
    opt.step(grads)
    assert (big == 10).all()  # the first step has a learning rate of zero
    opt.step(grads)
    assert (big < 10).all()


@pytest.mark.parametrize("kind", ["adam", "laprop"])
def test_a_restored_optimizer_goes_on_as_if_it_had_not_stopped(kind):
    model = net()
    opt = Optimizer(OptimConfig(kind, lr=1e-2), model.parameters())
    opt.step(loss_of(model))
    opt.set_lr(5e-3)
    twin = copy.deepcopy(model)
    other = Optimizer(OptimConfig(kind, lr=1e-2), twin.parameters())
    other.load_state_dict(opt.state_dict())
    for m, o in ((model, opt), (twin, other)):
        o.step(loss_of(m))
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b)
