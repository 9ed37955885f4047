"""The optimizers: against torch's own, against formulas, and no option without its effect."""

from __future__ import annotations

import copy
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dreamlab.core.config import Part, load
from dreamlab.core.errors import ConfigError
from dreamlab.core.optim import (
    PARTS,
    Adam,
    AdamConfig,
    AdamWConfig,
    Group,
    LaProp,
    LaPropConfig,
    Optimizer,
    add_grads,
    clip_each,
    gradients_at,
    optimizer_field,
    optimizer_part,
)

KINDS = sorted(PARTS)
ROOT = Path(__file__).parents[2]


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def loss_of(model: nn.Module, scale: float = 1.0) -> torch.Tensor:
    torch.manual_seed(1)
    return scale * model(torch.randn(5, 3)).square().mean()


def made(model: nn.Module, kind: str = "adam", **options: Any) -> Optimizer:
    names = {id(p): n for n, p in model.named_parameters()}
    return Optimizer(optimizer_part(kind, **options), model.parameters(), names)


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def moves(model: nn.Module, opt: Optimizer, num: int = 3, scale: float = 1.0) -> list[torch.Tensor]:
    """Take steps and return what they changed in all."""
    before = weights(model)
    for _ in range(num):
        opt.step(loss_of(model, scale))
    return [a - b for a, b in zip(weights(model), before, strict=True)]


# -- every kind against torch, or a formula -------------------------------------------------------

PEERS: list[tuple[str, dict[str, Any], Any, dict[str, Any]]] = [
    ("adam", {}, torch.optim.Adam, {}),
    ("adam", {"eps": 1e-3, "betas": (0.8, 0.9)}, torch.optim.Adam, {}),
    ("adamw", {"weight_decay": 0.1}, torch.optim.AdamW, {}),
    ("sgd", {}, torch.optim.SGD, {}),
    ("sgd", {"momentum": 0.9, "weight_decay": 0.1}, torch.optim.SGD, {}),
    ("sgd", {"momentum": 0.9, "nesterov": True}, torch.optim.SGD, {}),
    ("rmsprop", {}, torch.optim.RMSprop, {}),
    ("rmsprop", {"alpha": 0.9, "momentum": 0.5, "centered": True}, torch.optim.RMSprop, {}),
]


@pytest.mark.parametrize(("kind", "options", "peer", "more"), PEERS, ids=str)
def test_a_kind_takes_torchs_steps(kind, options, peer, more):
    ours, theirs = net(), net()
    opt = made(ours, kind, lr=1e-2, **options)
    reference = peer(theirs.parameters(), lr=1e-2, **options, **more)
    for _ in range(5):
        opt.step(loss_of(ours))
        reference.zero_grad()
        loss_of(theirs).backward()
        reference.step()
    torch.testing.assert_close(weights(ours), weights(theirs))


def test_single_operations_take_the_same_steps_as_the_kernel():
    fused, plain = net(), net()
    config = AdamWConfig(lr=1e-2, weight_decay=0.1)
    kernel, single = (Optimizer(config, m.parameters()).inner for m in (fused, plain))
    assert isinstance(single, Adam)
    for step in range(4):
        for inner in (kernel, single):
            inner.set_lr(1e-2 / (step + 1))
        grads = torch.autograd.grad(loss_of(fused), kernel.params)
        kernel.step(grads)
        single.allocate().add_(1)
        group = single.groups[0]
        with torch.no_grad():
            rows = (single.params, grads, single.mean, single.square)
            single._plain(group, rows, single.rate_of(group, 1.0))
    torch.testing.assert_close(weights(fused), weights(plain))


def test_a_decay_that_does_not_follow_the_learning_rate_is_a_share_of_each_weight():
    model = net()
    before = weights(model)
    made(model, "adamw", lr=0.0, weight_decay=0.25, decay_follows_lr=False).step(loss_of(model))
    torch.testing.assert_close(weights(model), [0.75 * w for w in before])


