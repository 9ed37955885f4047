"""A diffusion policy of LeRobot's, imported: the same actions for the same noise.

The checkpoints in `lerobot_diffusion` were made by LeRobot 0.4.4 with `make_lerobot_checkpoint.py`;
where DREAMLAB_LEROBOT_PYTHON names its Python, one with cameras is made and compared too.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from dreamlab import cli
from dreamlab.components import HOME
from dreamlab.components.policies.protocol import Policy
from dreamlab.core.config import Part
from dreamlab.core.errors import CheckpointError
from dreamlab.core.types import Mode
from dreamlab.interop import lerobot
from tests.helpers import need

HERE = Path(__file__).parent
MADE = HERE / "lerobot_diffusion"


@pytest.fixture(autouse=True)
def installed():
    need("safetensors")


def imported(folder: Path) -> Policy:
    checkpoint = lerobot.read_checkpoint(folder / "pretrained_model")
    options = lerobot.policy_options(checkpoint)
    policy = Part.load(options.pop("_target_"), options, HOME, Policy).build(checkpoint.spec())
    lerobot.load_weights(policy, lerobot.converted(checkpoint))
    return policy.eval()


def compare(folder: Path) -> None:
    """Sample with LeRobot's noise and compare the actions that are executed."""
    policy, given = imported(folder), lerobot.read_safetensors(folder / "expected.safetensors")
    noise, action = given.pop("noise"), given.pop("action")
    obs = {lerobot.short_name(k): _ours(v) for k, v in given.items()}
    torch.manual_seed(7)  # of the noise on the way
    with torch.no_grad():
        got = policy.sample(obs, noise=noise[:, None], mode=Mode.EVAL)[:, 0]
    first = policy.obs_steps - 1
    torch.testing.assert_close(got[:, first : first + policy.execute], action, rtol=1e-4, atol=1e-4)


def _ours(x: torch.Tensor) -> torch.Tensor:
    """Return an observation as we have it: a picture is bytes, channels last."""
    return (x * 255).round().byte().movedim(2, -1) if x.ndim == 5 else x


@pytest.mark.parametrize("kind", ["ddpm", "ddim"])
def test_the_same_noise_gives_the_same_actions(kind):
    compare(MADE / kind)


@pytest.mark.slow
def test_cameras_see_the_same(tmp_path):
    python = os.environ.get("DREAMLAB_LEROBOT_PYTHON")
    if not python:
        pytest.skip("DREAMLAB_LEROBOT_PYTHON names no Python with LeRobot")
    script = HERE / "make_lerobot_checkpoint.py"
    subprocess.run([python, script, tmp_path, "pixels"], check=True, capture_output=True)
    compare(tmp_path)


# -- the older format -----------------------------------------------------------------------------


def as_before(folder: Path) -> Path:
    """Return a copy in the form of versions before 0.4: statistics are among the weights."""
    from safetensors.torch import save_file

    shutil.copytree(MADE / "ddpm", folder / "old")
    place = folder / "old" / "pretrained_model"
    weights = lerobot.read_safetensors(place / "model.safetensors")
    for path in place.glob("policy_*"):
        if path.suffix == ".safetensors":
            where = "unnormalize_outputs" if "post" in path.name else "normalize_inputs"
            for key, value in lerobot.read_safetensors(path).items():
                feature, _, name = key.rpartition(".")
                weights[f"{where}.buffer_{feature.replace('.', '_')}.{name}"] = value
        path.unlink()
    save_file(weights, place / "model.safetensors")
    options = json.loads((place / "config.json").read_text())
    for old, new in (("input_shapes", "input_features"), ("output_shapes", "output_features")):
        options[old] = {k: v["shape"] for k, v in options.pop(new).items()}
    options.pop("normalization_mapping")
    options["input_normalization_modes"] = {"observation.state": "min_max"}
    options["output_normalization_modes"] = {"action": "min_max"}
    (place / "config.json").write_text(json.dumps(options))
    return folder / "old"


