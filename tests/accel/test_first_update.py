"""The first fast update is compared with the reference, tensor by tensor, and leaves no trace."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dreamlab.accel import dispatch
from dreamlab.accel.bf16_weights import Bf16Weights
from dreamlab.accel.cuda_graphs import lay_out
from dreamlab.accel.first_update import (
    LIMITS,
    compare_with_reference,
    move_off_zero,
    undone,
    wrong_tensors,
)
from dreamlab.core import rng, world
from dreamlab.core.errors import LabError
from dreamlab.core.tree import tree_leaves
from dreamlab.core.workflow import marked
from dreamlab.core.world import World
from tests.contract.found import PAIRS
from tests.contract.test_workflows import make
from tests.helpers import metrics, open_loop, run_for

OPTIONS = (
    "+experiment=dreamer_debug", "device=cpu", "eval.every_frames=0", "report.every_frames=0",
    "log.every_frames=20",
)  # fmt: skip


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    loop = open_loop(tmp_path_factory.mktemp("run") / "r", *OPTIONS)
    while not loop.parts.buffers["replay"].ready():
        loop._do("collect")
    return loop


@pytest.fixture
def loop(prepared):
    """A loop before its first update."""
    with undone(prepared.workflow):
        yield prepared


class Updates:
    """A workflow's update on one batch, in its two forms, each counted."""

    def __init__(self, loop: Any) -> None:
        self.agent = loop.workflow
        self.batch = loop.parts.buffers["replay"].sample().map(lambda x: x.clone())
        self.calls = {"plain": 0, "fast": 0}

    def plain(self) -> Any:
        self.calls["plain"] += 1
        assert dispatch.Forms.reference
        return self.agent.update(self.batch)

    def fast(self) -> Any:
        self.calls["fast"] += 1
        assert not dispatch.Forms.reference
        return self.agent.update(self.batch)

    def compare(self, fast: Callable[[], Any] | None = None, dtype: Any = torch.float32) -> Any:
        return compare_with_reference(self.agent, dtype, self.plain, fast or self.fast)


def held(agent: Any) -> dict[str, Any]:
    """Return every number that a workflow and chance consist of."""
    return copy.deepcopy(dict(tree_leaves([agent.state_dict(), rng.get_state()])))


def assert_same(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert a.keys() == b.keys()
    for key, value in a.items():
        same = torch.equal(value, b[key]) if torch.is_tensor(value) else value == b[key]
        assert same, key


def test_a_right_update_is_taken_once_and_nothing_else_has_happened(loop):
    updates = Updates(loop)
    agent, before, chance = (
        loop.workflow,
        copy.deepcopy(loop.workflow.state_dict()),
        rng.get_state(),
    )
    untouched = held(agent)
    out, after = updates.fast(), held(agent)
    agent.load_state_dict(before)
    rng.set_state(chance)
    assert_same(untouched, held(agent))
    checked = updates.compare()
    assert_same(after, held(agent))
    assert_same(dict(tree_leaves(out)), dict(tree_leaves(checked)))
    assert updates.calls == {"plain": 1, "fast": 3}  # one of them was ours
    assert all(opt.heard is None for opt in agent.optimizers.values())


def test_a_run_with_the_check_is_the_run_without(tmp_path):
    loops = [open_loop(tmp_path / name, *OPTIONS) for name in ("with", "without")]
    for loop in loops:
        rng.seed_all(0)
        if loop is loops[0]:
            checked_once(loop.workflow)
        run_for(loop, 60)
    assert loops[0].counters.updates > 3
    assert metrics(tmp_path / "with") == metrics(tmp_path / "without")
    for key, value in tree_leaves(loops[0].workflow.state_dict()):
        other = dict(tree_leaves(loops[1].workflow.state_dict()))[key]
        assert torch.equal(value, other) if torch.is_tensor(value) else value == other, key


def checked_once(agent: Any) -> None:
    """Let the first update of a workflow be compared, as on a GPU."""
    method, done = agent.update, []

    def update(batch: Any) -> Any:
        if done:
            return method(batch)
        done.append(True)
        once = lambda: method(batch)  # noqa: E731
        return compare_with_reference(agent, torch.float32, once, once)

    object.__setattr__(agent, "update", update)


@contextmanager
def gradient(agent: Any, name: str, wrong: Callable[[Any], Any]):
    """Let the gradient of one parameter be wrong inside the block."""
    handle = agent.get_parameter(name).register_hook(wrong)
    try:
        yield
    finally:
        handle.remove()


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("model.rssm.cell.gates.weight", lambda g: -g),
        ("model.reward.net.0.linear.weight", lambda g: g * 1.5),  # below a head that is zero
        ("critic.net.0.linear.weight", lambda g: g.flip(0)),
        ("actor.net.0.norm.scale", torch.zeros_like),
    ],
)
def test_a_wrong_gradient_of_one_tensor_is_named(name, wrong, loop):
    updates = Updates(loop)
    untouched = held(loop.workflow)

    def fast() -> Any:
        with gradient(loop.workflow, name, wrong):
            return updates.fast()

    with pytest.raises(LabError) as error:
        updates.compare(fast)
    text = str(error.value)
    assert f"{name} has a gradient of length" in text
    assert "at a cosine of" in text
    assert "accel=off" in text
    assert text.count("has a gradient") == 1
    assert_same(untouched, held(loop.workflow))