def test_laprop_normalises_before_it_averages():
    p = nn.Parameter(torch.tensor([2.0, -1.0]))
    opt = LaProp(LaPropConfig(lr=0.1, eps=1e-20), [p])
    mean, square, theta = torch.zeros(2), torch.zeros(2), p.detach().clone()
    for t, grad in enumerate((torch.tensor([0.5, -3.0]), torch.tensor([0.1, 1.0])), 1):
        opt.step([grad])
        square = 0.999 * square + 0.001 * grad.square()
        mean = 0.9 * mean + 0.1 * grad / ((square / (1 - 0.999**t)).sqrt() + 1e-20)
        theta = theta - 0.1 * mean / (1 - 0.9**t)
        torch.testing.assert_close(p.detach(), theta)


def test_laprop_decays_weights_beside_the_gradient():
    decayed, plain = (nn.Parameter(torch.tensor([2.0, -1.0])) for _ in range(2))
    grad = torch.tensor([0.5, -3.0])
    LaProp(LaPropConfig(lr=0.1), [plain]).step([grad])
    LaProp(LaPropConfig(lr=0.1, weight_decay=0.5), [decayed]).step([grad])
    shrunk = torch.tensor([2.0, -1.0]) * (0.1 * 0.5)
    torch.testing.assert_close(decayed.detach(), plain.detach() - shrunk)


# -- what every kind has --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_warms_up_from_zero(kind):
    model = net()
    opt = made(
        model, kind, lr=0.1, warmup_steps=2, **({"weight_decay": 0.0} if kind == "adamw" else {})
    )
    assert all(not m.any() for m in moves(model, opt, 1))  # the first has a rate of zero
    half = moves(model, opt, 1)
    assert any(m.any() for m in half)


def test_a_rate_on_the_way_up_is_a_share_of_it():
    slow, whole = net(), net()
    opt = made(slow, "sgd", lr=0.1, warmup_steps=4)
    moves(slow, opt, 2)  # of 0 and a quarter
    slow.load_state_dict(whole.state_dict())
    got, want = moves(slow, opt, 1), moves(whole, made(whole, "sgd", lr=0.05), 1)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_clips_by_the_global_norm(kind):
    model = net()
    opt = made(model, kind, clip=0.5)
    seen: list[Any] = []
    step = opt.inner.step
    opt.inner.step = lambda grads: (seen.append([g.clone() for g in grads]), step(grads))
    norm = opt.step(loss_of(model, 100.0))
    assert norm > 1.0  # as it was before
    torch.testing.assert_close(opt.grad_norm(seen[0]), torch.tensor(0.5))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_clips_each_gradient_by_its_parameter(kind):
    model = net()
    opt = made(model, kind, agc=0.3)
    seen: list[Any] = []
    step = opt.inner.step
    opt.inner.step = lambda grads: (seen.extend(g.clone() for g in grads), step(grads))
    limits = [0.3 * max(float(p.detach().norm()), 1e-3) for p in model.parameters()]
    opt.step(loss_of(model, 100.0))
    for g, limit in zip(seen, limits, strict=True):
        assert float(g.norm()) == pytest.approx(limit, rel=1e-5)


def test_a_gradient_that_is_short_enough_is_left_alone():
    big, small = torch.full((4,), 10.0), torch.full((4,), 0.1)
    one, none, other = clip_each([torch.ones(4), None, torch.ones(4)], [big, big, small], 0.3)
    assert none is None
    assert one is not None
    assert other is not None
    assert one.norm() == 2.0  # shorter than 0.3 * 20
    torch.testing.assert_close(other.norm(), torch.tensor(0.3 * 0.2))


# -- schedules ------------------------------------------------------------------------------------

