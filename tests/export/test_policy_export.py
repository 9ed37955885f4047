"""Exported policies: the same actions as the original, from raw observations, in other programs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from dreamlab import training
from dreamlab.cli import main
from dreamlab.envs.vector import Envs, make_env
from dreamlab.export import policy_export as px
from dreamlab.export import policy_files as pf
from dreamlab.workflows.sac import SAC
from tests.helpers import trained_once

FAST = (
    "tiny=true", "eval.episodes=1", "eval.every_frames=0", "eval.video=false", "device=cpu",
    "training.total_frames=150",
)  # fmt: skip
POLICIES = {
    "ppo": ("+experiment=ppo_cartpole", "++env.normalize_obs={}"),
    "ppo-continuous": ("+experiment=ppo_cartpole", "env=Pendulum-v1", "++env.normalize_obs={}"),
    "ppo-gru": ("+experiment=ppo_cartpole", "workflow.network=rnn"),
    "ppo-lstm": ("+experiment=ppo_cartpole", "workflow.network={_target_: rnn, cell: lstm}"),
    "ppo-transformer": ("+experiment=ppo_cartpole", "workflow.network=transformer"),
    "ppo-pixels": ("+experiment=ppo_cartpole", "env=dummy", "env.id=pixels"),
    "sac": ("+experiment=sac_pendulum",),
    "dqn": ("+experiment=dqn_cartpole",),
    "rainbow": ("+experiment=dqn_rainbow_cartpole",),
    "dreamer": ("+experiment=dreamer_cartpole", "training.total_frames=200"),
    "dreamer-pixels": (
        "+experiment=dreamer_pixels",
        "training.total_frames=200",
        "env=dummy",
        "env.id=pixels",
    ),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Returns the folder of a short run, trained once for all tests that ask for it."""
    options = {name: (head, *FAST, *rest) for name, (head, *rest) in POLICIES.items()}
    return trained_once(tmp_path_factory.mktemp("runs"), options)


RARE = ("ppo-continuous", "ppo-lstm", "ppo-transformer", "rainbow", "dreamer-pixels")
RECURRENT = ("ppo-gru", "ppo-lstm", "ppo-transformer", "dreamer", "dreamer-pixels")
MARKED = [pytest.param(n, marks=pytest.mark.slow) if n in RARE else n for n in POLICIES]


@pytest.mark.parametrize("name", MARKED)
@pytest.mark.parametrize("kind", ["onnx", "torchscript"])
def test_a_written_policy_acts_like_the_original(name, kind, trained, tmp_path, capsys):
    path = tmp_path / f"policy{pf.SUFFIX[kind]}"
    code = main(["export-policy", str(trained(name)), "--format", kind, "--out", str(path)])
    out = capsys.readouterr()
    assert code == 0, out.err
    assert "max difference" in out.out
    about = json.loads(path.with_suffix(".json").read_text())
    assert about["max_difference"] < 1e-4
    assert about["run"] == json.loads((trained(name) / "manifest.json").read_text())["id"]
    assert about["versions"]["torch"]
    recurrent = any(i["name"].startswith("memory/") for i in about["inputs"])
    assert recurrent == (name in RECURRENT)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([path.name, "policy.json"])
    assert "batch size      dynamic" in out.out
    assert about["batch"] is None
    assert {i["shape"][0] for i in about["inputs"]} == {"batch"}
    for rows in (1, 5):
        assert distance(training.load_policy(trained(name)), path, rows) < 1e-4


def distance(trained: training.Trained, path: Path, rows: int) -> float:
    """Return how far a file is from a policy's two steps, the second with the first's memory."""
    env = trained.config.env
    actions = px.actions_of(px.action_wrapper(make_env(env, 0, 0)))
    policy = px.Exported(
        trained.workflow, px.Normalize(env.normalize_obs, trained.statistics), actions
    )
    worst, memory = 0.0, {}
    for is_first in (np.ones(rows, bool), np.zeros(rows, bool)):
        obs = px.random_obs(trained.workflow.spec, rows, seed=rows)
        values = policy.arrange(obs, is_first, memory)
        with torch.no_grad():
            wanted = policy(*values)
        for a, b in zip(wanted, run_file(path, policy, values), strict=True):
            assert a.shape == b.shape
            worst = max(worst, float((a.double() - b.double()).abs().max()))
        memory = dict(zip(policy.memory_names, wanted[1:], strict=True))
    return worst


def run_file(path: Path, policy: px.Exported, values: tuple[torch.Tensor, ...]):
    """Return what a file computes, without any of our code."""
    if path.suffix == ".pt":
        return torch.jit.load(str(path))(*values)
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options)
    known = {i.name for i in session.get_inputs()}
    assert all(i.shape[0] == "batch" for i in session.get_inputs())
    given = {k: v.numpy() for k, v in zip(policy.inputs, values, strict=True) if k in known}
    return [torch.from_numpy(x) for x in session.run(policy.outputs, given)]


