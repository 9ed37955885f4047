"""What a normalization of data means for policies and environments."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dreamlab.components import HOME
from dreamlab.components.policies.protocol import Policy
from dreamlab.core.config import Part
from dreamlab.core.errors import ConfigError
from dreamlab.core.files import CACHE
from dreamlab.core.types import Mode, Spec
from dreamlab.data.dataset_source import DatasetSource
from dreamlab.envs.vector import EnvConfig, Envs
from tests.data.sets import write_v3
from tests.data.test_dataset_source import configured, source


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))


def test_observations_beyond_the_quantiles_are_kept(tmp_path: Path):
    made = source(write_v3(tmp_path / "set"), normalize={"state": "quantiles"})
    assert made.store.data["obs/state"].abs().max() > 1
    assert DatasetSource.spec_of(made.config).obs["state"].high is None


@pytest.mark.parametrize("kind", ["gaussian", "diffusion", "flow", "autoregressive"])
def test_a_policy_takes_the_modes_that_are_bounded(kind: str, tmp_path: Path):
    folder = write_v3(tmp_path / "set")
    policy = Part.load(kind, {}, HOME, Policy)

    def spec(mode: str) -> Spec:
        return DatasetSource.spec_of(configured(folder, normalize={"action": mode}))

    for mode in ("min_max", "quantiles", "bounds"):
        assert policy.build(spec(mode)).action.high == 1
    with pytest.raises(ConfigError, match=r"unbounded\. Normalize .* by min_max, quantiles or bou"):
        policy.build(spec("mean_std"))


def test_a_plain_gaussian_takes_unbounded_actions(tmp_path: Path):
    config = configured(write_v3(tmp_path / "set"), normalize={"action": "mean_std"})
    spec = DatasetSource.spec_of(config)
    policy = Part.load("gaussian", {"squash": False}, HOME, Policy).build(spec)
    torch.nn.init.constant_(policy.head.bias, 3.0)
    obs = {"state": torch.zeros(4, 1, 2)}
    assert (policy.sample(obs, mode=Mode.EVAL) > 2).all()  # not clipped
    assert (
        policy.loss(obs, torch.full((4, 1, 1), 3.0)).mean()
        < policy.loss(obs, torch.ones(4, 1, 1)).mean()
    )


@pytest.mark.parametrize("mode", ["mean_std", "quantiles"])
def test_an_environment_takes_actions_in_its_own_units_and_bounds(mode: str, tmp_path: Path):
    scaling = source(write_v3(tmp_path / "set"), normalize={"action": mode}).scaling
    envs = Envs(EnvConfig("Pendulum-v1", scale_actions=False), 0, scaling)
    own = envs.unscaled(np.array([[0.5]], np.float32))
    assert np.array_equal(own, scaling["action"].invert(np.array([[0.5]])))
    assert envs.unscaled(np.array([[90.0]], np.float32)) == 2
