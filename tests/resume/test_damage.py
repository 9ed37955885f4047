"""Broken files: the checkpoint before a broken one is used; nothing in a file is executed."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dreamlab.cli import main
from dreamlab.core.clock import Clock
from dreamlab.core.errors import CheckpointError
from dreamlab.core.files import write_json
from dreamlab.engine.checkpoint import CheckpointConfig, Checkpoints
from dreamlab.engine.checkpoint_files import _check, _hash
from dreamlab.engine.observer import Observer
from dreamlab.runs.run import FolderLock, Run
from tests.helpers import metrics, open_loop, run_for

RUN = (
    "+experiment=ppo_cartpole", "tiny=true", "env.num_envs=2", "training.total_frames=600",
    "log.every_frames=50", "eval.episodes=1", "eval.every_frames=0", "eval.video=false",
    "checkpoint.every_frames=100", "device=cpu",
)  # fmt: skip


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stopped")
    open_loop(folder / "whole", *RUN).run()
    assert run_for(open_loop(folder / "run", *RUN), 21) == "interrupted"
    return folder


@pytest.fixture
def stopped(stopped_once, tmp_path):
    """A run interrupted with two checkpoints, beside one that was not."""
    shutil.copytree(stopped_once, tmp_path, dirs_exist_ok=True)
    names = sorted(p.name for p in (tmp_path / "run" / "checkpoints").glob("[0-9]*"))
    assert len(names) >= 2
    return tmp_path, tmp_path / "run" / "checkpoints" / names[-1]


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    "damage", [truncate, flip, Path.unlink], ids=["truncated", "one byte", "missing"]
)
@pytest.mark.parametrize("file", ["state.pt", "meta.json"])
def test_the_checkpoint_before_a_damaged_one_is_used(stopped, damage, file):
    folder, newest = stopped
    damage(newest / file)
    loop = open_loop(folder / "run", *RUN)
    assert 0 < loop.counters.env_frames < int(newest.name)
    events = [
        json.loads(line) for line in (folder / "run" / "events.jsonl").read_text().splitlines()
    ]
    assert any("falling back to the previous checkpoint" in e.get("text", "") for e in events)
    loop.run()
    assert metrics(folder / "run") == metrics(folder / "whole")


def tree(folder: Path) -> dict[str, bytes]:
    """Return everything in a folder, as it is."""
    files = (p for p in sorted(folder.rglob("*")) if p.is_file())
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def refused(folder: Path, capsys, *words: str) -> None:
    """Assert that neither resume nor train goes on in a folder, however often, nor changes it."""
    before = tree(folder)
    train = ["train", *RUN, f"run.dir={folder}", "log.terminal=off"]
    for command in (["resume", str(folder)], train, ["resume", str(folder)]):
        assert main(command) == 2, command
        err = capsys.readouterr().err
        assert all(word in err for word in words), err
        assert tree(folder) == before


def test_if_no_checkpoint_is_whole_the_run_is_refused_every_time(stopped, capsys):
    folder, newest = stopped
    for path in newest.parent.glob("[0-9]*/state.pt"):
        truncate(path)
    refused(folder / "run", capsys, "all checkpoints", newest.name, "another run.dir")
    assert main(["eval", str(folder / "run")]) == 2


def renamed(checkpoints: Path) -> None:
    """Leave what an older version left of checkpoints that were all damaged."""
    for path in checkpoints.glob("[0-9]*"):
        path.rename(checkpoints / f"damaged_{path.name}")


def only_pointers(checkpoints: Path) -> None:
    for path in checkpoints.glob("[0-9]*"):
        shutil.rmtree(path)


def emptied(checkpoints: Path) -> None:
    shutil.rmtree(checkpoints)
    (checkpoints / ".000000000100.17.tmp").mkdir(parents=True)


@pytest.mark.parametrize("lose", [renamed, only_pointers, emptied, shutil.rmtree])
def test_a_run_that_lost_its_checkpoints_does_not_begin_anew_by_itself(stopped, lose, capsys):
    folder, newest = stopped
    lose(newest.parent)
    refused(folder / "run", capsys, "the checkpoints of this run are missing", "another run.dir")


def test_a_run_of_an_older_version_that_lost_its_checkpoints_is_refused_too(stopped, capsys):
    folder, newest = stopped
    shutil.rmtree(newest.parent)
    run = Run(folder / "run")
    assert run.manifest.pop("saved_frames") > 0
    write_json(run.manifest_path, run.manifest)
    refused(folder / "run", capsys, "the checkpoints of this run are missing")


class Dies(Observer):
    """Ends a run as soon as it has written a record."""

    def flushed(self, record: dict[str, float]) -> None:
        raise RuntimeError("died")


def test_a_run_that_died_before_its_first_checkpoint_begins_anew(stopped):
    folder, _ = stopped
    loop = open_loop(folder / "dead", *RUN)
    assert not loop.run_log.saved
    loop.observers.add(Dies())
    with pytest.raises(RuntimeError, match="died"):
        loop.run()
    assert loop.checkpoints.names() == []
    assert len(metrics(folder / "dead")) > 0
    assert main(["resume", str(folder / "dead")]) == 0
    assert metrics(folder / "dead") == metrics(folder / "whole")


def test_whoever_only_reads_renames_nothing(stopped, capsys):
    folder, newest = stopped
    flip(newest / "state.pt")
    before = tree(folder / "run")
    out = ["--out", str(folder / "out")]
    assert main(["eval", str(folder / "run"), "--episodes", "1", "--json", *out]) == 0
    said = capsys.readouterr()
    assert 0 < json.loads(said.out)["env_frames"] < int(newest.name)
    assert "falling back to the previous checkpoint" in said.err
    assert tree(folder / "run") == before


@pytest.mark.parametrize("which", [0, -1])
def test_a_checkpoint_of_a_newer_version_is_no_damage(stopped, which, capsys):
    folder, newest = stopped
    changed = sorted(newest.parent.glob("[0-9]*"))[which]
    meta = json.loads((changed / "meta.json").read_text())
    write_json(changed / "meta.json", {**meta, "format": 2, "sha256": "of another kind"})
    if which == 0:
        truncate(newest / "state.pt")
    refused(folder / "run", capsys, changed.name, "written by a newer version")
    assert main(["eval", str(folder / "run")]) == 2
    assert "written by a newer version" in capsys.readouterr().err


def test_damage_is_set_aside_once_another_checkpoint_was_taken(stopped):
    folder, newest = stopped
    for _ in range(2):  # the second one finds the name taken
        truncate(newest / "state.pt")
        open_loop(folder / "run", *RUN)
        latest = (newest.parent / "latest").read_text().strip()
        assert latest == max(p.name for p in newest.parent.glob("[0-9]*"))
        shutil.copytree(newest.parent / f"damaged_{newest.name}", newest)
    names = {p.name for p in newest.parent.glob("damaged_*")}
    assert names == {f"damaged_{newest.name}", f"damaged_{newest.name}_2"}


def test_a_bit_flipped_anywhere_in_what_is_known_of_a_checkpoint_is_noticed(tmp_path):
    said: list[str] = []
    checkpoints = Checkpoints(tmp_path, CheckpointConfig(), said.append)
    for frames in (1, 2):
        clock = Clock("frames", frames)
        checkpoints.save({"frames": frames}, clock, 1.5, {"replay": {"added": 7, "saves": 2}})
    path = tmp_path / f"{2:012d}" / "meta.json"
    whole = path.read_bytes()
    version = whole.index(b"1")
    for place in {*range(whole.index(b'"check"'))} - {version}:
        data = bytearray(whole)
        data[place] ^= 1 << place % 7
        path.write_bytes(bytes(data))
        assert checkpoints.load() == {"frames": 1}, bytes(data)
    path.write_bytes(whole)
    assert checkpoints.load() == {"frames": 2}


def test_a_process_killed_while_it_replaces_a_checkpoint_loses_none(stopped):
    folder, newest = stopped
    for path in newest.parent.glob("[0-9]*"):
        path.rename(newest.parent / f".{path.name}.old")
    (newest.parent / f".{newest.name}.17.tmp").mkdir()
    loop = open_loop(folder / "run", *RUN)
    assert loop.counters.env_frames == int(newest.name)
    assert not list(newest.parent.glob(".*"))
    loop.run()
    assert metrics(folder / "run") == metrics(folder / "whole")


def test_a_configuration_that_is_no_yaml_is_one_message(stopped, capsys):
    folder, _ = stopped
    (folder / "run" / "config.yaml").write_text("a: [1,\nb: }")
    assert main(["resume", str(folder / "run")]) == 2
    assert "config.yaml is not valid YAML" in capsys.readouterr().err


class Bomb:
    def __reduce__(self):
        return (Path.touch, (Path("exploded"),))


def test_loading_never_executes_code_from_the_file(stopped, monkeypatch):
    folder, newest = stopped
    monkeypatch.chdir(folder)
    for path in newest.parent.glob("[0-9]*"):
        torch.save({"workflow": Bomb()}, path / "state.pt", pickle_module=pickle)
        meta = json.loads((path / "meta.json").read_text())
        meta = {**meta, "sha256": _hash(path / "state.pt")}
        del meta["check"]
        write_json(path / "meta.json", {**meta, "check": _check(meta)})
    with pytest.raises(CheckpointError, match="cannot be read"):
        open_loop(folder / "run", *RUN)
    assert not (folder / "exploded").exists()


def test_two_processes_cannot_write_into_one_folder(tmp_path):
    folder = tmp_path / "run"
    with FolderLock(folder):
        code = "import sys; from dreamlab.cli import main; sys.exit(main(sys.argv[1:]))"
        done = subprocess.run(
            [sys.executable, "-c", code, "train", *RUN, f"run.dir={folder}"],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert "another process is using" in done.stderr
    assert main(["train", *RUN, f"run.dir={folder}", "log.terminal=off"]) == 0


def test_a_finished_run_is_not_trained_again_but_can_be_extended(tmp_path):
    folder = tmp_path / "run"
    open_loop(folder, *RUN).run()
    lines = metrics(folder)
    assert open_loop(folder, *RUN).run() == "finished"
    assert metrics(folder) == lines
    longer = [o for o in RUN if "total_frames" not in o]
    open_loop(folder, *longer, "training.total_frames=900").run()
    frames = [r["env_frames"] for r in metrics(folder)]
    assert frames == sorted(frames)
    assert frames[-1] >= 900


FULL_DISK = """
import resource, sys
from dreamlab.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
sys.exit(main(sys.argv[2:]))
"""


def test_a_full_disk_is_one_message_and_the_run_goes_on_once_there_is_room(stopped):
    folder, newest = stopped
    size = (newest / "state.pt").stat().st_size
    run = Run(folder / "run")
    write_json(run.manifest_path, {**run.manifest, "git": {}})  # a diff may be larger than all else
    command = [sys.executable, "-c", FULL_DISK, str(size - 500), "resume", str(folder / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "File too large" in done.stderr
    assert "free disk space" in done.stderr
    assert "Traceback" not in done.stderr
    assert Run(folder / "run").manifest["status"] == "failed"
    assert not list(newest.parent.glob(".*"))
    assert open_loop(folder / "run", *RUN).run() == "finished"


def test_a_place_that_cannot_be_written_to_is_one_message(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["train", *RUN, f"run.dir={tmp_path / 'file' / 'run'}"]) == 2
    err = capsys.readouterr().err
    assert "Not a directory" in err
    assert "run.dir" in err