HALF_WAVE = {0.0: 1.0, 0.25: 0.5 + 0.5 * math.cos(math.pi / 4), 0.5: 0.5, 1.0: 0.0}


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ("linear", {0.0: 1.0, 0.25: 0.75, 1.0: 0.0}),
        ({"_target_": "linear", "final": 0.1}, {0.0: 1.0, 0.5: 0.55, 1.0: 0.1}),
        ("cosine", HALF_WAVE),
        ({"_target_": "cosine", "final": 0.5}, {k: 0.5 + 0.5 * v for k, v in HALF_WAVE.items()}),
        ("constant", {0.0: 1.0, 0.7: 1.0}),
    ],
    ids=str,
)
def test_a_rate_falls_with_the_training(schedule, factors):
    opt = made(net(), lr=0.2, schedule=schedule)
    for progress, factor in factors.items():
        opt.at(progress)
        assert opt.lr == pytest.approx(0.2 * factor, abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_a_rate_falls_with_the_steps_of_its_optimizer(kind, name):
    model = net()
    options = {"weight_decay": 0.0} if kind == "adamw" else {}
    opt = made(model, kind, lr=0.01, schedule={"_target_": name, "steps": 3}, **options)
    assert all(m.any() for m in moves(model, opt, 1))
    moves(model, opt, 2)
    assert all(not m.any() for m in moves(model, opt, 1))  # nothing is left of it
    opt.at(0.1)
    assert opt.lr == 0.01  # it does not follow the training


def test_a_rate_falls_by_what_the_schedule_says():
    model, like = net(), net()
    opt = made(model, "sgd", lr=0.1, schedule={"_target_": "linear", "steps": 4, "final": 0.5})
    moves(model, opt, 2)
    model.load_state_dict(like.state_dict())
    want = moves(like, made(like, "sgd", lr=0.1 * (1 - 0.5 * 2 / 4)), 1)
    torch.testing.assert_close(moves(model, opt, 1), want)


def test_a_learning_rate_set_by_hand_stays_where_there_is_no_schedule():
    opt = made(net())
    opt.set_lr(5e-3)
    opt.at(0.5)
    assert opt.lr == 5e-3


# -- groups ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_has_its_own_learning_rate(kind):
    one, two = net(), net()
    grouped = made(one, kind, lr=0.01, groups={"0": {"lr_scale": 0.5}})
    parts = [
        Optimizer(optimizer_part(kind, lr=lr), two[i].parameters())
        for i, lr in ((0, 0.005), (2, 0.01))
    ]
    for _ in range(3):
        grouped.step(loss_of(one))
        named = dict(zip("ab", parts, strict=True))
        places = {k: opt.sources for k, opt in named.items()}
        for name, grads in gradients_at(places, [loss_of(two)]).items():
            named[name].follow(grads)
    torch.testing.assert_close(weights(one), weights(two))


def test_a_group_has_its_own_decay_and_epsilon():
    model = net()
    before = weights(model)
    groups = {"0": {"weight_decay": 0.5}, "0.bias": {"weight_decay": 0.0}, "2": {"eps": 1e9}}
    opt = made(model, "adamw", lr=0.1, weight_decay=0.1, groups=groups)
    zero = sum((0 * p).sum() for p in model.parameters())
    opt.step(zero)  # only decay moves anything
    shrink = [0.05, 0.0, 0.01, 0.01]  # the longest name that fits
    want = [w * (1 - s) for w, s in zip(before, shrink, strict=True)]
    torch.testing.assert_close(weights(model), want)
    first, _, second, _ = moves(model, opt, 1)
    assert first.abs().max() > 1e-3
    assert (second - -0.01 * want[2]).abs().max() < 1e-6  # its gradient is divided away


@pytest.mark.parametrize(
    ("kind", "groups", "message"),
    [
        ("adam", {"O": {"lr_scale": 0.5}}, "there is no parameter prefix 'O'"),
        ("adam", {"0": {}}, "optimizer.groups.0: is empty"),
        ("adam", {"0": {"weight_decay": 0.1}}, "has no effect with this kind; supported by adamw"),
        ("sgd", {"0": {"eps": 0.1}}, "optimizer.groups.0.eps: has no effect"),
    ],
)
def test_a_group_without_effect_is_refused(kind, groups, message):
    with pytest.raises(ConfigError, match=message):
        made(net(), kind, groups=groups)


# -- averages -------------------------------------------------------------------------------------


def test_averaged_weights_follow_and_take_the_weights_place_for_a_while():
    model = net()
    average = weights(model)
    opt = made(model, lr=0.1, ema=0.75)
    for _ in range(3):
        opt.step(loss_of(model))
        average = [0.75 * a + 0.25 * w for a, w in zip(average, weights(model), strict=True)]
    now = weights(model)
    with opt.averaged():
        torch.testing.assert_close(weights(model), average)
    assert all(torch.equal(a, b) for a, b in zip(weights(model), now, strict=True))
    torch.testing.assert_close(opt.average, average)
    opt.adopt_average()
    torch.testing.assert_close(weights(model), average)


def test_an_average_that_warms_up_forgets_the_weights_it_began_with():
    model = net()
    opt = made(model, lr=0.1, ema=0.7, ema_power=0.75)
    average = weights(model)
    for n in range(12):
        opt.step(loss_of(model))
        keep = min(0.7, 1 - (1 + n) ** -0.75)
        average = [keep * a + (1 - keep) * w for a, w in zip(average, weights(model), strict=True)]
        torch.testing.assert_close(opt.average, average)
        if n == 0:
            torch.testing.assert_close(opt.average, weights(model))


def test_a_warm_up_of_no_average_is_refused():
    with pytest.raises(ConfigError, match="ema_power has no effect without ema"):
        made(net(), ema_power=0.75)


# -- several at once ------------------------------------------------------------------------------


def test_gradients_of_several_optimizers_come_before_anything_moves():
    first, second = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.tensor(3.0))
    names = {"a": first, "b": second}
    opts = {k: Optimizer(optimizer_part("sgd", lr=1.0), [p]) for k, p in names.items()}
    found = gradients_at({k: opt.sources for k, opt in opts.items()}, [first * second])
    norms = [float(opts[k].follow(grads)) for k, grads in found.items()]
    assert norms == [3.0, 2.0]
    assert (first.item(), second.item()) == (2.0 - 3.0, 3.0 - 2.0)


