"""Exported policies: the same actions as the original, from raw observations, in other programs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from dreamlab import build
from dreamlab.cli import main
from dreamlab.commands.trust import load_hub
from dreamlab.core.errors import LabError
from dreamlab.envs.vector import Envs
from dreamlab.interop import hub
from dreamlab.interop import policy_export as px
from tests.helpers import open_loop

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
    "dreamer": ("+experiment=dreamer_cartpole", "training.total_frames=60"),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Returns the folder of a short run, trained once for all tests that ask for it."""
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("runs") / name
            head, *rest = POLICIES[name]
            open_loop(made[name], head, *FAST, *rest).run()
        return made[name]

    return get


RARE = ("ppo-lstm", "ppo-transformer", "rainbow")
MARKED = [pytest.param(n, marks=pytest.mark.slow) if n in RARE else n for n in POLICIES]


@pytest.mark.parametrize("name", MARKED)
@pytest.mark.parametrize("kind", ["onnx", "torchscript"])
def test_a_written_policy_acts_like_the_original(name, kind, trained, tmp_path, capsys):
    path = tmp_path / f"policy{px.SUFFIX[kind]}"
    code = main(["export-policy", str(trained(name)), "--format", kind, "--out", str(path)])
    out = capsys.readouterr()
    assert code == 0, out.err
    assert "max difference" in out.out
    about = json.loads(path.with_suffix(".json").read_text())
    assert about["max_difference"] < 1e-4
    assert about["run"] == json.loads((trained(name) / "manifest.json").read_text())["id"]
    assert about["versions"]["torch"]
    recurrent = any(i["name"].startswith("memory/") for i in about["inputs"])
    assert recurrent == (name in ("ppo-gru", "ppo-lstm", "ppo-transformer", "dreamer"))
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([path.name, "policy.json"])


def test_onnx_runtime_alone_takes_raw_observations_and_gives_the_environments_actions(
    trained, tmp_path
):
    import onnxruntime

    folder = trained("ppo-continuous")
    main(["export-policy", str(folder), "--out", str(tmp_path / "p.onnx")])
    policy = build.load_policy(folder)
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


def test_several_rows_at_once(trained, tmp_path, capsys):
    path = tmp_path / "p.onnx"
    arguments = ["export-policy", str(trained("dreamer")), "--batch", "3", "--out", str(path)]
    assert main(arguments) == 0, capsys.readouterr().err
    about = json.loads((tmp_path / "p.json").read_text())
    assert about["batch"] == 3
    assert {i["shape"][0] for i in about["inputs"]} == {3}


def test_a_file_that_differs_is_noticed(trained):
    policy = build.load_policy(trained("sac"))
    exported = px.Exported(policy.workflow, px.Normalize(None, {}), px.Actions())
    envs = Envs(policy.config.env, 0)
    steps = px.record(exported, policy.workflow, envs, 8)
    same = px.compare(exported, lambda v: list(exported(*v)), policy.workflow, steps, lambda a: a)
    assert same.steps == 16
    assert same.worst < 1e-6
    with torch.no_grad():
        exported.workflow.actor.head.out.bias += 0.01
    other = px.compare(exported, lambda v: list(exported(*v)), policy.workflow, steps, lambda a: a)
    assert other.worst > 1e-3


def test_over_the_tolerance_nothing_is_written(trained, tmp_path, capsys):
    path = tmp_path / "p.onnx"
    path.write_text("an older file")
    arguments = ["export-policy", str(trained("sac")), "--out", str(path), "--tolerance", "-1"]
    assert main(arguments) == 2
    assert "differs from the original" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["p.onnx"]
    assert path.read_text() == "an older file"


def test_an_algorithm_without_an_export_is_one_message(tmp_path, capsys):
    folder = tmp_path / "r"
    loop = open_loop(folder, "+experiment=dreamer_v2_cartpole", *FAST)
    loop.save()
    assert main(["export-policy", str(folder)]) == 2
    assert (
        "DreamerV2 cannot be exported; known: DQN, DreamerV3, PPO, SAC" in capsys.readouterr().err
    )


@pytest.mark.parametrize("name", ["ppo", "sac", "dreamer"])
def test_a_hub_folder_is_complete_and_loads_back(name, trained, tmp_path, capsys):
    folder = tmp_path / "hub"
    assert main(["export-policy", str(trained(name)), "--hub", str(folder)]) == 0
    files = ["README.md", "config.yaml", "manifest.json"]
    files += ["model.safetensors", "normalizer.safetensors"]
    assert sorted(p.name for p in folder.iterdir()) == sorted(files)
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: dreamlab")
    assert "| eval/return |" in card
    original, back = build.load_policy(trained(name)), load_hub(folder)
    assert hub.weights(back.workflow).keys() == hub.weights(original.workflow).keys()
    for key, value in hub.weights(original.workflow).items():
        assert torch.equal(hub.weights(back.workflow)[key], value)
    scores = [
        build.build_evaluator(t.config).run(t.workflow, t.statistics).returns
        for t in (original, back)
    ]
    assert scores[0] == scores[1]


def test_a_hub_folder_is_not_overwritten_and_a_wrong_one_is_refused(trained, tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    assert main(["export-policy", str(trained("sac")), "--hub", str(tmp_path / "mine")]) == 2
    assert "exists already" in capsys.readouterr().err
    with pytest.raises(LabError, match="is not a hub folder"):
        load_hub(tmp_path / "mine")
    main(["export-policy", str(trained("sac")), "--hub", str(tmp_path / "hub")])
    text = (tmp_path / "hub" / "config.yaml").read_text()
    (tmp_path / "hub" / "config.yaml").write_text(text.replace("num_critics: 2", "num_critics: 3"))
    with pytest.raises(LabError, match="the weights do not fit its configuration: online"):
        load_hub(tmp_path / "hub")
