"""An official checkpoint becomes a run: same policy, eval and resume work, and nothing executes."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
import torch

from dreamlab import cli, training
from dreamlab.core.errors import CheckpointError, ConfigError, LabError
from dreamlab.core.types import Mode, Step
from dreamlab.envs.vector import EnvConfig, make_env, spec_of
from dreamlab.interop import dreamerv3, import_run
from dreamlab.runs.run import Run
from dreamlab.workflows.dreamer_v3 import DreamerV3
from tests.helpers import metrics
from tests.interop.test_dreamerv3 import CONFIG, weights_of

ENV = {
    "pixels": ("env=dummy", "env.id=pixels", "env.options.size=32"),
    "identity": ("env=dummy", "env.id=identity", "env.options.continuous=true"),
}
SMALL = (
    "workflow.rssm.stoch=4", "workflow.imagine=3", "workflow.optimizer.warmup_steps=0",
    "device=cpu",
    "buffers.replay={batch: 4, length: 9, context: 1, capacity: 500, min_steps: 40}",
    "training.phases=[{name: learn, duration_steps: 60, train_ratio: 8,"
    " workflow_hooks: [collect, update_agent]}]",
    "eval.episodes=2", "eval.num_envs=1", "eval.video=false", "threads=1",
    "log.every_frames=30", "log.terminal='off'",
)  # fmt: skip


def agent_for(task: str) -> DreamerV3:
    options = {"continuous": True} if task == "identity" else {"size": 32}
    env = make_env(EnvConfig(task, "dummy", options), 0, 0)
    torch.manual_seed(0)
    return DreamerV3(CONFIG, spec_of(env))


def exported(agent: DreamerV3) -> dict[str, np.ndarray]:
    """Return weights and moments under the original's names."""
    out = weights_of(agent)
    inner, names = agent.optimizers["agent"].inner, dreamerv3.official_names(agent)
    by_param = {id(p): names[n] for n, p in agent.named_parameters()}
    count = 0.0 if inner.count is None else float(inner.count)
    out |= {"opt/state/1/0": np.float32(count), "opt/state/2/0": np.float32(count)}
    for p, square, mean in zip(inner.params, inner.square, inner.mean, strict=True):
        name = by_param[id(p)]
        out[f"opt/state/1/1/{name}"] = dreamerv3.to_theirs(square, name)
        out[f"opt/state/2/1/{name}"] = dreamerv3.to_theirs(mean, name)
    return out


def write_pickle(path, weights) -> None:
    counters = {"updates": 7, "batches": 7, "actions": 9}
    path.write_bytes(pickle.dumps({"params": dict(weights), "counters": counters}))


def decide(agent: DreamerV3):
    """Return the decisions of three steps, with the same chances."""
    rng, state, out = np.random.default_rng(0), agent.initial_state(2), []
    torch.manual_seed(1)
    for t in range(3):
        obs = {
            k: rng.integers(0, 256, (2, *s.shape), dtype=np.uint8) if s.is_image
            else rng.integers(0, 3, (2, *s.shape)) if s.is_discrete
            else rng.normal(size=(2, *s.shape)).astype(np.float32)
            for k, s in agent.spec.obs.items()
        }  # fmt: skip
        no = np.zeros(2, bool)
        decision = agent.act(
            Step(obs, no.astype(np.float32), no | (t == 0), no, no), state, Mode.EVAL
        )
        state = decision.state
        out += [decision.action, *decision.extras.values()]
    return out


@pytest.mark.parametrize("task", ENV)
def test_a_pickle_becomes_a_run_with_the_same_policy_that_evaluates_and_resumes(
    task: str, tmp_path, capsys
):
    source, file, run = agent_for(task), tmp_path / "agent.pkl", tmp_path / "run"
    write_pickle(file, weights_of(source))
    arguments = [str(file), f"run.dir={run}", *ENV[task], *SMALL]
    assert cli.main(["import", "dreamerv3", *arguments]) == 0, capsys.readouterr().err
    assert "without optimizer state" in capsys.readouterr().out
    assert Run(run).manifest["status"] == "imported"
    imported = training.load_policy(run).workflow
    for ours, theirs in zip(decide(imported), decide(source), strict=True):
        assert torch.equal(ours, theirs)
    assert cli.main(["eval", str(run), "--episodes", "1"]) == 0
    assert cli.main(["resume", str(run)]) == 0
    assert metrics(run)[-1]["updates"] > 0
    assert cli.main(["import", "dreamerv3", *arguments]) == 2
    assert "already contains a run" in capsys.readouterr().err


