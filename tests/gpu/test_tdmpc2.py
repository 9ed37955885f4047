"""Captured updates and plans of TD-MPC2: what only a GPU can show. `pytest -m gpu`."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dreamlab.core.config import load
from dreamlab.core.types import ArraySpec, Batch, Mode, Spec, Step
from dreamlab.engine import accelerate
from dreamlab.workflows.tdmpc2 import TDMPC2, TDMPC2Config
from tests.helpers import metrics, open_loop

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
SIZES = {"size": "1m", "planner": {"iterations": 2, "samples": 64, "elites": 8}, "num_pi_plans": 8}
SPEC = Spec({"state": ArraySpec((7,))}, ArraySpec((3,), low=-1.0, high=1.0), 100)
BATCH, LENGTH, UPDATES = 32, 4, 5


def make(fast: bool) -> TDMPC2:
    """Return the same agent at every call, in float32."""
    torch.manual_seed(0)
    workflow = TDMPC2(load(TDMPC2Config, SIZES, "workflow"), SPEC).to(DEVICE)
    compute = accelerate.ComputeConfig(device=DEVICE, compile=None if fast else False)
    accelerate.set_up(compute, workflow, BATCH * LENGTH)
    return workflow


def batch_of(seed: int) -> Batch:
    g = torch.Generator().manual_seed(seed)
    rand = lambda *s: torch.rand(BATCH, LENGTH, *s, generator=g)  # noqa: E731
    no = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    obs, action = {"state": rand(7) * 4 - 2}, rand(3) * 2 - 1
    return Batch(obs, action, rand() * 2 - 1, no, no, no).to(torch.device(DEVICE))


def step_of(num: int, seed: int) -> Step:
    no = np.zeros(num, bool)
    state = np.random.default_rng(seed).normal(size=(num, 7)).astype(np.float32)
    return Step({"state": state}, no.astype(np.float32), no, no, no)


@pytest.fixture(scope="module")
def both():
    """The captured and the plain agent after the same updates, and their last metrics."""
    agents, told = (make(True), make(False)), []
    for agent in agents:
        for i in range(UPDATES):
            torch.manual_seed(i)
            found = agent.update(batch_of(i))
        told.append({k: float(v) for k, v in found.items()})
    return agents, told


def test_captured_updates_are_the_plain_ones(both):
    (fast, plain), (a, b) = both
    assert a.keys() == b.keys()
    for name, value in b.items():
        assert math.isclose(a[name], value, rel_tol=1e-2, abs_tol=1e-4), (name, a[name], value)
    pairs = zip(fast.named_parameters(), plain.parameters(), strict=True)
    for (name, x), y in pairs:
        near = torch.isclose(x, y, atol=1e-5, rtol=1e-3).float().mean()
        assert near > 0.96, (name, float(near))


@pytest.mark.parametrize("num", [1, 3])
def test_a_captured_plan_is_the_plain_one(both, num):
    """Noise is fixed, and so is the plan: with the same weights both choose the same action."""
    (fast, plain), _ = both
    plain.load_state_dict(fast.state_dict())
    states = [agent.initial_state(num) for agent in (fast, plain)]
    for i in range(4):  # the fourth is a replay
        step = step_of(num, i)
        chosen = [a.act(step, s, Mode.FIXED) for a, s in zip((fast, plain), states, strict=True)]
        torch.testing.assert_close(chosen[0].action, chosen[1].action, atol=5e-3, rtol=1e-3)
        mean = chosen[1].state["mean"]  # both go on from one: what rounding changes does not add up
        states = [{**a.initial_state(num), "mean": mean.clone()} for a in (fast, plain)]


def test_a_sampled_plan_differs_each_time_it_is_replayed(both):
    (fast, _), _ = both
    step, state = step_of(2, 0), fast.initial_state(2)
    actions = [fast.act(step, state, Mode.TRAIN).action.clone() for _ in range(5)]
    assert all(x.abs().max() <= 1 for x in actions)
    assert not torch.equal(actions[3], actions[4])


def test_it_trains_through_its_phases_in_bfloat16(tmp_path):
    options = (
        "+experiment=tdmpc2_pendulum", "tiny=true", "workflow.size=1m", f"device={DEVICE}",
        "precision=bf16",
        "training.total_frames=400", "log.every_frames=50", "eval.every_frames=0",
        "eval.episodes=1", "eval.video=false",
    )  # fmt: skip
    loop = open_loop(tmp_path / "r", *options)
    assert loop.run() == "finished"
    losses = [v for r in metrics(tmp_path / "r") for k, v in r.items() if "loss" in k]
    assert losses
    assert all(math.isfinite(v) for v in losses)
