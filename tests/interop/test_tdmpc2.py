"""Checkpoints of the official TD-MPC2: read in both formats, nothing executed, the same agent."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

from dreamlab import cli, training
from dreamlab.core.config import load
from dreamlab.core.errors import CheckpointError, ConfigError
from dreamlab.core.types import ArraySpec, Mode, Spec
from dreamlab.envs import dummy
from dreamlab.envs.vector import EnvConfig, make_env, spec_of
from dreamlab.interop import import_tdmpc2, parity, parity_tdmpc2, tdmpc2
from dreamlab.interop.torch_files import read_tensors
from dreamlab.runs.run import Run
from dreamlab.workflows.tdmpc2 import TDMPC2, TDMPC2Config
from tests.helpers import metrics

TINY = {
    "size": None, "enc_dim": 12, "mlp_dim": 10, "latent_dim": 16, "enc_layers": 3, "num_q": 3,
    "bins": {"num": 21}, "gamma": 0.9,
}  # fmt: skip
ENV = ("env=dummy", "env.id=identity", "env.options.continuous=true")
QUICK = (
    "device=cpu", "threads=1", "workflow.planner={iterations: 2, samples: 12, elites: 4}",
    "workflow.num_pi_plans=4", "buffers.replay.batch=4", "buffers.replay.min_steps=30",
    "buffers.replay.capacity=1000",
    "training.phases=[{name: learn, duration_steps: 60, train_ratio: 4,"
    " workflow_hooks: [collect, update_agent]}]",
    "eval.episodes=2", "eval.num_envs=1", "eval.video=false", "log.every_frames=30",
    "log.terminal='off'",
)  # fmt: skip


def made(**options) -> TDMPC2:
    env = make_env(EnvConfig("identity", "dummy", {"continuous": True}), 0, 0)
    torch.manual_seed(0)
    agent = TDMPC2(load(TDMPC2Config, {**TINY, **options}, ""), spec_of(env))
    with torch.no_grad():
        for p in agent.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return agent


class Anything:
    """Stands for a class of somebody else's that a checkpoint names."""

    def __init__(self, value: object = None) -> None:
        self.value = value


def newer(agent: TDMPC2) -> dict[str, object]:
    """Return a state dict as releases since 2024 have it."""
    out = {k: torch.from_numpy(v) for k, v in tdmpc2.weights_of(agent).items()}
    low, high = agent.config.log_std
    out |= {"log_std_min": torch.tensor(low), "log_std_dif": torch.tensor(high - low)}
    for key in [k for k in out if k.startswith("_Qs.params.")]:
        out["_detach_Qs_params" + key[len("_Qs.params") :]] = out[key]
    out |= {"_Qs.params.__batch_size": torch.Size([3]), "_Qs.params.__device": torch.device("cpu")}
    return out


def older(agent: TDMPC2) -> dict[str, object]:
    """Return a state dict as the releases of 2023 have it."""
    out: dict[str, object] = {}
    for key, value in tdmpc2.weights_of(agent).items():
        tensor = torch.from_numpy(value)
        for home, old in (("_Qs.params", "_Qs.params"), ("_target_Qs_params", "_target_Qs.params")):
            if key.startswith(home):
                layer, _, field = key[len(home) + 1 :].partition(".")
                number = 4 * int(layer) + tdmpc2.FIELDS.index(field)
                out[f"{old}.{number}"] = tensor
                break
        else:
            out[key] = tensor
    return out


def write(path: Path, model: dict[str, object]) -> Path:
    """Write a checkpoint as the original does: with classes of other packages beside the model."""
    extra = {"cfg": Anything({"task": Path("walker-run")}), "step": 7}
    torch.save({"model": OrderedDict(model), "metadata": extra}, path)
    return path


