"""Imitation: it learns what was shown, whatever the policy, and acts as it learnt."""

from __future__ import annotations

import pytest
import torch
from tests.engine.test_from_data import write
from tests.helpers import metrics, need, open_loop, run_for

from dreamlab.core.config import load
from dreamlab.core.errors import ConfigError
from dreamlab.core.phase import Phase
from dreamlab.core.types import ArraySpec, Batch, Mode, Spec
from dreamlab.workflows.imitation import Imitation, ImitationConfig

PHASE = Phase("clone", ("update_policy",))
BOX, CLASSES = ArraySpec((2,), low=-1.0, high=1.0), ArraySpec((), "int64", classes=3)
NET = {"width": 32, "blocks": 2, "time_dim": 16, "dropout": 0.0}
POLICIES = {
    "gaussian": {"hidden": (32,)},
    "diffusion": {"net": NET, "levels": 10},
    "flow": {"net": NET, "sample_steps": 5},
    "autoregressive": {"dim": 32, "heads": 2, "layers": 1, "bins": 33, "dropout": 0.0},
    "categorical": {"hidden": (32,)},
}
FAST = {"_target_": "adam", "lr": 5e-3, "ema": 0.99, "ema_power": 0.75}


def make(kind: str, **options) -> Imitation:
    torch.manual_seed(0)
    policy = {"_target_": kind, **POLICIES[kind], **options}
    config = load(ImitationConfig, {"policy": policy, "optimizer": FAST}, "workflow")
    spec = Spec({"state": ArraySpec((2,))}, CLASSES if kind == "categorical" else BOX)
    return Imitation(config, spec)


def demonstrations(kind: str, rows: int = 64, length: int = 4) -> Batch:
    """Return windows in which the action answers the state: half of it, or the class it is in."""
    state = torch.rand(rows, length, 2) * 2 - 1
    flags = torch.zeros(rows, length, dtype=torch.bool)
    action = answer(kind, state)
    return Batch({"state": state}, action, torch.zeros(rows, length), flags, flags, flags)


def answer(kind: str, state: torch.Tensor) -> torch.Tensor:
    if kind == "categorical":
        return (state[..., 0] > -0.3).long() + (state[..., 0] > 0.3).long()
    return 0.5 * state


@pytest.mark.parametrize("kind", POLICIES)
def test_it_learns_what_was_shown(kind):
    workflow = make(kind)
    for _ in range(300):
        metrics = workflow.update_policy(demonstrations(kind), phase=PHASE)
    assert all(v.isfinite() and v.ndim == 0 for v in metrics.values())
    state = torch.rand(200, 2) * 1.6 - 0.8
    with workflow.averaged(), torch.no_grad():
        decision = workflow.decide(
            {"state": state}, torch.ones(200, dtype=torch.bool), (), Mode.EVAL
        )
    if kind == "categorical":
        assert (decision.action == answer(kind, state)).float().mean() > 0.9
    else:
        assert (decision.action - answer(kind, state)).abs().mean() < 0.08


def test_steps_without_an_action_are_not_learnt_from():
    workflow = make("gaussian")
    batch = demonstrations("gaussian", rows=8, length=2)
    batch.is_last[:, 1] = True
    before = [p.clone() for p in workflow.policy.parameters()]
    first = workflow.update_policy(batch, phase=PHASE)
    other = make("gaussian")
    batch.action[:, 1] = 0.9  # an action that nobody took
    assert all(torch.equal(a, b) for a, b in zip(before, other.policy.parameters(), strict=True))
    again = other.update_policy(batch, phase=PHASE)
    assert torch.equal(first["loss"], again["loss"])


def test_a_chunk_is_learnt_as_a_whole():
    """Actions that depend on the time within the chunk are told apart by their place."""
    workflow = make("gaussian", obs_steps=2, horizon=4, execute=3)
    for _ in range(200):
        batch = demonstrations("gaussian", length=4)
        batch.action[:] = torch.tensor([-0.6, -0.2, 0.2, 0.6])[:, None]
        workflow.update_policy(batch, phase=PHASE)
    state, got = workflow.initial_state(1), []
    for i in range(4):
        obs, first = {"state": torch.zeros(1, 2)}, torch.tensor([i == 0])
        with torch.no_grad():
            decision = workflow.decide(obs, first, state, Mode.EVAL)
        state = decision.state
        got.append(decision.action[0, 0].item())
    # executed from the last observation's step on: the second entry, then planned anew
    assert got == pytest.approx([-0.2, 0.2, 0.6, -0.2], abs=0.1)


def test_tasks_are_told_apart_by_an_observation():
    config = load(
        ImitationConfig, {"policy": {"hidden": (32,)}, "optimizer": FAST}, "workflow"
    )  # fmt: skip
    torch.manual_seed(0)
    obs = {"state": ArraySpec((1,)), "task": ArraySpec((), "int64", classes=2)}
    workflow = Imitation(config, Spec(obs, ArraySpec((1,), low=-1.0, high=1.0)))
    task = torch.randint(0, 2, (256, 1))
    flags = torch.zeros(256, 1, dtype=torch.bool)
    seen = {"state": torch.randn(256, 1, 1), "task": task}
    batch = Batch(seen, task[..., None] * 1.0 - 0.5, torch.zeros(256, 1), flags, flags, flags)
    for _ in range(200):
        workflow.update_policy(batch, phase=PHASE)
    one = {"state": torch.zeros(2, 1), "task": torch.tensor([0, 1])}
    with torch.no_grad():
        action = workflow.decide(one, torch.ones(2, dtype=torch.bool), (), Mode.EVAL).action
    assert action[:, 0].tolist() == pytest.approx([-0.5, 0.5], abs=0.1)


FROM_DATA = (
    "imitation_pusht", "env.suite=gym", "env.id=Pendulum-v1", "~env.options.obs",
    "env.time_limit=9",
    "workflow.policy.net={_target_: unet1d, widths: [8, 16], time_dim: 8}",
    "workflow.policy.levels=4", "workflow.policy.horizon=8", "workflow.policy.execute=3",
    "buffers.demos.after=6", "buffers.demos.batch=8",
    "~buffers.demos.normalize.environment_state",
    "training.phases.0.duration_updates=12", "device=cpu", "checkpoint.every_s=0",
    "log.every_updates=3", "eval.every_updates=6", "eval.episodes=2", "eval.num_envs=2",
)  # fmt: skip


def test_a_diffusion_policy_learns_from_a_data_set_and_resumes_exactly(tmp_path, monkeypatch):
    need("pyarrow")
    monkeypatch.setenv("DREAMLAB_CACHE", str(tmp_path / "cache"))
    words = [*FROM_DATA, f"buffers.demos.path={write(tmp_path / 'set', 'Pendulum-v1')}"]
    straight = open_loop(tmp_path / "a", *words)
    assert run_for(straight, None) == "finished"
    assert run_for(open_loop(tmp_path / "b", *words), 5) == "interrupted"
    resumed = open_loop(tmp_path / "b", *words)
    assert run_for(resumed, None) == "finished"
    assert straight.counters.updates == resumed.counters.updates == 12
    pairs = zip(
        straight.workflow.parameters(), resumed.workflow.parameters(), strict=True
    )  # fmt: skip
    assert all(torch.equal(a, b) for a, b in pairs)
    assert metrics(tmp_path / "a") == metrics(tmp_path / "b")
    assert any("eval/return" in record for record in metrics(tmp_path / "a"))


def test_only_a_policy_can_be_named():
    with pytest.raises(ConfigError, match="not a Policy"):
        load(ImitationConfig, {"policy": "torch.nn.Linear"}, "workflow")
