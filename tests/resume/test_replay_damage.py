"""Damaged files of a replay: the run goes on from the last checkpoint that does not need them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dreamlab.cli import main
from tests.helpers import metrics, open_loop, run_for
from tests.resume.test_damage import flip, tree, truncate

RUN = (
    "+experiment=dqn_cartpole", "tiny=true", "env.num_envs=2", "training.total_frames=400",
    "log.every_frames=50", "eval.episodes=1", "eval.every_frames=0", "eval.video=false",
    "checkpoint.every_frames=60", "checkpoint.keep=3", "device=cpu", "log.terminal=off",
)  # fmt: skip
Damage = Callable[[Path], Any]


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stopped")
    open_loop(folder / "whole", *RUN).run()
    assert run_for(open_loop(folder / "run", *RUN), 72) == "interrupted"
    return folder


@pytest.fixture
def stopped(stopped_once: Path, tmp_path: Path) -> Path:
    """A run interrupted with three checkpoints, beside one that was not."""
    return Path(shutil.copytree(stopped_once, tmp_path, dirs_exist_ok=True))


def files(folder: Path, kind: str) -> list[Path]:
    """Return the files of one kind, in order."""
    return sorted(folder.glob(f"buffers/*/{kind}_*.pt"), key=lambda p: int(p.name.split("_")[1]))


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in (folder / "checkpoints").glob("[0-9]*"))


@pytest.mark.parametrize(
    "damage", [truncate, flip, Path.unlink], ids=["truncated", "one byte", "missing"]
)
@pytest.mark.parametrize("lost", [1, 2])
def test_the_last_checkpoint_that_does_not_need_a_damaged_file_is_used(
    stopped: Path, damage: Damage, lost: int, capsys: Any
):
    folder = stopped / "run"
    *_, before, after = saved = names(folder)
    path = files(folder, "steps")[-lost]
    damage(path)
    assert main(["resume", str(folder)]) == 0
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    (resumed,) = [e["env_frames"] for e in events if e["event"] == "resumed"]
    assert resumed == int(saved[-1 - lost])
    said = [
        e["text"] for e in events if "falling back to the previous checkpoint" in e.get("text", "")
    ]
    assert len(said) == lost
    assert after in said[0]
    if damage is not Path.unlink:
        assert f"{path.name} is corrupted" in said[0]
    aside = {p.name for p in (folder / "checkpoints").glob("damaged_*")}
    assert aside == {f"damaged_{name}" for name in (before, after)[-lost:]}
    assert metrics(folder) == metrics(stopped / "whole")


@pytest.mark.parametrize(
    "damage", [truncate, flip, Path.unlink], ids=["truncated", "one byte", "missing"]
)
def test_if_every_checkpoint_needs_the_file_it_is_named_and_nothing_changes(
    stopped: Path, damage: Damage, capsys: Any
):
    folder = stopped / "run"
    path = files(folder, "steps")[0]
    damage(path)
    before = tree(folder)
    for _ in range(2):
        assert main(["resume", str(folder)]) == 2
        err = capsys.readouterr().err
        assert "all checkpoints" in err
        assert "another run.dir" in err
        assert (str(path) if damage is not Path.unlink else "are missing") in err
        assert tree(folder) == before
    out = ["--episodes", "1", "--out", str(stopped / "out")]
    assert main(["eval", str(folder), *out]) == 0  # it needs no replay
