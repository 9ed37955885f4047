"""A folder that a run is given: whose it is, who has it, and what a failed start leaves."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dreamlab.cli import main
from dreamlab.core.errors import LabError
from dreamlab.envs.dummy import Identity
from dreamlab.runs.folder import claimed
from dreamlab.runs.run import FolderLock
from tests.helpers import metrics, open_loop, run_for
from tests.interop.test_dreamerv3 import weights_of
from tests.interop.test_import import ENV, SMALL, agent_for, write_pickle

RUN = (
    "+experiment=ppo_cartpole", "tiny=true", "env.num_envs=2", "training.total_frames=200",
    "log.every_frames=50", "eval.episodes=1", "eval.every_frames=0", "eval.video=false",
    "checkpoint.every_frames=100", "device=cpu", "log.terminal=off",
)  # fmt: skip
TYPO = "env.id=CartPole-v99"


class Leaving(Identity):
    """An environment that cannot be made, and a user who works in the folder meanwhile."""

    def __init__(self, folder: str) -> None:
        Path(folder, "notes.txt").write_text("mine")
        raise LabError("no such display")


def tree(folder: Path) -> dict[str, bytes]:
    """Return everything in a folder, as it is."""
    files = (p for p in sorted(folder.rglob("*")) if p.is_file())
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


@pytest.fixture
def thesis(tmp_path: Path) -> Path:
    """A folder of the user's own."""
    folder = tmp_path / "p"
    (folder / "chapters").mkdir(parents=True)
    (folder / "chapters" / "one.tex").write_text("years of work")
    (folder / ".git").mkdir()
    (folder / "manifest").write_text("no manifest of ours")
    return folder


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("once") / "run"
    assert run_for(open_loop(folder, *RUN), 8) == "interrupted"
    return folder


@pytest.fixture
def trained(trained_once: Path, tmp_path: Path) -> Path:
    """A run that was interrupted after its first checkpoint."""
    return Path(shutil.copytree(trained_once, tmp_path / "run"))


# -- folders that are not a run's ------------------------------------------------------------------


@pytest.mark.parametrize("option", [TYPO, "device=cuda", "log.every_frames=10"])
def test_a_folder_with_other_files_is_refused_and_nothing_is_written(
    option: str, thesis: Path, capsys: Any
):
    before = tree(thesis)
    assert main(["train", *RUN, option, f"run.dir={thesis}"]) == 2
    err = capsys.readouterr().err
    assert "is not empty and not a run: it contains .git, chapters, manifest" in err
    assert "run.dir" in err
    assert tree(thesis) == before
    assert not (thesis / ".lock").exists()


def test_the_folder_one_stands_in_is_no_exception(thesis: Path, monkeypatch: Any, capsys: Any):
    monkeypatch.chdir(thesis)
    before = tree(thesis)
    assert main(["train", *RUN, "run.dir=.", "device=cuda"]) == 2
    assert "is not empty and not a run" in capsys.readouterr().err
    assert tree(thesis) == before


@pytest.mark.parametrize("verb", ["import", "debug", "demo", "resume"])
def test_every_verb_that_makes_a_run_leaves_other_files_alone(
    verb: str, thesis: Path, tmp_path: Path, capsys: Any
):
    (thesis / "config.yaml").write_text("learning: true\n")  # of another program
    write_pickle(tmp_path / "agent.pkl", weights_of(agent_for("identity")))
    before, place = tree(thesis), f"run.dir={thesis}"
    arguments = {
        "import": ["dreamerv3", str(tmp_path / "agent.pkl"), *ENV["identity"], *SMALL, place],
        "debug": [*RUN, place],
        "demo": ["training.total_frames=60", "log.terminal=off", place],
        "resume": [str(thesis)],
    }
    assert main([verb, *arguments[verb]]) == 2
    assert str(thesis) in capsys.readouterr().err
    assert tree(thesis) == before
    assert not (thesis / ".lock").exists()