def test_gradients_of_two_losses_add_up():
    both, one, none = (nn.Parameter(torch.tensor(x)) for x in (2.0, 3.0, 5.0))
    places = {"a": [both, one, none]}
    found = [gradients_at(places, [loss])["a"] for loss in (both * 3, both * one)]
    total = add_grads(found)
    assert total[2] is None
    assert [float(x) for x in total if x is not None] == [6.0, 2.0]
    assert [float(x) for x in found[0] if x is not None] == [3.0]  # left as they were


def test_gradients_that_met_on_the_way_go_back_together():
    weight = nn.Parameter(torch.tensor([2.0, 3.0]))
    made, aside = weight * weight, torch.zeros(2)
    here = made.detach().requires_grad_()
    losses = [here.sum(), (here * here).sum()]
    met = add_grads(
        [gradients_at({"here": [here, aside.requires_grad_()]}, [x])["here"] for x in losses]
    )
    whole = torch.autograd.grad(made.sum() + (made * made).sum(), weight, retain_graph=True)
    back = gradients_at({"weight": [weight]}, [made, aside], met)["weight"]
    torch.testing.assert_close(back, list(whole))


# -- configuration --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Holder:
    optimizer: Part = optimizer_field("laprop", lr=1e-2, agc=0.3)


def test_a_kind_is_chosen_by_name_and_options_of_the_default_stay_with_it():
    assert Optimizer(load(Holder, {}, "w").optimizer, net().parameters()).config.agc == 0.3
    kept = load(Holder, {"optimizer": {"lr": 1e-3}}, "w").optimizer
    assert (kept.target, kept.config) == ("laprop", LaPropConfig(lr=1e-3, agc=0.3))
    other = load(Holder, {"optimizer": {"_target_": "adam", "lr": 1e-3}}, "w").optimizer
    assert Optimizer(other, net().parameters()).config == AdamConfig(lr=1e-3)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"_target_": "adam", "weight_decay": 0.1}, "no AdamConfig option 'weight_decay'"),
        ({"_target_": "adam", "momentum": 0.9}, "no AdamConfig option 'momentum'"),
        ({"_target_": "sgd", "betas": (0.9, 0.9)}, "no SGDConfig option 'betas'"),
        ({"_target_": "sgd", "eps": 1e-8}, "no SGDConfig option 'eps'"),
        ({"_target_": "sgd", "nesterov": True}, "nesterov needs momentum"),
        ({"_target_": "rmsprop", "weight_decay": 0.1}, "no RMSpropConfig option 'weight_decay'"),
        ({"momentum": 0.9}, "no LaPropConfig option 'momentum'"),
        ({"_target_": "adm"}, "there is no part 'adm'. Did you mean 'adam'"),
        ({"schedule": {"final": 0.1}}, "no ConstantConfig option 'final'"),
        ({"schedule": {"_target_": "linear", "steps": 0}}, "steps: must be at least 1, got 0"),
    ],
    ids=str,
)
def test_an_option_that_a_kind_would_not_use_is_refused(node, message):
    with pytest.raises(ConfigError, match=message):
        load(Holder, {"optimizer": node}, "w")


