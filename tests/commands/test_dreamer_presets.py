"""Every DreamerV3 preset composes, and builds its agent for the environment it names."""

from __future__ import annotations

import os

import pytest
import yaml

from dreamlab import build
from dreamlab.config import LabConfig, choices, compose, config_dir, load_config
from dreamlab.core.types import ArraySpec, Spec
from dreamlab.data.replay import ReplayConfig
from dreamlab.envs.doctor import TRIALS
from dreamlab.envs.vector import make_env, spec_of
from dreamlab.workflows.dreamer_v3 import DreamerV3

TARGET = f"{DreamerV3.__module__}.{DreamerV3.__name__}"
INSTALLED = {trial.name: trial.installed for trial in TRIALS}
NEEDS = {"loconav": "dmc"}  # the extra, where it is not called like the suite
ABSENT = ("minecraft", "dmlab")  # cannot be installed everywhere: built for a spec like theirs
OFFICIAL = {  # train ratio, environments, env frames per decision, decisions
    "atari": (32, 16, 4, 5.1e7), "atari100k": (256, 1, 4, 1.1e5), "crafter": (512, 1, 1, 1.1e6),
    "dmc_proprio": (1024, 16, 1, 1.1e6), "dmc_vision": (256, 16, 1, 1.1e6),
    "procgen": (64, 16, 1, 1.1e8), "dmlab": (32, 16, 4, 2.6e7),
}  # fmt: skip


def dreamers() -> list[str]:
    files = {n: config_dir() / "experiment" / f"{n}.yaml" for n in choices("experiment")}
    nodes = {n: yaml.safe_load(p.read_text()) for n, p in files.items()}
    return [n for n, node in nodes.items() if node.get("workflow", {}).get("_target_") == TARGET]


def config_of(name: str, *overrides: str) -> LabConfig:
    return load_config(compose([f"+experiment={name}", *overrides]))


def spec_for(config: LabConfig) -> Spec:
    """Return what the environment shows; for one that is not installed, what it would show."""
    suite = config.env.suite
    if suite in ABSENT and not INSTALLED[suite]:
        obs = {"image": ArraySpec((64, 64, 3), "uint8"), "health": ArraySpec((1,))}
        return Spec(obs, ArraySpec((), "int64", classes=15))
    if not INSTALLED.get(NEEDS.get(suite, suite), True):
        text = f"{suite} is not installed"
        if os.environ.get("DREAMLAB_REQUIRE_EXTRAS") == "1":
            pytest.fail(text)
        pytest.skip(text)
    env = make_env(config.env, 0, 0)
    spec = spec_of(env)
    env.close()
    return spec


def test_every_official_block_has_a_preset():
    blocks = {*OFFICIAL, "minecraft", "bsuite", "loconav", "minigrid", "memorymaze", "pinpad"}
    assert {f"dreamer_{b}" for b in (*blocks, "debug", "walker", "cartpole")} <= {*dreamers()}


@pytest.mark.parametrize("name", dreamers())
def test_it_composes_and_builds(name: str):
    build.check(config_of(name))
    config = config_of(name, "tiny=true", "device=cpu")
    spec = spec_for(config)
    workflow = build.build_workflow(config, spec)
    assert isinstance(workflow, DreamerV3)
    assert build.buffer_bytes(config.buffers["replay"], workflow, 1) < 2**27


@pytest.mark.parametrize("name", OFFICIAL)
def test_numbers_are_the_official_ones(name: str):
    config = config_of(f"dreamer_{name}")
    phase, options = config.training.phases[0], config.buffers["replay"].config
    ratio, envs, frames, decisions = OFFICIAL[name]
    assert (phase.train_ratio, config.env.num_envs) == (ratio, envs)
    assert phase.duration_steps == frames * decisions
    assert options.capacity >= min(5e6, 1.05 * decisions)
    assert config.workflow.config.size == ("1m" if "proprio" in name else "200m")
    assert config.precision == "bf16"


PRESETS = [
    n for n in dreamers() if config_of(n).buffers["replay"].config.sampler.target != "uniform"
]


@pytest.mark.parametrize("name", PRESETS)
def test_learning_begins_when_as_many_windows_are_stored_as_a_batch_has_steps(name: str):
    config = config_of(name)
    replay = config.buffers["replay"].config
    assert isinstance(replay, ReplayConfig)
    assert replay.context == 1
    steps = replay.batch * (replay.length - 1)
    assert replay.min_steps == steps + (replay.length - 1) * config.env.num_envs
    assert replay.sampler.target == "online"