def test_a_wrong_loss_is_named(loop):
    updates = Updates(loop)

    def fast() -> Any:
        found, extras = updates.fast()
        return {**found, "loss/rew": found["loss/rew"] + 0.5}, extras

    with pytest.raises(LabError, match=r"loss/rew = .*, in the reference"):
        updates.compare(fast)


def test_a_wrong_step_of_the_optimizer_is_named(loop, monkeypatch):
    updates, opt = Updates(loop), loop.workflow.optimizers["agent"]

    def twice(grads: Any) -> Any:
        opt.fused = None
        norm = opt.follow(grads)
        opt.fused = twice
        with torch.no_grad():
            opt.params[3].mul_(1.01)
        return norm

    monkeypatch.setattr(opt, "fused", twice)
    name = next(n for n, p in loop.workflow.named_parameters() if p is opt.params[3])
    with pytest.raises(LabError, match=f"{name} has a change of length"):
        updates.compare()


def test_a_slow_critic_that_stays_is_named(loop, monkeypatch):
    updates = Updates(loop)

    def fast() -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(loop.workflow.target_network, "update", lambda share: None)
            return updates.fast()

    with pytest.raises(LabError, match=r"slow\..* has a change of length 0, in the reference"):
        updates.compare(fast)


def test_a_critic_whose_gradient_bfloat16_turns_a_little_is_let_pass():
    long, short = torch.ones(100), 1e-3 * torch.ones(100)
    turned = short.clone()
    turned[:2] *= -1
    limits = LIMITS[torch.bfloat16]
    reference = {"model": long, "critic": short}
    assert not wrong_tensors("g", reference, {"model": long, "critic": turned}, limits, 10.0)
    bent = {"model": long * turned.sign(), "critic": short}
    assert wrong_tensors("g", reference, bent, limits, 10.0)
    bent = {"model": long, "critic": short * 1.3}
    assert wrong_tensors("g", reference, bent, limits, 10.0)


def test_a_bias_may_turn_more_beside_its_layers_weight_but_not_vanish():
    weight, bias = 6e-5 * torch.ones(100) / 10, 1.17e-5 * torch.ones(6) / 6**0.5
    turned = bias + 0.33 * 1.17e-5 * torch.tensor([1.0, -1, 1, -1, 1, -1]) / 6**0.5
    reference = {"model.out.weight": torch.ones(100), "head.weight": weight, "head.bias": bias}
    limits = LIMITS[torch.bfloat16]

    def told(bias: torch.Tensor, of: Any = limits, **more: torch.Tensor) -> list[str]:
        return wrong_tensors("g", reference, {**reference, "head.bias": bias, **more}, of, 57.0)

    assert not told(bias)
    assert not told(turned)
    assert "head.bias" in told(turned, LIMITS[torch.float32])[0]
    assert "head.bias" in told(torch.zeros(6))[0]
    assert "head.bias" in told(-bias)[0]
    assert "head.weight" in told(bias, **{"head.weight": weight.clone().mul_(1.3)})[0]
    alone = {"model.out.weight": torch.ones(100), "head.bias": bias}  # nothing it stands beside
    assert wrong_tensors("g", alone, {**alone, "head.bias": turned}, limits, 57.0)


def test_numbers_that_are_none_are_named(loop):
    updates = Updates(loop)

    def fast() -> Any:
        with gradient(loop.workflow, "actor.net.0.linear.weight", lambda g: g * float("nan")):
            return updates.fast()

    with pytest.raises(LabError, match=r"actor\.net\.0\.linear\.weight"):
        updates.compare(fast)


def test_heads_are_moved_off_zero_and_the_optimizer_past_its_warm_up(loop):
    agent = loop.workflow
    heads = [agent.model.reward.out.weight, agent.critic.out.weight, agent.slow.out.weight]
    assert not any(h.any() for h in heads)
    move_off_zero(agent)
    assert all(h.any() for h in heads)
    value = agent.critic.mean(agent.critic(torch.randn(50, agent.model.rssm.out_dim)))
    assert 1e-6 < value.abs().max() < 10  # bins reach 4.85e8
    assert not torch.equal(agent.critic.net[0].linear.weight, agent.slow.net[0].linear.weight)
    opt = agent.optimizers["agent"]
    assert opt.inner.pace(opt.inner.count) == 1


