"""A run that starts from another's checkpoint, and one that goes back to an earlier one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dreamlab import cli, training
from dreamlab.core.errors import CheckpointError, ConfigError
from dreamlab.engine.orchestrator import Orchestrator
from tests.helpers import metrics, open_loop, run_for, trained_once

COMMON = (
    "tiny=true", "device=cpu", "eval.episodes=1", "eval.every_frames=0", "eval.video=false",
    "log.every_frames=50", "checkpoint.every_frames=100", "checkpoint.every_s=0",
    "checkpoint.keep=20", "env.num_envs=2", "log.terminal=off",
)  # fmt: skip
RUNS = {
    "ppo": ("+experiment=ppo_cartpole", *COMMON, "training.total_frames=400",
            "++env.normalize_obs={}"),
    "dqn": ("+experiment=dqn_cartpole", *COMMON, "training.total_frames=500"),
}  # fmt: skip


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory):
    return trained_once(tmp_path_factory.mktemp("parents"), RUNS)


def weights(loop: Orchestrator) -> dict[str, Any]:
    state = loop.workflow.state_dict()
    return {k: v for k, v in state.items() if isinstance(v, torch.Tensor)}


def manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text())


def start(folder: Path, *options: str) -> Orchestrator:
    return open_loop(folder, *options)


def saved(run: Path, name: str) -> dict[str, Any]:
    return torch.load(run / "checkpoints" / name / "state.pt", weights_only=True)


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in (folder / "checkpoints").iterdir() if p.name.isdigit())


def test_a_run_starts_with_the_weights_of_another(parent, tmp_path):
    run = parent("ppo")
    chosen = names(run)[1]
    options = (*RUNS["ppo"], f"start.run={run}", f"start.checkpoint={chosen}", "seed=5")
    loop = start(tmp_path, *options)
    theirs = saved(run, chosen)
    for name, value in weights(loop).items():
        assert torch.equal(value, theirs["workflow"][name]), name
    assert loop.counters.env_frames == 0
    (name, fresh), *_ = loop.workflow.optimizers.items()
    assert str(fresh.state_dict()) != str(theirs["workflow"]["_extra_state"][name])
    ours = loop.parts.collector.envs.normalizer.get_state()["obs"]
    known = theirs["collector"]["envs"]["normalizer"]["obs"]
    assert ours["state"]["count"] == known["state"]["count"] > 0
    assert loop.run() == "finished"
    told = manifest(tmp_path)["parent"]
    assert told == {
        "run": str(run), "id": manifest(run)["id"], "checkpoint": chosen, "load": "weights",
    }  # fmt: skip


def test_it_is_resumed_without_the_other_run(parent, tmp_path):
    options = (*RUNS["ppo"], f"start.run={parent('ppo')}")
    assert start(tmp_path / "a", *options).run() == "finished"
    for actions in (1, 3):
        assert run_for(start(tmp_path / "b", *options), actions) == "interrupted"
    assert start(tmp_path / "b", *options).run() == "finished"
    assert metrics(tmp_path / "a") == metrics(tmp_path / "b")
    assert metrics(tmp_path / "a") != metrics(parent("ppo"))


def test_a_run_that_died_before_its_first_checkpoint_starts_there_again(parent, tmp_path):
    options = (*RUNS["ppo"], f"start.run={parent('ppo')}")
    start(tmp_path, *options)  # nothing was saved
    again = start(tmp_path, *options)
    theirs = saved(parent("ppo"), names(parent("ppo"))[-1])
    name, value = next(iter(weights(again).items()))
    assert torch.equal(value, theirs["workflow"][name])


@pytest.mark.parametrize("kind", ["ppo", "dqn"])
def test_everything_goes_on_where_the_other_run_was(kind, parent, tmp_path):
    """Forked in the middle with nothing changed, it ends as the other did, bit for bit."""
    run = parent(kind)
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    middle = names(run)[-3]
    loop = start(tmp_path / "x", *RUNS[kind], f"start.run={run}", f"start.checkpoint={middle}",
                 "start.load=all")  # fmt: skip
    assert loop.counters.env_frames == int(middle)
    assert loop.run() == "finished"
    assert metrics(tmp_path / "x") == metrics(run)
    assert before == {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    assert manifest(tmp_path / "x")["parent"]["load"] == "all"


def test_only_some_modules_are_taken(parent, tmp_path):
    run = parent("ppo")
    options = (*RUNS["ppo"], f"start.run={run}", "seed=3", "start.modules=[actor_net]")
    loop, theirs = start(tmp_path, *options), saved(run, names(run)[-1])["workflow"]
    same = {k for k, v in weights(loop).items() if torch.equal(v, theirs[k])}
    assert {k for k in theirs if k.startswith("actor_net")} <= same
    assert any(k.startswith("critic") for k in theirs)
    assert not any(k.startswith("critic") and k.endswith("weight") for k in same)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["start.run=nowhere"], "nowhere has no checkpoint"),
        (["start.checkpoint=lates"], "there is no checkpoint 'lates'. Did you mean 'latest'"),
        (["start.modules=[actr]"], "there is no module 'actr'"),
        (["env.id=Acrobot-v1"], r"do not fit: '.*' is \[.*\] there, here it is"),
        (["start.load=all", "start.modules=[actor_net]"], "modules requires load=weights"),
        (["start.load=all", "env.id=Acrobot-v1"], "does not fit this configuration"),
    ],
)
def test_what_does_not_fit_is_told(options, text, parent, tmp_path):
    given = [f"start.run={parent('ppo')}", *options]
    with pytest.raises(ConfigError, match=f"(?s){text}"):
        start(tmp_path, *RUNS["ppo"], *given)


# -- going back -----------------------------------------------------------------------------------


def test_a_run_goes_back_to_an_earlier_checkpoint_and_its_own_way_again(tmp_path, capsys):
    start(tmp_path, *RUNS["dqn"]).run()
    whole, all_names = metrics(tmp_path), names(tmp_path)
    back = all_names[-3]
    assert cli.main(["resume", str(tmp_path), "--checkpoint", back]) == 0
    assert metrics(tmp_path) == whole  # nothing else was changed
    assert names(tmp_path) == all_names
    undone = sorted(p.name for p in (tmp_path / "checkpoints").glob("undone_*"))
    assert undone == [f"undone_{n}" for n in all_names[-2:]]
    assert manifest(tmp_path)["status"] == "finished"


def test_a_checkpoint_that_is_not_there_changes_nothing(tmp_path, capsys):
    run_for(start(tmp_path, *RUNS["ppo"]), 4)
    before = sorted(p.name for p in tmp_path.rglob("*"))
    assert cli.main(["resume", str(tmp_path), "--checkpoint", "000000000007"]) == 2
    assert "there is no checkpoint '000000000007'" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.rglob("*")) == before
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        training.load_policy(tmp_path, "nope")


def test_the_best_that_was_undone_is_the_best_no_more(tmp_path):
    loop = start(tmp_path, *[o for o in RUNS["ppo"] if "eval.every" not in o],
                 "eval.every_frames=100")  # fmt: skip
    loop.run()
    folder = tmp_path / "checkpoints"
    metas = {n: json.loads((folder / n / "meta.json").read_text()) for n in names(tmp_path)}
    scores = {n: meta["score"] for n, meta in metas.items()}
    first = next(n for n in names(tmp_path) if scores[n] is not None)
    (folder / "best").write_text(f"{names(tmp_path)[-1]}\n")
    loop.checkpoints.restore(lambda state: None, True, first)
    assert (folder / "best").read_text().strip() == first
    assert (folder / "latest").read_text().strip() == first
