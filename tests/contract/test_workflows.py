"""What holds for every workflow in the folder, without any of them being listed."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dreamlab.config import LabConfig
from dreamlab.core.errors import ConfigError, MissingExtraError
from dreamlab.core.phase import Phase
from dreamlab.core.tree import tree_leaves
from dreamlab.core.types import Mode
from dreamlab.envs.vector import EnvConfig
from dreamlab.export import policy_files
from dreamlab.export.policy_export import Actions, Exported, Normalize, random_obs
from tests.contract.found import CASES, experiments_of, workflows
from tests.helpers import config_of, metrics, need, open_config, run_for, run_until

SMALL = (
    "tiny=true", "training.total_frames=320", "log.every_frames=100", "eval.every_frames=220",
    "eval.episodes=2", "eval.num_envs=1", "eval.video=false", "device=cpu",
    "checkpoint.every_frames=180", "checkpoint.every_s=0", "env.num_envs=2",
)  # fmt: skip


LONGER = {
    "dqn_cartpole": ("training.total_frames=700",),  # 256 ticks between two updates
    "world_models_cartpole_iterative": ("training.total_frames=700",),  # three rounds
}
ONNX = ("PPO",)
"""Workflows that the default tests export so as well; it takes seconds each."""
DECISIONS_PER_UPDATE = 24  # at least, where it does not matter how often an agent learns


def calm(config: LabConfig) -> LabConfig:
    """Return an experiment that learns so seldom that the tests stay quick."""

    def slow(phase: Phase) -> Phase:
        buffer = config.buffers[phase.buffer].config
        most = getattr(buffer, "batch", 16) * buffer.length / DECISIONS_PER_UPDATE
        rare = phase.train_ratio is None or phase.train_ratio <= most
        return phase if rare else replace(phase, train_ratio=most)

    phases = tuple(slow(p) for p in config.training.phases)
    return replace(config, training=replace(config.training, phases=phases))


def make(folder: Path, name: str, learn: bool = False, options: Sequence[str] = ()):
    """Return the loop of an experiment, shrunk, on the dummy environment its actions suit."""
    config = config_of(f"+experiment={name}", *SMALL, *LONGER.get(name, ()), *options)
    config = config if learn else calm(config)
    for continuous in (False, True):
        env = EnvConfig("identity", "dummy", {"continuous": continuous}, num_envs=2)
        try:
            return open_config(folder, replace(config, env=env))
        except MissingExtraError as error:
            if os.environ.get("DREAMLAB_REQUIRE_EXTRAS") == "1":
                raise
            pytest.skip(str(error))
        except ConfigError as error:
            if "continuous" not in str(error) and "discrete" not in str(error):
                raise
    raise AssertionError(f"{name} takes neither discrete nor continuous actions")


@pytest.mark.parametrize("cls", workflows(), ids=lambda c: c.__name__)
def test_every_workflow_has_an_experiment_and_calls_something_tiny(cls):
    assert experiments_of(cls), f"{cls.__name__} needs a file in configs/experiment"
    assert cls.tiny or not fields(cls.Config), (
        f"{cls.__name__} needs `tiny` options: the debug preset and these tests use them"
    )


@pytest.mark.parametrize(("cls", "name"), CASES)
def test_interrupted_and_resumed_equals_uninterrupted(cls, name, tmp_path):
    straight = make(tmp_path / "a", name)
    assert run_for(straight, None) == "finished"
    for actions in (3, 11):  # inside the first phases, and later; with the next, three in one run
        assert run_for(make(tmp_path / "b", name), actions) == "interrupted"
    learning = make(tmp_path / "b", name)
    middle = straight.counters.updates // 2
    assert run_until(learning, lambda: learning.counters.updates >= middle) == "interrupted"
    resumed = make(tmp_path / "b", name)
    assert run_for(resumed, None) == "finished"
    assert straight.counters == resumed.counters
    learns = any(p.requires_grad for p in straight.workflow.parameters())
    assert learns == bool(cls.hooks())
    assert straight.counters.updates >= 3 * learns
    for (key, a), (_, b) in zip(
        plain(straight.workflow.state_dict()), plain(resumed.workflow.state_dict()), strict=True
    ):
        assert a == b, key
    assert_same_buffers(straight, resumed)
    assert metrics(tmp_path / "a") == metrics(tmp_path / "b")


def assert_same_buffers(a, b):
    for name, buffer in a.parts.buffers.items():
        ours, theirs = (
            pickle.dumps(plain(buffer.save())),
            pickle.dumps(plain(b.parts.buffers[name].save())),
        )
        assert ours == theirs, name
        if hasattr(buffer, "store"):
            for key, value in buffer.store.data.items():
                assert torch.equal(value, b.parts.buffers[name].store.data[key]), (name, key)


COUNTS_SAVES = "saves"  # an interruption saves once more than no interruption


def plain(tree):
    return [
        (k, v.numpy().tobytes() if isinstance(v, torch.Tensor) else repr(v))
        for k, v in tree_leaves(tree)
        if k != COUNTS_SAVES
    ]


@pytest.mark.parametrize(("cls", "name"), CASES)
def test_gradients_reach_every_parameter_and_metrics_are_finite(cls, name, tmp_path):
    loop = make(tmp_path, name, learn=True)
    params = {k: v for k, v in loop.workflow.named_parameters() if v.requires_grad}
    before = {k: v.clone() for k, v in params.items()}
    names, reached = {id(v): k for k, v in params.items()}, set[str]()
    for opt in loop.workflow.optimizers.values():  # a small step may be lost beside a weight of 1
        opt.heard = lambda grads, opt=opt: reached.update(
            names[id(p)]
            for p, g in zip(opt.params, grads, strict=True)
            if g is not None and g.any()
        )
    still = lambda: [  # noqa: E731
        k for k, v in params.items() if torch.equal(v, before[k]) and k not in reached
    ]
    run_until(loop, lambda: loop.log_due.frames.last > 0 and not still())
    assert not still()
    assert metrics(tmp_path)
    for record in metrics(tmp_path):
        assert all(isinstance(v, int | float) for v in record.values()), record


def exports() -> Iterator[Any]:
    for cls in workflows():
        yield pytest.param(cls, "torchscript", id=f"torchscript-{cls.__name__}")
        marks = () if cls.__name__ in ONNX else pytest.mark.slow
        yield pytest.param(cls, "onnx", id=f"onnx-{cls.__name__}", marks=marks)


@pytest.mark.parametrize(("cls", "kind"), exports())
def test_every_workflow_exports_its_policy(cls, kind, tmp_path):
    need("onnxruntime")
    loop = make(tmp_path / "run", experiments_of(cls)[0])
    workflow, envs = loop.workflow, loop.parts.collector.envs
    policy = Exported(workflow, Normalize(None, {}), Actions())
    steps = policy_files.record(policy, workflow, envs, ticks=6)
    with torch.random.fork_rng(devices=[]):
        run = policy_files.write_policy(policy, tmp_path / f"policy.{kind}", kind)
    assert policy.batch is None, "it should take any number of rows"
    found = policy_files.compare(policy, run, workflow, steps, lambda action: action)
    assert found.steps == 12
    assert found.worst < 1e-4


@pytest.mark.parametrize("cls", workflows(), ids=lambda c: c.__name__)
def test_a_fixed_decision_draws_no_random_number(cls, tmp_path):
    workflow = make(tmp_path, experiments_of(cls)[0]).workflow.eval()
    obs = {k: torch.from_numpy(v) for k, v in random_obs(workflow.spec, 3, seed=0).items()}
    first, state = torch.ones(3, dtype=torch.bool), workflow.initial_state(3)
    before = torch.get_rng_state()
    with torch.no_grad():
        once, again = (workflow.decide(obs, first, state, Mode.FIXED).action for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(once, again)


@pytest.mark.parametrize("cls", workflows(), ids=lambda c: c.__name__)
def test_options_are_documented_by_the_dataclass(cls):
    assert cls.Config.__doc__
    assert not cls.Config.__doc__.startswith(f"{cls.Config.__name__}("), (
        "write a docstring, not the generated one"
    )
