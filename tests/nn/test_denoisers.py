"""Denoisers: sizes of the published networks, and who sees whom."""

from __future__ import annotations

import pytest
import torch

from dreamlab.core.config import Part
from dreamlab.core.errors import ConfigError
from dreamlab.nn.denoiser import Denoiser, DenoiserSizes
from dreamlab.nn.unet1d import UNet1d, UNet1dConfig

KINDS = {
    "resnet_mlp": {"width": 16, "time_dim": 8},
    "unet1d": {"widths": (8, 16), "time_dim": 8},
    "denoising_transformer": {"dim": 16, "heads": 2, "layers": 2, "dropout": 0.0},
}
SIZES = DenoiserSizes(horizon=4, width=2, tokens=3, cond_dim=5)


def make(kind: str) -> Denoiser:
    torch.manual_seed(0)
    return Part.load(kind, KINDS[kind], kind=Denoiser).build(SIZES).eval()


def inputs(rows: int = 6):
    return torch.randn(rows, 4, 2), torch.arange(rows) * 7.0, torch.randn(rows, 3, 5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_output_depends_on_sequence_time_and_condition(kind):
    net, (x, time, cond) = make(kind), inputs()
    out = net(x, time, cond)
    assert out.shape == x.shape
    for other in ((x + 1, time, cond), (x, time + 3, cond), (x, time, cond + 1)):
        assert not torch.equal(net(*other), out)


@pytest.mark.parametrize("kind", KINDS)
def test_every_weight_gets_a_gradient(kind):
    net = make(kind)
    net(*inputs()).square().sum().backward()
    assert not [n for n, p in net.named_parameters() if p.grad is None or not p.grad.any()]


@pytest.mark.parametrize(
    ("widths", "time_dim", "cond_dim", "count"),
    [((256, 512, 1024), 256, 20, 65_783_298), ((512, 1024, 2048), 128, 66, 251_511_938)],
)
def test_the_u_net_has_as_many_weights_as_the_published_one(widths, time_dim, cond_dim, count):
    with torch.device("meta"):
        net = UNet1d(UNet1dConfig(widths, time_dim), DenoiserSizes(16, 2, 2, cond_dim))
    assert sum(p.numel() for p in net.parameters()) == count


def test_a_sequence_that_cannot_be_halved_is_refused():
    with pytest.raises(ConfigError, match="10 must be a multiple of 4"):
        UNet1d(UNet1dConfig(), DenoiserSizes(10, 2, 2, 3))


def test_an_action_sees_itself_and_what_was_before():
    net, (x, time, cond) = make("denoising_transformer"), inputs(1)
    x.requires_grad_()
    cond.requires_grad_()
    for step in range(4):
        at_x, at_cond = torch.autograd.grad(net(x, time, cond)[0, step].sum(), (x, cond))
        seen, looked = (g[0].abs().sum(-1) > 0 for g in (at_x, at_cond))
        assert seen.tolist() == [i <= step for i in range(4)]
        assert looked.tolist() == [j <= step for j in range(3)]