class Signed(LaProp):
    """A kind of one's own: only the sign of a gradient counts."""

    def move(self, group: Group, grads: Any, pace: Any) -> None:
        for i in group.index:
            self.params[i].sub_(self.rate_of(group, pace).float() * grads[i].sign())


def test_a_kind_of_ones_own_is_named_by_its_path():
    model = net()
    opt = Optimizer(optimizer_part(f"{__name__}.Signed", lr=0.5), model.parameters())
    for move in moves(model, opt, 1):
        torch.testing.assert_close(move.abs(), torch.full_like(move, 0.5))


@pytest.mark.slow
def test_compiled_steps_are_the_plain_ones():
    command = [sys.executable, "-m", "tests.core.compiled"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["same"], done.stderr[-3000:]


# -- state ----------------------------------------------------------------------------------------

EVERYTHING: dict[str, Any] = {
    "warmup_steps": 4, "ema": 0.9, "ema_power": 0.75, "clip": 0.1, "agc": 0.3,
    "groups": {"2": {"lr_scale": 2.0}}, "schedule": {"_target_": "cosine", "steps": 9},
}  # fmt: skip


@pytest.mark.parametrize("options", [{}, EVERYTHING], ids=["plain", "everything"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_optimizer_goes_on_as_if_it_had_not_stopped(kind, options):
    model = net()
    opt = made(model, kind, lr=1e-2, **options)
    opt.step(loss_of(model))
    opt.set_lr(5e-3)
    twin = copy.deepcopy(model)
    other = made(twin, kind, lr=1e-2, **options)
    other.load_state_dict(copy.deepcopy(opt.state_dict()))
    for _ in range(4):
        for m, o in ((model, opt), (twin, other)):
            o.step(loss_of(m))
    for a, b in zip((*weights(model), *opt.average), (*weights(twin), *other.average), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("kind", KINDS)
def test_a_restarted_optimizer_steps_as_a_new_one_from_the_same_weights(kind):
    torch.manual_seed(0)
    old, new = (nn.Linear(3, 2) for _ in range(2))
    made = [Optimizer(optimizer_part(kind, lr=1e-2), m.parameters()) for m in (old, new)]
    x = torch.randn(4, 3)
    for _ in range(3):
        made[0].step(old(x).square().mean())
    new.load_state_dict(old.state_dict())
    made[0].restart()
    for module, opt in zip((old, new), made, strict=True):
        opt.step(module(x).square().mean())
    for a, b in zip(old.parameters(), new.parameters(), strict=True):
        assert torch.equal(a, b)
