"""Hostile hub folders and hostile imports: one line, exit code 2, and nothing was executed."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from dreamlab import training
from dreamlab.cli import main
from dreamlab.core.errors import ConfigError, LabError
from dreamlab.envs.allowed import foreign
from dreamlab.envs.suites import make
from dreamlab.interop import import_run, strangers
from tests.helpers import need, open_loop

QUICK = (
    "+experiment=ppo_cartpole", "tiny=true", "device=cpu", "eval.episodes=1", "eval.video=false",
    "eval.every_frames=0", "training.total_frames=60", "++env.normalize_obs={}", "threads=1",
)  # fmt: skip
EVIL = """
from pathlib import Path
import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv
from torch import nn

Path({canary!r}).touch()

class Flow(nn.Module): ...
class Net(nn.Module): ...
class Env(CartPoleEnv): ...
def make(*args, **kwargs): return CartPoleEnv()
"""
HUBCONF = "from pathlib import Path\nPath({canary!r}).touch()\ndef entry(**kwargs): ...\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Path, Path]:
    """A run of a few frames, and the same as a hub's folder."""
    need("safetensors")
    root = tmp_path_factory.mktemp("hostile")
    open_loop(root / "run", *QUICK).run()
    assert main(["export-policy", str(root / "run"), "--hub", str(root / "hub")]) == 0
    return root / "run", root / "hub"


@pytest.fixture
def canary(tmp_path, monkeypatch) -> Path:
    """A file that appears if code of a stranger runs: a module beside the user says so."""
    path = tmp_path / "canary"
    here = tmp_path / "here"
    (here / "repo").mkdir(parents=True)
    (here / "evil.py").write_text(EVIL.format(canary=str(path)))
    (here / "repo" / "hubconf.py").write_text(HUBCONF.format(canary=str(path)))
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(str(here))
    monkeypatch.delitem(__import__("sys").modules, "evil", raising=False)
    monkeypatch.setenv("SECRET", "hunter2")
    return path


def tampered(made: tuple[Path, Path], tmp_path: Path, change: Callable[[dict[str, Any]], Any]):
    """Return a copy of the hub's folder with another configuration."""
    folder = tmp_path / "hub"
    shutil.copytree(made[1], folder)
    node = yaml.safe_load((folder / "config.yaml").read_text())
    change(node)
    (folder / "config.yaml").write_text(yaml.safe_dump(node))
    return folder