MEDIUM = (
    "workflow.rssm={deter: 64, hidden: 32, stoch: 8, classes: 8, blocks: 2}",
    "workflow.encoder={units: 32, depth: 2, layers: 1}",
    "workflow.decoder={units: 32, depth: 2, layers: 1, blocks: 2}",
    "workflow.reward={units: 32, num_bins: 255}", "workflow.cont.units=32",
    "workflow.actor={units: 32, layers: 1}",
    "workflow.critic={units: 32, layers: 1, num_bins: 255}",
    "buffers.replay.batch=16", "buffers.replay.length=21", "buffers.replay.min_steps=400",
)  # fmt: skip


CAPTURED = [name for cls, name in PAIRS if marked(cls, "capturable")]
QUICK = ("dreamer_debug", "dreamer_v1_cartpole_swingup", "tdmpc2_cartpole_swingup")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in CAPTURED],
)
def test_copied_weights_compute_what_autocast_does(name, tmp_path):
    compare_copies(make(tmp_path, name))


def test_a_policy_learns_from_the_critics_of_the_same_update(tmp_path):
    """TD-MPC2 takes two steps: the policy's loss needs what the first one changed."""
    options = ("+experiment=tdmpc2_pendulum", "tiny=true", "workflow.size=1m", "device=cpu")
    compare_copies(open_loop(tmp_path / "r", *options))


def compare_copies(loop: Any) -> None:
    """Fail unless an update with copied weights is that of autocast."""
    buffer = loop.parts.buffers[loop.scheduler.phase.buffer]
    while not buffer.ready():
        loop._do("collect")
    agent, batch = loop.workflow, buffer.sample().map(lambda x: x.clone())
    batch = replace(batch, index=None)
    weights = Bf16Weights(agent, lay_out(agent, bf16=True))

    def fast() -> Any:
        cast = torch.autocast("cpu", torch.bfloat16, cache_enabled=False)
        with cast, weights.swapped_in():
            return agent.update(batch)

    compare_with_reference(agent, torch.bfloat16, lambda: agent.update(batch), fast)


def test_copied_weights_follow_an_optimizer_while_others_have_steps_to_take(tmp_path):
    agent = make(tmp_path, "tdmpc2_cartpole_swingup").workflow
    weights = Bf16Weights(agent, lay_out(agent, bf16=True))
    with weights.swapped_in():
        for key, opt in agent.optimizers.items():
            opt.follow([torch.ones_like(p) for p in opt.params])
            mine = {id(p) for p in opt.params}
            pairs = [(p, h) for p, h in zip(weights.full, weights.half, strict=True)]
            changed = [torch.equal(p.bfloat16(), h) for p, h in pairs if id(p) in mine]
            assert changed, key
            assert all(changed), key
    assert all(opt.changed is None for opt in agent.optimizers.values())


def test_gradients_are_averaged_once_in_a_group(loop, tmp_path, monkeypatch):
    """The optimizer's step is compared on gradients that are averaged already.

    A process alone in its group believes in another one: averaging halves its gradients.
    """
    updates = Updates(loop)
    updates.fast()  # moments, so that the size of a gradient counts
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", rank=0, world_size=1, store=store)
    try:
        monkeypatch.setattr(world, "_here", World(0, 2, 0, 2))
        updates.compare()
    finally:
        monkeypatch.undo()
        dist.destroy_process_group()


def test_a_fault_that_another_process_sees_ends_this_one_too(loop, monkeypatch):
    asked: list[bool] = []
    monkeypatch.setattr(world, "any_of", lambda flag: asked.append(flag) or True)
    with pytest.raises(LabError, match="seen by another process"):
        Updates(loop).compare()
    assert asked == [False]


@pytest.mark.slow
def test_bfloat16_is_compared_with_bfloat16(tmp_path):
    loop = open_loop(tmp_path / "r", *OPTIONS, *MEDIUM)
    while not loop.parts.buffers["replay"].ready():
        loop._do("collect")
    updates, agent = Updates(loop), loop.workflow
    weights = Bf16Weights(agent, lay_out(agent, bf16=True))

    def fast() -> Any:
        cast = torch.autocast("cpu", torch.bfloat16, cache_enabled=False)
        with cast, weights.swapped_in():
            return updates.fast()

    with torch.autocast("cpu", torch.bfloat16):  # as around every update of a run
        updates.compare(fast, torch.bfloat16)
        with pytest.raises(LabError, match=r"model\.encoder"):
            updates.compare(lambda: halved(fast, weights), torch.bfloat16)


def halved(fast: Callable[[], Any], weights: Bf16Weights) -> Any:
    """Take a fast update whose encoder gets half of its gradient."""
    index = next(i for i, p in enumerate(weights.places) if "Linear" in type(p[0]).__name__)
    with_hook = weights.half[index].register_hook(lambda g: g / 2)
    try:
        return fast()
    finally:
        with_hook.remove()