def test_a_folder_that_is_not_there_is_not_made_by_resume(tmp_path: Path, capsys: Any):
    assert main(["resume", str(tmp_path / "nowhere")]) == 2
    assert "not a run directory" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_link_that_leads_nowhere_is_one_message(tmp_path: Path, capsys: Any):
    (tmp_path / "link").symlink_to(tmp_path / "unmounted")
    assert main(["train", *RUN, f"run.dir={tmp_path / 'link'}"]) == 2
    assert "is a broken symlink" in capsys.readouterr().err


# -- starts that fail -----------------------------------------------------------------------------


def test_a_failed_start_removes_the_folders_it_made_and_no_other(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    assert main(["train", *RUN, TYPO, f"run.dir={tmp_path}/mine/a/b/run"]) == 2
    assert list(tmp_path.rglob("*")) == [tmp_path / "mine"]


def test_a_failed_start_leaves_an_empty_folder_empty(tmp_path: Path):
    assert main(["train", *RUN, TYPO, f"run.dir={tmp_path}"]) == 2
    assert list(tmp_path.iterdir()) == []
    assert main(["train", *RUN, f"run.dir={tmp_path}"]) == 0


def test_what_the_user_adds_while_a_start_fails_stays(tmp_path: Path):
    folder = tmp_path / "new"
    own = f"env.options={{folder: {folder}}}"
    options = ("env.suite=gym", "env.id=tests.resume.test_folder:Leaving", f"++{own}")
    assert main(["train", *RUN, *options, f"run.dir={folder}"]) == 2
    assert tree(folder) == {"notes.txt": b"mine"}


def test_a_failed_import_leaves_an_empty_folder_empty(tmp_path: Path, monkeypatch: Any):
    from dreamlab.interop import import_run

    def fail(*_: Any) -> bool:
        raise LabError("it does not fit")

    monkeypatch.setattr(import_run, "fill", fail)
    write_pickle(tmp_path / "agent.pkl", weights_of(agent_for("identity")))
    (tmp_path / "empty").mkdir()
    arguments = [str(tmp_path / "agent.pkl"), *ENV["identity"], *SMALL]
    for name in ("empty", "new"):
        assert main(["import", "dreamerv3", *arguments, f"run.dir={tmp_path / name}"]) == 2
    assert list((tmp_path / "empty").iterdir()) == []
    assert not (tmp_path / "new").exists()


def test_a_start_that_fails_in_a_run_changes_nothing(trained: Path, monkeypatch: Any):
    before = tree(trained)
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert main(["train", *RUN, "log.wandb=true", f"run.dir={trained}"]) == 2
    assert tree(trained) == before
    assert main(["train", *RUN, "training.total_frames=300", f"run.dir={trained}"]) == 0


def test_a_start_that_was_killed_before_its_manifest_can_be_made_again(tmp_path: Path):
    open_loop(tmp_path / "whole", *RUN).run()
    open_loop(tmp_path / "r", *RUN)
    for path in (tmp_path / "r").iterdir():
        if path.name not in ("config.yaml", ".lock"):
            path.unlink()
    (tmp_path / "r" / ".manifest.json.17.tmp").write_text("{")
    assert main(["resume", str(tmp_path / "r")]) == 0
    assert metrics(tmp_path / "r") == metrics(tmp_path / "whole")
    assert json.loads((tmp_path / "r" / "manifest.json").read_text())["id"]


# -- runs that lost a file ------------------------------------------------------------------------


@pytest.mark.parametrize("option", [TYPO, "log.every_frames=50"])
def test_a_run_without_its_configuration_is_refused_and_keeps_all_it_has(
    option: str, trained: Path, capsys: Any
):
    (trained / "config.yaml").unlink()
    before = tree(trained)
    for arguments in (["train", *RUN, option, f"run.dir={trained}"], ["resume", str(trained)]):
        assert main(arguments) == 2
        assert "but no config.yaml" in capsys.readouterr().err
    assert tree(trained) == before


def test_a_run_without_its_manifest_goes_on_and_gets_a_new_one(trained: Path):
    (trained / "manifest.json").unlink()
    frames = metrics(trained)[-1]["env_frames"]
    assert main(["resume", str(trained)]) == 0
    assert json.loads((trained / "manifest.json").read_text())["seed"] == 0
    assert metrics(trained)[-1]["env_frames"] > frames


# -- several processes at once --------------------------------------------------------------------


def in_child(work: Callable[[], int], log: Path) -> int:
    """Do `work` in a process of its own, its stderr in a file; return its id."""
    if pid := os.fork():
        return pid
    code = 99
    try:
        with log.open("w") as file:
            os.dup2(file.fileno(), 2)
            sys.stderr = file
            code = work()
    except BaseException:
        log.write_text(traceback.format_exc())
    finally:
        os._exit(code)


def exit_codes(pids: list[int]) -> list[int]:
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


@pytest.mark.parametrize("verb", ["train", "resume"])
def test_of_three_equal_commands_at_once_one_wins_and_the_others_say_who_has_it(
    verb: str, tmp_path: Path, request: Any
):
    folder = tmp_path / "run"
    if verb == "resume":
        shutil.copytree(request.getfixturevalue("trained_once"), folder)
    long = "training.total_frames=900_000"
    command = ["train", *RUN, long, f"run.dir={folder}"]
    if verb == "resume":
        command = ["resume", str(folder), long]
    go = time.time() + 0.5

    def work() -> int:
        time.sleep(max(0.0, go - time.time()))
        return main(command)

    logs = [tmp_path / f"{i}.log" for i in range(3)]
    pids = [in_child(work, log) for log in logs]
    ended, deadline = dict[int, int](), time.monotonic() + 120
    while len(ended) < 2:
        found = (os.waitpid(pid, os.WNOHANG) for pid in pids if pid not in ended)
        ended |= {pid: os.waitstatus_to_exitcode(status) for pid, status in found if pid}
        assert time.monotonic() < deadline
        time.sleep(0.02)
    (winner,) = set(pids) - ended.keys()
    assert list(ended.values()) == [2, 2]
    for pid, log in zip(pids, logs, strict=True):
        if pid != winner:
            assert f"(process {winner} on {platform.node()}, since 20" in log.read_text()
    while len(metrics(folder) if (folder / "metrics.jsonl").exists() else []) < 20:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(winner, signal.SIGTERM)
    assert exit_codes([winner]) == [130]
    frames = [r["env_frames"] for r in metrics(folder)]
    assert frames == sorted(set(frames))


def test_a_folder_that_comes_and_goes_is_never_held_twice(tmp_path: Path):
    folder, marker = tmp_path / "a" / "run", tmp_path / "held"
    until = time.monotonic() + 1.5

    def work() -> int:
        held = 0
        while time.monotonic() < until:
            try:
                with claimed(folder) as claim:
                    os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
                    assert claim.new
                    (folder / "config.yaml").write_text("")
                    held += 1
                    marker.unlink()
            except LabError:
                continue
        print(held, file=sys.stderr, flush=True)
        return 0

    logs = [tmp_path / f"{i}.log" for i in range(4)]
    codes = exit_codes([in_child(work, log) for log in logs])
    assert codes == [0] * 4, [log.read_text() for log in logs]
    assert sum(int(log.read_text()) for log in logs) > 10


def test_a_lock_that_was_left_by_a_dead_process_is_free(tmp_path: Path):
    def die() -> int:
        FolderLock(tmp_path / "run").__enter__()
        return 0

    assert exit_codes([in_child(die, tmp_path / "log")]) == [0]
    assert json.loads((tmp_path / "run" / ".lock").read_text())["pid"]
    with FolderLock(tmp_path / "run"), pytest.raises(LabError, match=f"process {os.getpid()} on"):
        FolderLock(tmp_path / "run").__enter__()