def test_statistics_inside_of_the_weights_are_found(tmp_path):
    compare(as_before(tmp_path))


# -- what is refused ------------------------------------------------------------------------------


def copied(folder: Path) -> Path:
    shutil.copytree(MADE / "ddpm", folder / "copy")
    return folder / "copy" / "pretrained_model"


def test_a_missing_statistic_is_named(tmp_path):
    place = copied(tmp_path)
    for path in place.glob("policy_*.safetensors"):
        path.unlink()
    with pytest.raises(CheckpointError, match=r"the min of 'observation.state' is missing"):
        lerobot.read_checkpoint(place)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(name, tmp_path):
    place = copied(tmp_path)
    (place / name).unlink()
    with pytest.raises(CheckpointError, match=f"has no {name}"):
        lerobot.read_checkpoint(place)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("type", "act", "type 'act'"),
        ("use_film_scale_modulation", False, "use_film_scale_modulation=False"),
        ("clip_sample_range", 2.0, "clip_sample_range=2.0"),
    ],
)
def test_what_we_do_not_have_is_refused(option, value, message, tmp_path):
    place = copied(tmp_path)
    options = {**json.loads((place / "config.json").read_text()), option: value}
    (place / "config.json").write_text(json.dumps(options))
    with pytest.raises(CheckpointError, match=message):
        lerobot.read_checkpoint(place)


def test_a_damaged_file_and_a_weight_too_few_are_named(tmp_path):
    from safetensors.torch import save_file

    place = copied(tmp_path)
    weights = lerobot.read_safetensors(place / "model.safetensors")
    weights.pop("diffusion.unet.final_conv.1.bias")
    save_file(weights, place / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"'net.out.1.bias' is missing"):
        imported(place.parent)
    (place / "model.safetensors").write_bytes(b"12345678")
    with pytest.raises(CheckpointError, match="is corrupted"):
        lerobot.read_checkpoint(place)


# -- a run of it ----------------------------------------------------------------------------------


def test_another_environment_is_refused_by_name(tmp_path, capsys):
    place = str(MADE / "ddpm" / "pretrained_model")
    words = ["env.id=Pendulum-v1", f"run.dir={tmp_path / 'run'}", "device=cpu"]
    assert cli.main(["import", "lerobot", place, *words]) == 2
    err = capsys.readouterr().err
    assert "observation 'environment_state': the weights have (3,), the environment none" in err
    assert "action: the weights have (2,), the environment (1,)" in err


class Matching:
    """Makes an environment of the policy's observations, in the units of its data."""

    SOURCE = """
import gymnasium as gym
import numpy as np
from gymnasium import spaces

class Env(gym.Env):
    def __init__(self, render_mode=None):
        sizes = {"state": 2, "environment_state": 3}
        self.observation_space = spaces.Dict(
            {k: spaces.Box(-9, 9, (n,), np.float32) for k, n in sizes.items()})
        self.action_space = spaces.Box(-9, 9, (2,), np.float32)
        self.count = 0
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.see(), {}
    def see(self):
        return {k: self.np_random.uniform(-4, 1, s.shape).astype(np.float32)
                for k, s in self.observation_space.items()}
    def step(self, action):
        self.count += 1
        return self.see(), float(action[0]), False, self.count >= 7, {}
"""


def test_an_imported_run_is_measured_in_the_units_of_its_data(tmp_path, monkeypatch, capsys):
    (tmp_path / "matching_env.py").write_text(Matching.SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    place, run = str(MADE / "ddim" / "pretrained_model"), tmp_path / "run"
    words = ["env.id=matching_env:Env", f"run.dir={run}", "device=cpu", "eval.video=false"]
    assert cli.main(["import", "lerobot", place, *words]) == 0
    assert cli.main(["eval", str(run), "--episodes", "2"]) == 0
    assert "return" in capsys.readouterr().out