def test_moments_of_the_optimizer_come_along(tmp_path):
    source = agent_for("identity")
    loss = sum((p**2).sum() for p in source.parameters() if p.requires_grad)
    source.optimizers["agent"].step(loss)
    write_pickle(tmp_path / "agent.pkl", exported(source))
    run = tmp_path / "run"
    args = ["dreamerv3", str(tmp_path), f"run.dir={run}", *ENV["identity"], *SMALL]
    assert cli.main(["import", *args]) == 0
    inner = training.load_policy(run).workflow.optimizers["agent"].inner
    theirs = source.optimizers["agent"].inner
    assert float(inner.count) == 1
    for a, b in zip([*inner.mean, *inner.square], [*theirs.mean, *theirs.square], strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("layout", ["weights.npz", "ckpt/20250101/agent.pkl", "x.npz"])
def test_weights_are_found_in_files_and_folders(layout: str, tmp_path):
    weights = weights_of(agent_for("identity"))
    file = tmp_path / layout
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".npz":
        np.savez(file, **weights)
    else:
        write_pickle(file, weights)
        (tmp_path / "ckpt" / "latest").write_text("20250101\n")
    found = import_run.read_weights(file if file.name == "x.npz" else tmp_path)
    assert found.keys() == weights.keys()
    np.testing.assert_array_equal(found["dyn/dyngru/kernel"], weights["dyn/dyngru/kernel"])


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_arrays_and_numbers_of_every_protocol_are_read(protocol: int, tmp_path):
    weights = {"dyn/dynin0/kernel": np.eye(3, dtype=np.float32), "opt/state/1/0": np.float32(2.5)}
    weights["turned"] = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"params": weights}, protocol=protocol))
    found = import_run.read_weights(tmp_path / "a.pkl")
    for name, value in weights.items():
        np.testing.assert_array_equal(found[name], value)


class Malicious:
    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    "call",
    [(os.system, ("touch {}",)), (eval, ("open('{}', 'w')",)), (getattr, ("{}", "upper"))],
    ids=["system", "eval", "getattr"],
)
def test_a_file_that_would_run_code_is_refused(call, tmp_path, capsys):
    function, texts = call
    trap = tmp_path / "trap"
    evil = Malicious(function, tuple(t.format(trap) for t in texts))
    write_pickle(tmp_path / "agent.pkl", {"dyn/dynin0/kernel": evil})
    assert cli.main(["import", "dreamerv3", str(tmp_path), *ENV["identity"]]) == 2
    assert "a checkpoint may contain only arrays" in capsys.readouterr().err
    assert not trap.exists()


def test_files_that_are_no_checkpoint_are_named(tmp_path):
    with pytest.raises(LabError, match=r"neither an agent\.pkl"):
        import_run.read_weights(tmp_path)
    (tmp_path / "agent.pkl").write_bytes(b"\x80\x04 nonsense")
    with pytest.raises(CheckpointError, match="cannot be read"):
        import_run.read_weights(tmp_path)
    write_pickle(tmp_path / "agent.pkl", {"something": np.zeros(3)})
    with pytest.raises(CheckpointError, match="not a checkpoint of the official"):
        import_run.read_weights(tmp_path)
    write_pickle(tmp_path / "agent.pkl", {"dyn/dynin0/kernel": np.array(["text"])})
    with pytest.raises(CheckpointError, match="not a numeric array"):
        import_run.read_weights(tmp_path)


def test_an_environment_that_does_not_fit_is_one_error_that_names_every_difference():
    weights = weights_of(agent_for("mixed"))
    config = import_run.config_for(weights, [*ENV["identity"], *SMALL])
    with pytest.raises(ConfigError) as error:
        import_run.check_fit(weights, config)
    text = str(error.value)
    assert "action: the policy has 7 classes, the environment 4 dimensions" in text
    assert "observation 'vector': the weights have 4, the environment none" in text
    assert "observation 'state': the weights have none, the environment 4" in text
    assert "3 channels of 1024 pixels, the environment none" in text


def test_an_image_of_another_size_does_not_fit():
    weights = weights_of(agent_for("pixels"))
    config = import_run.config_for(weights, [*ENV["pixels"], "env.options.size=16", *SMALL])
    with pytest.raises(ConfigError, match=r"the environment 16x16x3 \(see env.size"):
        import_run.check_fit(weights, config)


def test_the_network_is_read_off_the_weights_and_the_rest_off_the_experiment():
    weights = weights_of(agent_for("identity"))
    config = import_run.config_for(
        weights, ["+experiment=dreamer_crafter", "workflow.rssm.stoch=4"]
    )
    options = config.workflow.config
    assert (options.rssm.config.deter, options.rssm.config.classes) == (16, 4)
    assert options.critic.config.num_bins == 13
    assert config.training.phases[0].train_ratio == 512
    with pytest.raises(ConfigError, match=r"set workflow\.rssm\.stoch"):
        import_run.config_for(weights, ["workflow.rssm.stoch=3"])
    for argument in ("workflow.rssm.stoch=0", "workflow.rssm.stoch=few", "workflow=null"):
        with pytest.raises(ConfigError, match=r"^workflow(\.rssm\.stoch)?: (must be|expected)"):
            import_run.config_for(weights, [argument])
    with pytest.raises(ConfigError, match="must be one of"):
        import_run.config_for(weights, ["+experiment=ppo_cartpole"])
    with pytest.raises(ConfigError, match="tiny"):
        import_run.config_for(weights, ["tiny=true"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dreamerv3"], "argument PATH is missing: dreamlab import [OPTIONS] PROGRAM PATH"),
        (["dreamerv4", "x"], "Did you mean 'dreamerv3'?"),
    ],
)
def test_what_is_missing_on_the_command_line_is_said(arguments, message, capsys):
    assert cli.main(["import", *arguments]) == 2
    assert message in capsys.readouterr().err