@pytest.mark.parametrize("form", [older, newer])
@pytest.mark.parametrize("episodic", [False, True])
def test_a_checkpoint_comes_back_as_it_was(form, episodic, tmp_path):
    agent = made(episodic=episodic)
    weights = parity_tdmpc2.read_checkpoint(write(tmp_path / "a.pt", form(agent)))
    config = tdmpc2.config_of(weights, gamma=0.9)
    assert config == agent.config
    other = TDMPC2(config, agent.spec)
    tdmpc2.load_weights(other, weights)
    for (name, a), (_, b) in zip(agent.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    again = tdmpc2.weights_of(other)
    assert all(np.array_equal(again[k], v) for k, v in weights.items() if k in again)


def test_a_checkpoint_of_images_comes_back_as_it_was(tmp_path):
    spec = Spec({"image": ArraySpec((64, 64, 9), "uint8")}, ArraySpec((2,), low=-1.0, high=1.0))
    config = load(
        TDMPC2Config, {**TINY, "latent_dim": 64, "channels": 4, "enc_dim": 256, "enc_layers": 2}, ""
    )
    agent = TDMPC2(config, spec)
    weights = parity_tdmpc2.read_checkpoint(write(tmp_path / "a.pt", newer(agent)))
    assert {f"_encoder.rgb.{i}.weight" for i in (2, 4, 6, 8)} < weights.keys()
    assert tdmpc2.config_of(weights, gamma=0.9) == config
    other = TDMPC2(config, tdmpc2.spec_of(weights))
    tdmpc2.load_weights(other, weights)
    assert torch.equal(
        other.model.encoder.net.convs[0].weight, agent.model.encoder.net.convs[0].weight
    )


def test_what_is_missing_or_unknown_is_named():
    agent = made()
    weights = tdmpc2.canonical({k: v.numpy() for k, v in older(agent).items()})
    with pytest.raises(CheckpointError, match=r"_pi\.1\.ln\.bias"):
        tdmpc2.load_weights(agent, {k: v for k, v in weights.items() if k != "_pi.1.ln.bias"})
    with pytest.raises(CheckpointError, match="_surprise"):
        tdmpc2.load_weights(agent, {**weights, "_surprise": np.zeros(3)})


@pytest.mark.parametrize(
    ("has", "lacks"), [("log_std_min", "log_std_dif"), ("log_std_dif", "log_std_min")]
)
def test_half_of_the_bounds_of_deviations_is_refused(has, lacks, tmp_path):
    agent = made(log_std=(-5.0, 1.0))
    model = {k: v for k, v in newer(agent).items() if k != lacks}
    file = write(tmp_path / "a.pt", model)
    with pytest.raises(CheckpointError, match=f"lacks '{lacks}'.*'{has}'"):
        import_tdmpc2.config_for(import_tdmpc2.read_weights(file), ENV)


def test_a_checkpoint_without_bounds_of_deviations_has_the_originals():
    weights = tdmpc2.canonical({k: v.numpy() for k, v in older(made()).items()})
    assert tdmpc2.config_of(weights).log_std == (-10.0, 2.0)


# -- safety ---------------------------------------------------------------------------------------


class Evil:
    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.canary,))


def test_nothing_in_a_checkpoint_is_executed(tmp_path):
    canary = tmp_path / "canary"
    agent = made()
    torch.save({"model": newer(agent), "more": [Evil(canary)]}, tmp_path / "evil.pt")
    weights = parity_tdmpc2.read_checkpoint(tmp_path / "evil.pt")
    assert not canary.exists()
    assert "_dynamics.0.weight" in weights
    torch.load(tmp_path / "evil.pt", weights_only=False)
    assert canary.exists(), "the file would have done it"