def test_onnx_runtime_alone_takes_raw_observations_and_gives_the_environments_actions(
    trained, tmp_path
):
    import onnxruntime

    folder = trained("ppo-continuous")
    main(["export-policy", str(folder), "--out", str(tmp_path / "p.onnx")])
    policy = training.load_policy(folder)
    moments = policy.statistics["obs"]["state"]
    session = onnxruntime.InferenceSession(str(tmp_path / "p.onnx"))
    raw = np.array([[0.3, -0.8, 4.0]], np.float32)
    (action,) = session.run(None, {"obs/state": raw})
    scaled = (raw - np.array(moments["mean"])) / np.sqrt(np.array(moments["var"]) + 1e-8)
    with torch.no_grad():
        x = torch.from_numpy(scaled.clip(-10, 10).astype(np.float32))
        unit = policy.workflow.actor(policy.workflow.actor_net(x)[0]).mode().numpy()
    np.testing.assert_allclose(action, 2.0 * unit.clip(-1, 1), atol=1e-5)  # torque in [-2, 2]


def test_a_memory_is_carried_by_the_caller_and_forgotten_at_is_first(trained, tmp_path):
    path = tmp_path / "p.pt"
    main(["export-policy", str(trained("ppo-gru")), "--format", "torchscript", "--out", str(path)])
    policy = torch.jit.load(str(path))
    obs, zeros = torch.ones(1, 4), torch.zeros(1, 128)
    no, yes = torch.zeros(1, dtype=torch.bool), torch.ones(1, dtype=torch.bool)
    calls = ((no, zeros), (no, zeros + 1), (yes, zeros + 1))
    fresh, used, reset = (policy(obs, first, memory)[1] for first, memory in calls)
    assert not torch.equal(fresh, used)
    assert torch.equal(fresh, reset)


def test_the_number_of_rows_can_be_fixed(trained, tmp_path, capsys):
    path = tmp_path / "p.onnx"
    arguments = ["export-policy", str(trained("dreamer")), "--batch", "3", "--out", str(path)]
    assert main(arguments) == 0, capsys.readouterr().err
    assert "batch size      3, fixed\n" in capsys.readouterr().out
    about = json.loads((tmp_path / "p.json").read_text())
    assert about["batch"] == 3
    assert {i["shape"][0] for i in about["inputs"]} == {3}
    assert main([*arguments[:3], "0"]) == 2
    assert "--batch: must be at least 1, got 0" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["onnx", "torchscript"])
def test_a_policy_that_counts_its_rows_is_written_for_one(
    kind, trained, tmp_path, capsys, caplog, monkeypatch
):
    decide = SAC.decide

    def counting(w, obs, is_first, state, mode):
        rows = int(obs["state"].shape[0])
        return decide(w, {"state": obs["state"].reshape(rows, 3)}, is_first, state, mode)

    monkeypatch.setattr(SAC, "decide", counting)
    path = tmp_path / f"policy{pf.SUFFIX[kind]}"
    main(["export-policy", str(trained("sac")), "--format", kind, "--out", str(path)])
    assert "1, fixed: this policy does not support a dynamic batch size" in capsys.readouterr().out
    assert json.loads((tmp_path / "policy.json").read_text())["batch"] == 1
    said = [r.getMessage() for r in caplog.records if r.name == pf.__name__]
    assert [m.startswith("no dynamic batch size: ") for m in said] == [True]


def test_a_missing_extra_is_one_message(trained, tmp_path, capsys, caplog, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    path = tmp_path / "policy.onnx"
    assert main(["export-policy", str(trained("sac")), "--format", "onnx", "--out", str(path)]) == 2
    assert capsys.readouterr().err.count("dreamlab[export]") == 1
    assert not [r for r in caplog.records if r.name == pf.__name__]
    assert not list(tmp_path.iterdir())


def test_a_file_that_differs_is_noticed(trained):
    policy = training.load_policy(trained("sac"))
    exported = px.Exported(policy.workflow, px.Normalize(None, {}), px.Actions())
    envs = Envs(policy.config.env, 0)
    steps = pf.record(exported, policy.workflow, envs, 8)
    same = pf.compare(exported, lambda v: list(exported(*v)), policy.workflow, steps, lambda a: a)
    assert same.steps == 16
    assert same.worst < 1e-6
    with torch.no_grad():
        exported.workflow.actor.head.out.bias += 0.01
    other = pf.compare(exported, lambda v: list(exported(*v)), policy.workflow, steps, lambda a: a)
    assert other.worst > 1e-3


def test_over_the_tolerance_nothing_is_written(trained, tmp_path, capsys):
    path = tmp_path / "p.onnx"
    path.write_text("an older file")
    arguments = ["export-policy", str(trained("sac")), "--out", str(path), "--tolerance", "1e-30"]
    assert main(arguments) == 2
    assert "differs from the original" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["p.onnx"]
    assert path.read_text() == "an older file"
