"""No configuration ends in a traceback or hangs, and none that makes no sense is accepted."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dreamlab import build
from dreamlab.config import compose, load_config, read_yaml, to_yaml
from dreamlab.core.errors import LabError
from tests.fuzz.cases import ENDINGS, HEADS, Case, make, source, written
from tests.fuzz.nodes import plain

LIMIT_S = 20
LONGEST_MESSAGE = 2_000
ANSWERED = (": here it is ", ": no option says that here")
"""What is said of an option of another program."""


class TookTooLongError(BaseException):
    """Not an Exception, so that nobody can catch it by accident."""


@contextmanager
def time_limit(about: str) -> Iterator[None]:
    def stop(number: int, frame: Any) -> None:
        raise TookTooLongError(about)

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def refusal(case: Case, folder: Path) -> str | None:
    """Return why a case is refused, None if it is accepted; anything else is raised."""
    arguments = written(case, folder)
    with time_limit(case.about):
        try:
            node = case.node if case.node is not None else compose(arguments)
            build.check(load_config(node))
        except LabError as error:
            return str(error)
    return None


def check(number: int, folder: Path) -> None:
    case = make(number)
    text = refusal(case, folder)
    assert text is not None or not case.must_fail, f"accepted: {case.about}"
    if text is not None:
        assert text.strip(), case.about
        one, *more = text.splitlines()
        # what else there is, or the options of another program in ours
        assert not more or more[0].startswith("  known: ") or any(x in one for x in ANSWERED), (
            f"{case.about}: {text}"
        )
        assert len(text) < LONGEST_MESSAGE, case.about


@pytest.mark.parametrize("number", range(120))
def test_a_configuration_is_read_or_refused(number: int, tmp_path: Path):
    check(number, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(120, 1_120))
def test_many_configurations_are_read_or_refused(number: int, tmp_path: Path):
    check(number, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("about", [*ENDINGS, *HEADS])
def test_every_damage_to_a_runs_own_file_is_one_line(about: str, tmp_path: Path):
    path, whole = tmp_path / "config.yaml", to_yaml(load_config(plain("ppo_cartpole")))
    path.write_text(whole)
    load_config(read_yaml(path))
    path.write_bytes(HEADS[about] if about in HEADS else (whole + ENDINGS[about]).encode())
    with time_limit(about), pytest.raises(LabError) as error:
        load_config(read_yaml(path))
    assert len(str(error.value).splitlines()) <= 2


COMMANDS = [
    ["train", "given.yaml"],
    ["train", "+experiment=ppo_cartpole", "workflow.gamma=2"],
    ["plan", "+experiment=dqn_cartpole", "buffers.replay.capacity=1"],
    ["debug", "+experiment=ppo_cartpole", "--frames", "-1"],
    ["sweep", "given.yaml", "--dry-run"],
    ["eval", "given.yaml", "--episodes", "0"],
]


@pytest.mark.parametrize(
    "arguments",
    [COMMANDS[0], *(pytest.param(c, marks=pytest.mark.slow) for c in COMMANDS[1:])],
    ids=" ".join,
)
def test_a_mistake_on_the_command_line_is_one_line_and_exit_code_2(arguments, tmp_path):
    (tmp_path / "given.yaml").write_text(source("ppo_cartpole") + ENDINGS["an alias bomb"])
    command = [sys.executable, "-m", "dreamlab", *arguments]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["given.yaml"], "something was written"
