"""Which code a run was made with: this program's repository, and that of the user."""

from __future__ import annotations

import subprocess

import pytest

from dreamlab.runs import describe, git_state
from dreamlab.runs.run import Run


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A repository with one commit, which we are in."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "known.py").write_text("a = 1\n")
    (tmp_path / ".gitignore").write_text("ignored.py\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *words], check=True)
    return tmp_path


def status() -> str:
    command = ["git", "status", "--short"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_diff_has_changed_and_new_files_and_can_be_applied(project):
    (project / "known.py").write_text("a = 2\n")
    (project / "new env.py").write_text("b = 3\n")
    (project / "ignored.py").write_text("c = 4\n")
    (project / "data.bin").write_bytes(b"\0" * 10)
    (project / "large.py").write_text("#" * (git_state.NEW_BYTES + 1))
    (project / "run").mkdir()
    (project / "run" / "manifest.json").write_text("{}")
    (project / "run" / "config.yaml").write_text("d: 5\n")
    before = status()
    state = git_state.project_state()
    assert status() == before
    assert len(state["commit"]) == 40
    assert "+a = 2" in state["diff"]
    assert "+b = 3" in state["diff"]
    for name in ("ignored", "data.bin", "large", "config.yaml"):
        assert name not in state["diff"]
    (project / "new env.py").unlink()
    (project / "known.py").write_text("a = 1\n")
    subprocess.run(["git", "apply"], input=state["diff"], text=True, check=True)
    assert (project / "new env.py").read_text() == "b = 3\n"
    assert (project / "known.py").read_text() == "a = 2\n"


def test_a_clean_repository_has_no_diff_and_a_long_one_is_cut(project, monkeypatch):
    assert git_state.project_state()["diff"] == ""
    monkeypatch.setattr(git_state, "KEPT_CHARACTERS", 10)
    (project / "known.py").write_text("a = 2\n")
    state = git_state.project_state()
    assert (len(state["diff"]), state["cut"]) == (10, True)


def test_outside_of_a_repository_there_is_nothing_to_say(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert git_state.project_state() == {}
    assert git_state.git_state(tmp_path) == {}


def test_runs_of_one_project_differ_by_its_changes(project):
    for name, text in (("a", "a = 1\n"), ("b", "a = 7\n")):
        (project / "known.py").write_text(text)
        Run(project / name).create(name, 0, [])
        Run(project / name).config_path.write_text("{}")
    found = describe.changes_between(project / "a", project / "b")
    assert list(found["project"]) == ["project.diff"]
    assert "project.diff" in "\n".join(describe.compared(found))
    assert found["commit"] is None