def refused(folder: Path, capsys, *arguments: str) -> str:
    """Evaluate a folder; return the one line that says why not."""
    capsys.readouterr()
    assert main(["eval", str(folder), "--episodes", "1", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    assert "Error: " in error
    assert error.strip().isprintable()
    return error


def put(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Return what sets one option."""

    def change(node: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        for key in parents:
            node = node[key]
        node[last] = value

    return change


def env(suite: str, task: Any, **options: Any) -> Callable[[dict[str, Any]], None]:
    return lambda node: node["env"].update(suite=suite, id=task, options=options)


HUB = {"repo_or_dir": "repo", "model": "entry", "source": "local", "trust_repo": True}
TARGET = "workflow._target_"
CONFIGS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a function": put(TARGET, "os.system"),
    "another class": put("workflow", {"_target_": "subprocess.Popen", "args": "touch ../canary"}),
    "a module here": put(TARGET, "evil.Flow"),
    "a module here, with a colon": put(TARGET, "evil:Flow"),
    "a function of ours": put(TARGET, "dreamlab.training.load_policy"),
    "a module of ours": put(TARGET, "dreamlab.cli.main"),
    "through ours": put(TARGET, "dreamlab.workflows.ppo.torch.hub.load"),
    "the contract itself": put(TARGET, "dreamlab.core.workflow.Workflow"),
    "another kind of ours": put(TARGET, "dreamlab.data.replay.Replay"),
    "borrowed by ours": put("workflow.network", "dreamlab.nn.mlp.partial"),
    "a target that is a list": put(TARGET, ["os", "system"]),
    "a target that is nothing": put(TARGET, None),
    "a relative target": put(TARGET, "..os.system"),
    "a network by name": put("workflow.network", "builtins.eval"),
    "a network of torch": put("workflow.network", {"_target_": "torch.nn.Linear"}),
    "an encoder": put("workflow.encoder.vector", {"_target_": "evil.Net"}),
    "a buffer": put("buffers.rollout._target_", "os.system"),
    "a sampler": put("buffers.rollout", {"_target_": "replay", "sampler": "evil.Net"}),
    "a buffer's folder": lambda n: n["buffers"].update({"../../evil": {"_target_": "replay"}}),
    "torch.hub as gym": env("gym", "torch.hub:load", **HUB),
    "torch.hub as mujoco": env("mujoco", "torch.hub:load", **HUB),
    "a class here": env("gym", "evil:Env"),
    "a function here": env("gym", "evil:make"),
    "an id that imports": env("gym", "evil:CartPole-v1"),
    "a dream of a folder": env("imagined", "run"),
    "a dream of a hub": env("imagined", "hub:evil/twin", trust_code=True),
    "a suite that is none": env("evil.make", "CartPole-v1"),
    "an id that is a list": env("gym", ["evil:Env"]),
    "a level elsewhere": env("dmlab", "../../../evil"),
    "a file for mujoco": env("mujoco", "Ant-v5", xml_file="/etc/passwd"),
    "a window": env("gym", "CartPole-v1", render_mode="human"),
    "wrappers": env("gym", "CartPole-v1", additional_wrappers=["evil.Env"]),
    "a switch nobody knows": env("gym", "CartPole-v1", allow_download=True),
    "an option in a list": env("mujoco", "Ant-v5", healthy_z_range=[["evil.Env"], 1]),
    "a name outside": put("name", "../../evil"),
    "a name that paints": put("name", "x\x1b]0;owned\x07"),
    "a key that paints": put("\x1b[2Jkey", 1),
    "a secret": put("name", "${oc.env:SECRET}"),
    "a secret in a key": lambda n: n["env"]["options"].update({"${oc.env:SECRET}": 1}),
    "an older schema": lambda n: n.update(schema=0, experiment=["x"], training=3),
    "a newer schema": put("schema", 99),
    "no workflow": lambda n: n.pop("workflow"),
    "a list of buffers": put("buffers", [1]),
    "phases of text": put("training", {"phases": "all"}),
    "more than fits": put("workflow.network", {"_target_": "mlp", "hidden": [10**12]}),
    "not so many inputs": put("env.id", "Acrobot-v1"),
    "a device": put("device", "evil"),
}


@pytest.mark.parametrize("change", CONFIGS.values(), ids=CONFIGS)
def test_a_hostile_configuration_is_one_line(change, made, canary, tmp_path, capsys):
    shutil.copytree(made[0], Path.cwd() / "run")  # what a dream could be of
    before = sorted(tmp_path.rglob("*"))
    error = refused(tampered(made, tmp_path, change), capsys)
    assert not canary.exists()
    assert "hunter2" not in error
    after = sorted(p for p in tmp_path.rglob("*") if not p.is_relative_to(tmp_path / "hub"))
    assert after == before


TEXTS: dict[str, bytes] = {
    "python tags": b"workflow: !!python/object/apply:os.system ['touch ../canary']",
    "aliases": b"a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]",
    "itself": b"a: &a [*a]",
    "levels": b"a: " + b"[" * 5_000 + b"]" * 5_000,
    "size": b"a: " + b"x" * (1 << 20),
    "a long number": b"seed: " + b"9" * 9_000,
    "bytes": b"name: \xff\xfe\xfa",
    "a nul": b"name: a\0b",
    "nothing": b"",
    "a list": b"[1, 2]",
    "a text": b"os.system",
    "twice": b"workflow: {_target_: os.system}\nworkflow: {_target_: dreamlab.workflows.ppo.PPO}",
    "escaped": b'workflow: {_target_: "\\x24{oc.env:SECRET}"}',
    "odd keys": b"? [a, b]\n: 1",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_file_that_is_no_plain_configuration_is_one_line(text, made, canary, tmp_path, capsys):
    folder = tampered(made, tmp_path, lambda n: None)
    (folder / "config.yaml").write_bytes(text)
    assert "hunter2" not in refused(folder, capsys)
    assert not canary.exists()


class Malicious:
    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call


def safetensors(**tensors: torch.Tensor) -> bytes:
    from safetensors.torch import save

    return save({k.replace("__", "/"): v for k, v in tensors.items()})


def pickled(canary: str) -> bytes:
    out = io.BytesIO()
    torch.save({"w": Malicious(os.system, (f"touch {canary}",))}, out)
    return out.getvalue()


FILES: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "a pickle for weights": ("model.safetensors", lambda _: pickled("../canary")),
    "half of the weights": ("model.safetensors", lambda data: data[: len(data) // 2]),
    "a header without end": ("model.safetensors", lambda _: struct.pack("<Q", 2**62) + b"{}"),
    "no weights": ("model.safetensors", lambda _: b""),
    "other weights": ("model.safetensors", lambda _: safetensors(x=torch.zeros(3))),
    "a pickle for statistics": ("normalizer.safetensors", lambda _: pickled("../canary")),
    "statistics of nothing": ("normalizer.safetensors", lambda _: safetensors(x=torch.zeros(3))),
    "statistics in each other": (
        "normalizer.safetensors",
        lambda _: safetensors(obs=torch.zeros(1), obs__state=torch.zeros(1)),
    ),
    "a manifest of text": ("manifest.json", lambda _: b'"text"'),
    "a manifest of bytes": ("manifest.json", lambda _: b"\xff\xfe"),
    "a manifest of levels": ("manifest.json", lambda _: b"[" * 100_000),
}


@pytest.mark.parametrize(("name", "write"), FILES.values(), ids=FILES)
def test_a_hostile_file_is_one_line(name, write, made, canary, tmp_path, capsys):
    folder = tampered(made, tmp_path, lambda n: None)
    (folder / name).write_bytes(write((folder / name).read_bytes()))
    refused(folder, capsys)
    assert not canary.exists()


def test_statistics_that_are_not_finite_and_weights_of_another_type_do_not_fit(
    made, tmp_path, capsys
):
    from safetensors.torch import load_file, save_file

    folder = tampered(made, tmp_path, lambda n: None)
    path = folder / "normalizer.safetensors"
    whole = path.read_bytes()
    save_file({k: v / 0 for k, v in load_file(path).items()}, path)
    assert "not finite" in refused(folder, capsys)
    path.write_bytes(whole)
    path = folder / "model.safetensors"
    save_file({k: v.to(torch.complex64) for k, v in load_file(path).items()}, path)
    assert "do not fit its configuration" in refused(folder, capsys)


def test_a_link_out_of_the_folder_is_not_followed(made, tmp_path, capsys):
    folder = tampered(made, tmp_path, lambda n: None)
    (folder / "config.yaml").rename(tmp_path / "elsewhere.yaml")
    (folder / "config.yaml").symlink_to(tmp_path / "elsewhere.yaml")
    assert "config.yaml is a symlink out of the folder" in refused(folder, capsys)


def test_a_policy_with_checkpoints_beside_it_is_still_a_strangers(made, canary, tmp_path, capsys):
    folder = tampered(made, tmp_path, put(TARGET, "evil.Flow"))
    shutil.copytree(made[0] / "checkpoints", folder / "checkpoints")
    assert "would run 'evil.Flow'" in refused(folder, capsys)
    assert not canary.exists()


@pytest.mark.parametrize("verb", ["eval", "export-policy", "resume", "verify"])
@pytest.mark.parametrize("inside", ["", "runs/best"])
def test_a_run_that_came_from_a_hub_is_a_strangers(verb, inside, made, canary, tmp_path, capsys):
    """`hf download --local-dir` writes down what it brought."""
    root = tmp_path / "downloaded"
    folder = root / inside
    shutil.copytree(made[0], folder)
    marks = root / ".cache/huggingface/download" / inside
    marks.mkdir(parents=True)
    (marks / "config.yaml.metadata").write_text("commit\netag\n0.0\n")
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text.replace("id: CartPole-v1", "id: evil:Env"))
    assert main([verb, str(folder)]) == 2
    error = capsys.readouterr().err
    assert "would run 'evil:Env' (env)" in error
    assert not canary.exists()


def test_a_run_of_the_users_own_may_name_anything(made, canary, tmp_path):
    shutil.copytree(made[0], tmp_path / "run")
    text = (tmp_path / "run/config.yaml").read_text()
    (tmp_path / "run/config.yaml").write_text(text.replace("id: CartPole-v1", "id: evil:Env"))
    assert main(["eval", str(tmp_path / "run"), "--episodes", "1"]) == 0
    assert canary.exists()


# -- what a stranger's configuration may not decide -----------------------------------------------


def test_commands_addresses_folders_and_sinks_of_a_stranger_have_no_effect(made, canary, tmp_path):
    def change(node: dict[str, Any]) -> None:
        node["watch"] |= {
            "command": f"touch {canary}", "file": str(canary), "memory_share": 0.0, "disk_gib": 1e9,
            "webhook": "http://127.0.0.1:9",
        }  # fmt: skip
        node["log"] |= {"wandb": True, "tensorboard": True}
        node["run"]["dir"] = str(canary)

    config = strangers.read_config(tampered(made, tmp_path, change))
    usual = training.load_policy(made[1]).config
    assert (config.watch, config.log, config.run) == (usual.watch, usual.log, usual.run)
    assert (config.watch.command, config.watch.file, config.watch.webhook) == (None, None, None)
    assert (config.log.wandb, config.run.dir) == (False, None)


def test_a_downloaded_run_is_resumed_without_its_owners_commands(made, canary, tmp_path):
    folder = tmp_path / "downloaded"
    shutil.copytree(made[0], folder)
    node = yaml.safe_load((folder / "config.yaml").read_text())
    node["watch"] |= {"command": f"touch {canary}", "file": str(canary), "disk_gib": 1e9}
    (folder / "config.yaml").write_text(yaml.safe_dump(node))
    marks = folder / ".cache/huggingface/download"
    marks.mkdir(parents=True)
    (marks / "config.yaml.metadata").touch()
    assert main(["resume", str(folder), "training.total_frames=120"]) == 0
    assert not canary.exists()
    assert yaml.safe_load((folder / "config.yaml").read_text())["watch"]["command"] is None


def test_what_is_exported_anew_holds_no_secret(made, canary, tmp_path, capsys):
    folder = tampered(made, tmp_path, put("run", {"tags": ["${oc.env:SECRET}"]}))
    assert main(["export-policy", str(folder), "--hub", str(tmp_path / "again")]) == 2
    assert not (tmp_path / "again").exists()


# -- trust ----------------------------------------------------------------------------------------


def test_trusted_code_runs_and_is_named_before(made, canary, tmp_path, capsys):
    folder = tampered(made, tmp_path, env("gym", "evil:Env", sutton_barto_reward=False))
    assert "would run 'evil:Env'" in refused(folder, capsys)
    with pytest.raises(LabError, match="trust_code=True"):
        training.load_policy(folder)
    assert not canary.exists()
    assert main(["eval", str(folder), "--episodes", "1", "--trust-code"]) == 0
    said = capsys.readouterr()
    assert "is trusted to run code outside dreamlab:\n  env" in said.err
    assert "'evil:Env'" in said.err
    assert "eval/return" in said.out
    assert canary.exists()
    out = str(tmp_path / "p.pt")
    assert main(["export-policy", str(folder), "--format", "torchscript", "--out", out]) == 2
    exported = ["export-policy", str(folder), "--format", "torchscript", "--out", out]
    assert main([*exported, "--trust-code"]) == 0


def test_trust_does_not_make_a_function_an_environment(made, canary, tmp_path, capsys):
    folder = tampered(made, tmp_path, env("gym", "torch.hub:load", **HUB))
    capsys.readouterr()
    assert main(["eval", str(folder), "--trust-code"]) == 2
    assert "is not an environment: expected a class with reset and step" in capsys.readouterr().err
    assert not canary.exists()


def test_a_dream_of_a_strangers_policy_needs_trust_too(made, canary, tmp_path):
    folder = tampered(made, tmp_path, env("gym", "evil:Env"))
    with pytest.raises(LabError, match="would run 'evil:Env'"):
        make("imagined", str(folder), {})
    assert not canary.exists()
    with pytest.raises(ConfigError, match="has no world model"):
        make("imagined", str(folder), {"trust_code": True})
    assert canary.exists()


def test_trust_is_about_hubs_only(made, capsys):
    assert main(["eval", str(made[0]), "--trust-code"]) == 2
    assert "is not a policy from a hub. Remove it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("suite", "task", "options"),
    [
        ("gym", "LunarLander-v3", {"continuous": True, "gravity": -9.0}),
        ("gym", "gym_pusht/PushT-v0", {"obs_type": "pixels"}),
        ("mujoco", "Ant-v5", {"obs": "both", "size": [64, 64], "healthy_z_range": [0.2, 1.0]}),
        ("dmc", "walker_walk", {"obs": "vision", "camera": 0}),
        ("atari", "pong", {"sticky": False, "actions": "needed"}),
        ("bsuite", "catch/0", {}),
        ("metaworld", "reach-v3", {"camera": "corner2"}),
        ("dummy", "pixels", {"size": 32}),
    ],
)
def test_registered_environments_with_plain_options_are_for_everybody(suite, task, options):
    assert foreign(suite, task, options) is None


# -- imports --------------------------------------------------------------------------------------

KERNEL = "dyn/dynin0/kernel"
BINBYTES8, PROTO = b"\x8e", b"\x80\x04"


class Numpy:
    """Pickles itself as a call of numpy's, with whatever state."""

    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> Any:
        return self.reduced


RECONSTRUCT = np.zeros(0).__reduce__()[0]
EMPTY = (RECONSTRUCT, (np.ndarray, (0,), b"b"))


def dump(value: Any) -> bytes:
    return pickle.dumps({"params": {KERNEL: value}})


PICKLES: dict[str, bytes] = {
    "system": dump(Malicious(os.system, ("touch ../canary",))),
    "eval": dump(Malicious(eval, ("open('../canary', 'w')",))),
    "getattr": dump(Malicious(getattr, ("x", "upper"))),
    "an import": dump(Malicious(__import__, ("evil",))),
    "by name": b"cevil\nmake\n(tR.",
    "nothing": b"",
    "text": b"not a pickle",
    "cut short": dump(np.zeros((4, 4)))[:-30],
    "a long text": PROTO + BINBYTES8 + struct.pack("<Q", 2**61) + b"x.",
    "a far number": b"\x80\x02Nr\xff\xff\xff\x07.",
    "objects": dump(np.array([Malicious(os.system, ("touch ../canary",))], object)),
    "words": dump(np.array(["a"])),
    "a record": dump(np.zeros(2, [("a", "f4")])),
    "a shape without bytes": dump(Numpy(*EMPTY, (1, (2**40,), np.dtype("f4"), False, b""))),
    "a shape below zero": dump(Numpy(*EMPTY, (1, (-1,), np.dtype("f4"), False, b"1234"))),
    "no columns": dump(np.zeros((2**40, 0), np.float32)),
    "a state that is none": dump(Numpy(*EMPTY, 3)),
    "changes the reader": b"\x80\x02cnumpy\ndtype\nN}X\x08\x00\x00\x00functionK\x01s\x86b.",
    "a persistent id": b"\x80\x02X\x01\x00\x00\x00aQ.",
    "a list": pickle.dumps([1, 2]),
    "one number": dump(3),
    "nested": dump({"a": {"b": np.zeros(3)}}),
}


def imported(path: Path, capsys) -> str:
    capsys.readouterr()
    before = sorted(Path.cwd().rglob("*"))
    assert main(["import", "dreamerv3", str(path), "env=dummy"]) == 2
    assert sorted(Path.cwd().rglob("*")) == before
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    assert "Error: import: " in error
    return error


@pytest.mark.parametrize("data", PICKLES.values(), ids=PICKLES)
def test_a_hostile_pickle_is_one_line(data, canary, tmp_path, capsys):
    (tmp_path / "agent.pkl").write_bytes(data)
    tracemalloc.start()
    imported(tmp_path / "agent.pkl", capsys)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20
    assert not canary.exists()


def npz(**members: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(name.replace("__", "/") + ".npy", data)
    return out.getvalue()


def npy(value: Any, allow_pickle: bool = False) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, value, allow_pickle=allow_pickle)
    return out.getvalue()


def header(shape: str, code: str = "<f4") -> bytes:
    text = f"{{'descr': '{code}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def patched(data: bytes, at: int, new: bytes) -> bytes:
    """Return a zip with other bytes in every entry of its directory: 24 is the unpacked size."""
    first, *entries = data.split(b"PK\x01\x02")
    changed = (e[: at - 4] + new + e[at - 4 + len(new) :] for e in entries)
    return b"PK\x01\x02".join([first, *changed])


WHOLE = npz(dyn__dynin0__kernel=npy(np.zeros((4, 4), np.float32)))
ZIPS: dict[str, bytes] = {
    "no zip": b"PK\x03\x04 nonsense",
    "nothing": b"",
    "cut short": WHOLE[: len(WHOLE) // 2],
    "a bad checksum": WHOLE.replace(WHOLE[70:80], b"0123456789"),
    "objects": npz(
        dyn__dynin0__kernel=npy(
            np.array([Malicious(os.system, ("touch ../canary",))], object), allow_pickle=True
        )
    ),
    "much from little": npz(dyn__dynin0__kernel=header("(1099511627776,)") + b"1234"),
    "no columns": npz(dyn__dynin0__kernel=header("(1099511627776, 0)")),
    "a long header": npz(dyn__dynin0__kernel=header("(" + "1," * 6_000 + ")")),
    "a header that is code": npz(dyn__dynin0__kernel=header("__import__('evil')")),
    "not a numeric array": npz(dyn__dynin0__kernel=b"text"),
    "another version": npz(dyn__dynin0__kernel=b"\x93NUMPY\x09\x09\x00\x00"),
    "more than memory": patched(
        npz(**{f"a{i}": npy(np.zeros(1)) for i in range(999)}), 24, b"\xf0\xff\xff\xff"
    ),
    "a locked member": patched(WHOLE, 8, b"\1\0"),
}  # fmt: skip


@pytest.mark.parametrize("data", ZIPS.values(), ids=ZIPS)
def test_a_hostile_zip_is_one_line(data, canary, tmp_path, capsys):
    (tmp_path / "w.npz").write_bytes(data)
    tracemalloc.start()
    imported(tmp_path / "w.npz", capsys)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20
    assert not canary.exists()


def itself(folder: Path) -> None:
    (folder / "ckpt").symlink_to(".")


def points_to_itself(folder: Path) -> None:
    (folder / "latest").write_text(".")


def points_nowhere(folder: Path) -> None:
    (folder / "latest").write_bytes(b"\xff\xfe\n/etc/passwd")


def a_loop(folder: Path) -> None:
    (folder / "agent.pkl").symlink_to("agent.pkl")


def a_pipe(folder: Path) -> None:
    os.mkfifo(folder / "agent.pkl")


def a_device(folder: Path) -> None:
    (folder / "agent.pkl").symlink_to("/dev/zero")


def a_folder(folder: Path) -> None:
    (folder / "agent.pkl").mkdir()


@pytest.mark.parametrize(
    "prepare", [itself, points_to_itself, points_nowhere, a_loop, a_pipe, a_device, a_folder]
)
def test_a_hostile_folder_is_one_line(prepare, tmp_path, canary, capsys):
    (tmp_path / "log").mkdir()
    prepare(tmp_path / "log")
    imported(tmp_path / "log", capsys)


@pytest.mark.parametrize("name", [b"caf\xe9\xff.pkl", b"\x1b[31mred.pkl"])
def test_a_files_name_does_not_reach_the_terminal_as_it_is(name, tmp_path, canary, capsys):
    path = os.fsencode(tmp_path) + b"/" + name
    with open(path, "wb") as file:
        file.write(b"nothing")
    error = imported(Path(os.fsdecode(path)), capsys)
    assert error.strip().isprintable()
    error.encode()


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (1, 1, 1, 1)])
@pytest.mark.parametrize("key", ["dyn/dynin0/kernel", "dyn/dynin1/kernel", "pol/head/action/x"])
def test_arrays_of_any_shape_are_one_line(shape, key, tmp_path, canary, capsys):
    weights = {KERNEL: np.ones((2, 2), np.float32), "dyn/dynin1/kernel": np.ones((32, 2))}
    np.savez(tmp_path / "w.npz", **{**weights, key: np.ones(shape, np.float32)})
    imported(tmp_path / "w.npz", capsys)


def test_the_good_is_still_read(tmp_path):
    weights = {KERNEL: np.arange(6, dtype=">f4").reshape(2, 3), "count": np.float32(2.5)}
    np.savez_compressed(tmp_path / "w.npz", **weights)
    (tmp_path / "w.pkl").write_bytes(pickle.dumps({"params": weights, "counters": {"n": 3}}))
    for name in ("w.npz", "w.pkl"):
        found = import_run.read_weights(tmp_path / name)
        for key, value in weights.items():
            np.testing.assert_array_equal(found[key], value)
    assert json.dumps(sorted(found)) == json.dumps(sorted(weights))
