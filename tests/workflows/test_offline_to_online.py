"""One YAML file takes any of the algorithms from another run's data to the environment."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.helpers import metrics, open_loop, some_of

YAML = Path(__file__).parents[2] / "examples" / "offline_to_online.yaml"
SMALL = (
    "tiny=true", "device=cpu", "eval.every_frames=0", "eval.episodes=1", "eval.num_envs=1",
    "eval.video=false", "log.every_frames=100",
)  # fmt: skip
HOOKS = (
    "training.phases.0.workflow_hooks=[update_critic, update_policy]",
    "training.phases.1.workflow_hooks=[collect, update_critic, update_policy]",
)


@pytest.fixture(scope="module")
def played(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("played") / "run"
    open_loop(folder, "+experiment=sac_pendulum", *SMALL, "training.total_frames=450").run()
    return folder


@pytest.mark.parametrize(
    ("workflow", "more"),
    some_of(
        [
            ("cal_ql.CalQL", ()),
            ("iql.IQL", ()),
            ("td3_bc.TD3BC", ()),
            ("diffusion_rl.DiffusionRL", HOOKS),
            ("pa_rl.PARL", (*HOOKS, "+training.phases.1.proportional=[update_policy]")),
        ]
    ),
)
def test_it_learns_from_data_and_goes_on_online(workflow, more, played: Path, tmp_path: Path):
    options = [f"workflow={{_target_: dreamlab.workflows.{workflow}}}", *SMALL, *more]
    data = [f"buffers.data.run={played}", "training.total_frames=450"]
    loop = open_loop(tmp_path / "run", str(YAML), *options, *data)
    assert loop.run() == "finished"
    phases = {int(record["phase"]) for record in metrics(tmp_path / "run")}
    assert 1 in phases
    assert loop.counters.updates > 8
    assert loop.counters.env_frames >= 450
    found = [r for r in metrics(tmp_path / "run") if "train/critic_grad_norm" in r]
    assert found, "the critics learnt online, too"
