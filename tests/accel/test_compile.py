"""`compile=true`: the same training, compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dreamlab import build
from dreamlab.accel.compile import CompiledMethod, _only_ours
from dreamlab.core.errors import ConfigError
from dreamlab.engine.accelerate import ComputeConfig, speed_up
from tests.helpers import config_of, open_loop

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "ppo_cartpole", "dqn_cartpole", "sac_pendulum", "dreamer_cartpole", "tdmpc2_pendulum",
        "iql_pendulum", "cal_ql_pendulum",
    ],
)  # fmt: skip
def test_compiled_updates_move_the_weights_alike(name, tmp_path):
    command = [sys.executable, "-m", "tests.accel.compiled", name, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["same"], done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ["sac_pendulum", "log.norms=true", "workflow.optimizer.agc=0.3"],
        ["dqn_rainbow_cartpole", "log.norms=true", "workflow.optimizer.ema=0.99"],
    ],
)
def test_all_of_an_update_can_be_called_from_cpp(options, tmp_path):
    """What cannot may end the process; torch warns of it only when it compiles anew."""
    command = [sys.executable, "-m", "dreamlab", "train", *options, "tiny=true", "compile=true",
               "device=cpu", "training.total_frames=1500", f"run.dir={tmp_path / 'r'}"]  # fmt: skip
    fresh = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "compiled")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=fresh)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "c-shim" not in done.stderr


def test_parts_of_ones_own_are_not_called_from_cpp(tmp_path):
    loop = open_loop(tmp_path / "a", "+experiment=dqn_cartpole", "tiny=true", "device=cpu")
    assert _only_ours(loop.workflow)
    loop.workflow.own = type("Own", (torch.nn.Linear,), {"__module__": "own"})(1, 1)
    assert not _only_ours(loop.workflow)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_symmetric_distribution_has_mean_0_however_it_is_compiled(device):
    command = [sys.executable, "-m", "tests.accel.contracted", device]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["same"], done.stderr[-3000:]


def test_accumulated_gradients_are_refused(tmp_path):
    loop = open_loop(
        tmp_path / "a", "+experiment=ppo_cartpole", "tiny=true", "training.accumulate=2"
    )
    with pytest.raises(ConfigError, match="accumulate"):
        speed_up(ComputeConfig(compile=True), loop.workflow)


def test_what_marks_nothing_is_refused(tmp_path):
    loop = open_loop(tmp_path / "a", "+experiment=random_cartpole", "tiny=true", "device=cpu")
    with pytest.raises(ConfigError, match="Random marks no method as compilable"):
        speed_up(ComputeConfig(compile=True), loop.workflow)


def test_what_is_looked_into_after_every_update_is_not_compiled():
    options = ("+experiment=ppo_cartpole", "+preset=debug", "compile=true")
    with pytest.raises(ConfigError, match="looks at values within what compile=true"):
        build.check(config_of(*options))


def test_what_a_gpu_captures_is_compiled_in_pieces_elsewhere(tmp_path):
    loop = open_loop(tmp_path / "a", "+experiment=dreamer_cartpole", "tiny=true", "device=cpu")
    speed_up(ComputeConfig(compile=True), loop.workflow)
    assert isinstance(loop.workflow.predict_values, CompiledMethod)
    assert not isinstance(loop.workflow.update, CompiledMethod)
