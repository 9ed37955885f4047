"""Broken files: the checkpoint before a broken one is used; nothing in a file is executed."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dreamlab.cli import main
from dreamlab.core.errors import CheckpointError
from dreamlab.core.files import write_json
from dreamlab.runs.run import FolderLock, Run
from tests.helpers import metrics, open_loop, run_for

RUN = (
    "+experiment=ppo_cartpole", "tiny=true", "env.num_envs=2", "training.total_frames=600",
    "log.every_frames=50", "eval.episodes=1", "eval.every_frames=0", "eval.video=false",
    "checkpoint.every_frames=100", "device=cpu",
)  # fmt: skip


@pytest.fixture
def stopped(tmp_path):
    """A run interrupted with two checkpoints, beside one that was not."""
    open_loop(tmp_path / "whole", *RUN).run()
    assert run_for(open_loop(tmp_path / "run", *RUN), 21) == "interrupted"
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
    assert any("using the checkpoint before it" in e.get("text", "") for e in events)
    loop.run()
    assert metrics(folder / "run") == metrics(folder / "whole")


def test_if_no_checkpoint_is_whole_the_run_says_so(stopped):
    folder, newest = stopped
    for path in newest.parent.glob("[0-9]*/state.pt"):
        truncate(path)
    with pytest.raises(CheckpointError, match="none of the checkpoints"):
        open_loop(folder / "run", *RUN)


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
        from dreamlab.engine.checkpoint import _hash

        (path / "meta.json").write_text(json.dumps({**meta, "sha256": _hash(path / "state.pt")}))
    with pytest.raises(CheckpointError):
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
    assert "another process is writing" in done.stderr
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
    assert "make room" in done.stderr
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
