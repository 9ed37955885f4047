"""TD-M(PC)^2: what it stores, what it adds to the policy's loss, and that it adds nothing at 0."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.contract.test_workflows import make
from tests.helpers import run_for
from tests.workflows.tdmpc_by_hand import objective, over_time
from tests.workflows.test_tdmpc2 import PHASE, SMALL, VECTOR, agent, apart, batch_of, obs_of

from dreamlab.core.config import load
from dreamlab.core.types import Mode
from dreamlab.workflows.tdmpc2 import TDMPC2
from dreamlab.workflows.tdmpc_square import TDMPCSquare, TDMPCSquareConfig


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def squared(**options) -> TDMPCSquare:
    torch.manual_seed(0)
    config = load(TDMPCSquareConfig, {**TDMPCSquare.tiny, "dropout": 0.0, **options}, "")
    made = TDMPCSquare(config, VECTOR)
    made.load_state_dict(agent(dropout=0.0).state_dict())
    return made


def stored(b: int = 5, t: int = 4):
    batch = batch_of(VECTOR, b, t)
    extras = {"plan_mean": torch.rand(b, t, 2) - 0.5, "plan_std": torch.rand(b, t, 2) * 0.4}
    return replace(batch, extras=extras)


def test_the_planners_normal_is_stored_before_noise_is_added():
    a, obs = squared(), obs_of(VECTOR, 3)
    first, state = torch.ones(3, dtype=torch.bool), a.initial_state(3)
    with torch.no_grad():
        torch.manual_seed(3)
        calm = a.decide(obs, first, state, Mode.EVAL)
        torch.manual_seed(3)
        noisy = a.decide(obs, first, state, Mode.TRAIN)
    assert torch.equal(noisy.extras["plan_mean"], calm.action)
    assert not torch.equal(noisy.action, calm.action)
    assert (noisy.extras["plan_std"] >= 0.05).all()


def test_a_random_action_is_as_wide_as_the_policy_can_be():
    a = squared()
    step = type("S", (), {"is_first": np.ones(2, bool)})()
    chosen = torch.rand(2, 2)
    decision = a.with_action(a.fill(step, a.initial_state(2)), chosen)
    assert torch.equal(decision.extras["plan_mean"], chosen)
    assert torch.allclose(decision.extras["plan_std"], torch.tensor(math.e**2))


def test_steps_of_a_dataset_have_a_wide_normal_around_their_own_action():
    """Such steps come with zeros for what a planner would have stored."""
    a, batch = squared(), stored()
    none = {k: v.clone() for k, v in batch.extras.items()}
    for value in none.values():
        value[:, 1] = 0.0
    w, action = a.window(replace(batch, extras=none)), torch.rand(3, 5, 2)
    found = a.plan_density(action, w)
    unit = (action[1] - w.action[1]) / 2.0
    expected = 2 * ((-(unit**2) / 2 - math.log(2)).sum(-1) - 0.5 * math.log(2 * math.pi))
    assert torch.allclose(found[1], expected, rtol=1e-4)
    assert torch.equal(found[0], a.plan_density(action, a.window(batch))[0])


def loss_of(a: TDMPCSquare, scale: float):
    a.value_scale.fill_(scale)
    w = a.window(stored())
    torch.manual_seed(2)
    zs, noise = torch.rand(4, 5, 16), torch.randn(4, 5, 2)
    loss, metrics = a.policy_loss(zs, w, noise, torch.tensor([0, 1]))
    return loss, metrics, w, zs, noise


def test_the_loss_has_the_planners_density_over_the_range_of_values():
    a = squared()
    loss, metrics, w, zs, noise = loss_of(a, 10.0)
    base = TDMPC2.policy_loss(squared(prior_coef=0.0), zs[:3], w, noise[:3], torch.tensor([0, 1]))[
        0
    ]
    scale = float(metrics["value_scale"])
    action = a.prior.act(zs[:3], noise[:3])
    extra = 0.0
    for t in range(3):
        std = w.extras["plan_std"][t].clamp(min=0.05)
        unit = (action[t] - w.extras["plan_mean"][t]) / std
        log_mu = 2 * ((-(unit**2) / 2 - std.log()).sum(-1) - 0.5 * math.log(2 * math.pi))
        extra += 0.5**t * (log_mu / scale).mean() / 3
    other = squared(prior_coef=0.0)
    other.value_scale.fill_(10.0)
    base = TDMPC2.policy_loss(other, zs[:3], w, noise[:3], torch.tensor([0, 1]))[0]
    assert torch.allclose(loss, base - 2 / 61 * extra, rtol=1e-4)
    plain = loss_of(squared(prior_scale="none"), 10.0)[0]
    assert torch.allclose(plain, base - extra, rtol=1e-4)


def test_up_to_a_range_of_two_the_policy_is_left_alone():
    a = squared()
    loss, _, w, zs, noise = loss_of(a, 1.0)
    other = squared()
    base = TDMPC2.policy_loss(other, zs[:3], w, noise[:3], torch.tensor([0, 1]))[0]
    assert torch.equal(loss, base)


@pytest.mark.parametrize("options", [{}, {"prior_scale": "none"}, {"prior_coef": 0.7}])
@pytest.mark.parametrize("before", [1.9, 2.2], ids=["below the gate", "above"])
def test_the_policys_loss_is_that_of_the_formula(options, before):
    """Over H states: rho^t (1e-4 A log pi - q / S), and less A / 61 rho^t log mu / S if S > 2."""
    a = apart(squared(entropy=0.01, **options), 0.3)
    a.value_scale.fill_(before)
    w, zs, noise = a.window(stored()), torch.rand(4, 5, 16), torch.randn(4, 5, 2)
    found, _ = a.policy_loss(zs, w, noise, torch.tensor([2, 1]))
    by_hand = objective(a, a.critics, zs[:3], w.task, noise[:3], [2, 1], before)
    assert (by_hand.scale > 2) == (before > 2)
    std = w.extras["plan_std"].double()
    assert (std < 0.05).any()
    std = std.clamp(min=0.05)
    unit = (by_hand.action - w.extras["plan_mean"]) / std
    # the constant once, then times the action size, 2
    log_mu = 2 * ((-(unit**2) / 2 - std.log()).sum(-1) - 0.5 * math.log(2 * math.pi))
    wanted = over_time(0.01 * by_hand.log_prob - by_hand.q / by_hand.scale)
    if by_hand.scale > 2:
        share = 1.0 if options.get("prior_scale") else 2 / 61
        coef = options.get("prior_coef", 1.0)
        wanted = wanted - coef * share * over_time(log_mu / by_hand.scale)
    assert found.item() == pytest.approx(wanted.item(), rel=2e-5)
    params = list(a.prior.parameters())
    ours, theirs = (torch.autograd.grad(loss, params) for loss in (found, wanted))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-5)


def test_acting_without_a_planner_the_policys_own_normal_is_stored():
    a, obs = squared(mpc=False), obs_of(VECTOR, 3)
    with torch.no_grad():
        first = torch.ones(3, dtype=torch.bool)
        extras = a.decide(obs, first, a.initial_state(3), Mode.TRAIN).extras
        mean, raw = a.prior.net(a.model.encoder(obs, None)).chunk(2, -1)
    torch.testing.assert_close(extras["plan_mean"], mean.tanh())
    torch.testing.assert_close(extras["plan_std"], (-10 + 6 * (raw.tanh() + 1)).exp())


@pytest.mark.parametrize("coef", [0.0, 1.0])
def test_without_its_coefficient_it_is_tdmpc2_bit_for_bit(coef, tmp_path):
    runs = {}
    for name, options in (
        ("tdmpc2_pendulum", ()),
        ("tdmpc_square_pendulum", (f"workflow.prior_coef={coef}", "workflow.prior_gate=0")),
    ):
        more = ("eval.every_frames=0", "eval.policy_alone=false", "training.total_frames=240")
        runs[name] = make(tmp_path / name, name, options=(*options, *more))
        assert run_for(runs[name], None) == "finished"
    ours, theirs = (run.workflow.state_dict() for run in runs.values())
    assert ours.keys() == theirs.keys()
    same = [k for k, v in ours.items() if isinstance(v, torch.Tensor) and torch.equal(v, theirs[k])]
    tensors = [k for k, v in ours.items() if isinstance(v, torch.Tensor)]
    assert (same == tensors) == (coef == 0.0)


def test_both_tell_what_they_expect():
    a = squared()
    value, gamma = a.expected_return(obs_of(VECTOR, 3))
    assert value.shape == gamma.shape == (3,)
    assert float(gamma[0]) == pytest.approx(0.99)
    assert SMALL.gamma is None
    a.update_agent(stored(), phase=PHASE)


@pytest.mark.parametrize("name", ["tdmpc2_pendulum", "tdmpc_square_pendulum"])
def test_an_evaluation_tells_what_the_policys_own_episodes_lack_of_its_value(name, tmp_path):
    options = ("eval.policy_alone=true", "eval.episodes=2")
    loop = make(tmp_path / name, name, options=options)
    assert loop.parts.evaluator is not None
    found = loop.parts.evaluator.run(loop.workflow, None).metrics()
    # zero-initialized critics: what is missing is the whole discounted return, which is negative
    assert found["eval/policy_overestimation"] > 0
    assert found["eval/policy_overestimation"] != found["eval/overestimation"]