def rewritten(source: Path, target: Path, change: object) -> Path:
    """Copy a checkpoint with another pickle in it."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for info in old.infolist():
            data = old.read(info)
            new.writestr(info.filename, change(data) if info.filename.endswith(".pkl") else data)
    return target


def test_a_tensor_that_claims_more_than_there_is_is_refused(tmp_path):
    torch.save({"model": {"_dynamics.0.weight": torch.zeros(300, 7)}}, tmp_path / "a.pt")
    wide = lambda data: data.replace(b"M\x2c\x01K\x07", b"M\xff\xffK\x07")  # noqa: E731
    file = rewritten(tmp_path / "a.pt", tmp_path / "b.pt", wide)
    with pytest.raises(CheckpointError, match="exceeds its storage of 2100"):
        read_tensors(file)


@pytest.mark.parametrize("content", [b"", b"PK\x05\x06" + bytes(18), pickle.dumps({"model": {}})])
def test_what_is_no_checkpoint_is_refused_in_one_line(content, tmp_path):
    (tmp_path / "a.pt").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"a\.pt"):
        parity_tdmpc2.read_checkpoint(tmp_path / "a.pt")


# -- a run ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [older, newer])
def test_an_imported_agent_evaluates_and_goes_on_learning(form, tmp_path):
    agent = made()
    file, folder = write(tmp_path / "a.pt", form(agent)), tmp_path / "run"
    args = [*ENV, *QUICK, f"run.dir={folder}"]
    assert cli.main(["import", "tdmpc2", str(file), *args]) == 0
    found = training.load_policy(folder).workflow
    assert isinstance(found, TDMPC2)
    obs = {"state": torch.randn(2, 4)}
    first = torch.ones(2, dtype=torch.bool)
    mean, _ = agent.prior(agent.model.encode(obs, agent.model.task_of(obs)))
    with torch.no_grad():
        action = found.decide(obs, first, found.initial_state(2), Mode.POLICY).action
    assert torch.allclose(action, mean.tanh())
    assert cli.main(["eval", str(folder)]) == 0
    assert cli.main(["resume", str(folder)]) == 0
    assert Run(folder).manifest["status"] == "finished"
    assert any("train/loss" in line for line in metrics(folder))


class Dots(dummy.Pixels):
    """Images of 64x64, and actions of two entries."""

    def __init__(self) -> None:
        super().__init__(64, 8)
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)

    def step(self, action):
        entry = int(np.abs(action).argmax())
        return super().step(2 * entry + int(action[entry] > 0))


class Wide(dummy.Identity):
    """Copies four numbers."""

    def __init__(self) -> None:
        super().__init__(4, 8, True)


class Narrow(dummy.Identity):
    """Copies two numbers."""

    def __init__(self) -> None:
        super().__init__(2, 8, True)


TASKS = ("env=multitask", "env.id=wide+narrow", "env.options={suite: dummy}", "env.repeat=1")
WORLDS = {"images": ("env=dummy", "env.id=dots", "env.frame_stack=3"), "tasks": TASKS}


@pytest.fixture
def worlds(monkeypatch):
    for kind in (Dots, Wide, Narrow):
        monkeypatch.setitem(dummy.DUMMIES, kind.__name__.lower(), kind)


def grown(world: str) -> TDMPC2:
    """Return an agent for one of these environments that has learned something."""
    config = EnvConfig("wide+narrow", "multitask", {"suite": "dummy"})
    config = EnvConfig("dots", "dummy", frame_stack=3) if world == "images" else config
    env = make_env(config, 0, 0)
    torch.manual_seed(0)
    more = {"latent_dim": 64, "channels": 4} if world == "images" else {"task_dim": 6}
    agent = TDMPC2(load(TDMPC2Config, {**TINY, **more}, ""), spec_of(env))
    env.close()
    with torch.no_grad():
        for p in agent.parameters():
            p.add_(0.1 * torch.randn_like(p))
    agent.model.limit_tasks()
    return agent


@pytest.mark.parametrize(("world", "form"), [("images", newer), ("tasks", older)])
@pytest.mark.usefixtures("worlds")
def test_agents_of_images_and_of_several_tasks_evaluate_and_go_on_learning(world, form, tmp_path):
    agent = grown(world)
    folder = tmp_path / "run"
    args = [str(write(tmp_path / "a.pt", form(agent))), *WORLDS[world], *QUICK, f"run.dir={folder}"]
    assert cli.main(["import", "tdmpc2", *args]) == 0
    found = training.load_policy(folder).workflow
    assert isinstance(found, TDMPC2)
    for (name, a), (_, b) in zip(agent.named_parameters(), found.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    assert torch.equal(found.masks, agent.masks)
    assert cli.main(["eval", str(folder)]) == 0
    assert cli.main(["resume", str(folder)]) == 0
    assert Run(folder).manifest["status"] == "finished"
    assert any("train/loss" in line for line in metrics(folder))
    after = training.load_policy(folder).workflow
    assert not torch.equal(after.get_parameter("prior.net.out.weight"), agent.prior.net.out.weight)


@pytest.mark.usefixtures("worlds")
def test_tasks_in_another_order_are_refused(tmp_path):
    agent = grown("tasks")
    weights = parity_tdmpc2.read_checkpoint(
        write(tmp_path / "a.pt", newer(agent) | {"_action_masks": agent.masks})
    )
    swapped = [arg.replace("wide+narrow", "narrow+wide") for arg in TASKS]
    config = import_tdmpc2.config_for(weights, swapped)
    with pytest.raises(ConfigError, match=r"by task: the weights have \[4, 2\].*\[2, 4\]"):
        import_tdmpc2.check_fit(weights, config)


def test_weights_that_do_not_fit_the_environment_are_refused(tmp_path):
    file = write(tmp_path / "a.pt", newer(made()))
    weights = import_tdmpc2.read_weights(file)
    config = import_tdmpc2.config_for(weights, ["env=gym", "env.id=Pendulum-v1"])
    with pytest.raises(
        ConfigError, match=r"(?s)actions: the weights have 4.*environment 1.*observation dimensions"
    ):
        import_tdmpc2.check_fit(weights, config)


def test_a_size_that_the_other_weights_do_not_have_is_refused_before_it_takes_memory(tmp_path):
    state = newer(made()) | {"_dynamics.0.weight": torch.ones(1, 1).expand(50_000, 20)}
    weights = parity_tdmpc2.read_checkpoint(write(tmp_path / "a.pt", state))
    config = import_tdmpc2.config_for(weights, ENV)
    with pytest.raises(CheckpointError, match=r"_dynamics\.0\.bias.*does not fit"):
        import_tdmpc2.check_fit(weights, config)


# -- parity ---------------------------------------------------------------------------------------


def write_fixture(folder: Path, agent: TDMPC2) -> None:
    """Write a fixture in the original's format, as our own agent computes it."""
    torch.save({"model": newer(agent)}, folder / "checkpoint.pt")
    rng, h, b = np.random.default_rng(0), 2, 5
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    inputs = {
        "obs": draw(h + 1, b, 4), "action": np.tanh(draw(h, b, 4)), "reward": draw(h, b, 1),
        "terminated": (draw(h, b, 1) > 0).astype(np.float32), "td_target": draw(h, b, 1),
    }  # fmt: skip
    np.savez(folder / "inputs.npz", **inputs)
    bins = agent.config.bins
    meta = {
        "num_bins": bins.num, "vmin": bins.low, "vmax": bins.high, "rho": 0.5, "simnorm_dim": 8,
    }  # fmt: skip
    (folder / "meta.json").write_text(json.dumps(meta))
    x = np.array([[-1e4], [0.0], [3.0]], np.float32)
    np.savez(folder / "outputs.npz", pi_eps=draw(h + 1, b, 4), **{"two_hot/x": x})
    fixture = parity_tdmpc2.Fixture(folder)
    found = parity_tdmpc2.computed(fixture.agent(), fixture)
    np.savez(folder / "outputs.npz", **{k: v.numpy() for k, v in found.items()})


@pytest.mark.parametrize("episodic", [False, True])
def test_a_fixture_of_any_size_agrees_until_it_is_changed(episodic, tmp_path):
    write_fixture(tmp_path, made(episodic=episodic))
    lines = list(parity.check(tmp_path))
    assert all(line.ok for line in lines), [str(x) for x in lines if not x.ok]
    names = {line.name for line in lines}
    assert {"zs", "q_values", "pi_scaled_entropy", "total_loss", "two_hot/target"} < names
    assert ("termination_loss" in names) == episodic
    with np.load(tmp_path / "outputs.npz") as file:
        outputs = dict(file)
    outputs["reward_logits"] = outputs["reward_logits"] + 1e-2
    outputs["nobody"] = np.zeros(1)
    np.savez(tmp_path / "outputs.npz", **outputs)
    lines = list(parity.check(tmp_path))
    assert [line.name for line in lines if not line.ok] == ["reward_logits"]
    assert [line.name for line in lines if not line.compared] == ["nobody"]
