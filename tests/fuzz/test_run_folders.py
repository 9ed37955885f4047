"""A run directory with one damaged file, and every verb that takes a folder.

No damage may end in a traceback or a hang, be printed as a number, or reach the run beside it.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from dreamlab.cli import main
from dreamlab.sweeps.sweep import SweepConfig, make_jobs
from tests.fuzz.damage import DAMAGES

LIMIT_S = 60
QUICK = (
    "+experiment=ppo_cartpole", "+preset=debug", "eval.every_frames=500", "eval.episodes=2",
    "checkpoint.every_frames=700", "device=cpu", "log.terminal=off", "training.total_frames=1500",
)  # fmt: skip

LOOKS = [
    "list ROOT", "list ROOT --json --sort return", "list ROOT --filter workflow.optimizer.lr>0",
    "show BAD", "show BAD --json", "show BAD --diff", "logs BAD", "logs BAD --json", "tag BAD",
    "diff BAD GOOD", "diff GOOD BAD --json", "compare BAD GOOD", "compare ROOT --json",
    "export ROOT --format csv --curves", "export BAD", "watch ROOT --all --once",
    "watch ROOT --json --all", "cleanup ROOT --keep-best 0 --keep-recent 0",
    "cleanup ROOT --older-than 30d --json", "verify BAD --from 000000000001", "sweep SWEEP --show",
    "sweep SWEEP --dry-run",
]  # fmt: skip
"""What only looks: the damaged folder stays as it is."""
WORK = [
    "tag BAD new", "index ROOT", "index ROOT --rebuild", "report BAD GOOD --out PAGE",
    "eval BAD --episodes 1", "eval BAD --episodes 1 --checkpoint best --json",
    "export-policy BAD --format torchscript --out POLICY", "export-policy BAD --hub HUB",
    "resume BAD", "resume BAD training.total_frames=1700",
]  # fmt: skip
AT_A_TIME = 3


@pytest.fixture(scope="module")
def origin(tmp_path_factory) -> Path:
    """A sweep of one run, as it is when it has finished."""
    root = tmp_path_factory.mktemp("origin")
    config = {"experiment": "ppo_cartpole", "overrides": [*QUICK[1:]], "dir": str(root / "s")}
    (root / "s.yaml").write_text(yaml.safe_dump(config))
    (job,) = make_jobs(SweepConfig(**{**config, "overrides": QUICK[1:]}), root / "s")
    assert main(["train", *QUICK, f"run.dir={job.run_folder}"]) == 0
    manifest = json.loads((job.run_folder / "manifest.json").read_text())
    manifest["git"] = {"commit": "c" * 40, "dirty": True, "diff": "+one line\n"}
    (job.run_folder / "manifest.json").write_text(json.dumps(manifest, indent=2))
    job.write(status="finished", seconds=1.0)
    return root


@pytest.fixture
def places(origin, tmp_path) -> dict[str, Path]:
    """Two copies of the run: one as a sweep's, to be damaged, and one beside it."""
    (found,) = (origin / "s" / "runs").iterdir()
    bad, good = tmp_path / "root" / "runs" / found.name, tmp_path / "root" / "good"
    shutil.copytree(origin / "s", tmp_path / "root")
    shutil.copytree(found, good)
    manifest = json.loads((good / "manifest.json").read_text())
    (good / "manifest.json").write_text(json.dumps({**manifest, "id": "0" * 16}))
    config = {**yaml.safe_load((origin / "s.yaml").read_text()), "dir": str(tmp_path / "root")}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(config))
    return {
        "ROOT": tmp_path / "root", "BAD": bad, "GOOD": good, "SWEEP": tmp_path / "s.yaml",
        "PAGE": tmp_path / "page.html", "POLICY": tmp_path / "policy.pt", "HUB": tmp_path / "hub",
    }  # fmt: skip


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Fail what takes longer."""

    def stop(number: int, frame: Any) -> None:
        raise AssertionError(f"it hangs: {seconds} s have passed")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def call(command: str, places: dict[str, Path], capsys) -> tuple[Any, str]:
    """Run a verb; return its exit code and what it printed, if that may be believed."""
    words = re.sub("|".join(places), lambda m: str(places[m.group()]), command).split()
    with limited(LIMIT_S):
        try:
            code = main(words)
        except SystemExit as stop:
            code = stop.code
    out, err = capsys.readouterr()
    assert code in (0, 1, 2), (command, code)
    assert "Traceback" not in out + err, (command, err)
    measured = code == 0 and not command.startswith(("show", "diff"))  # they quote the files
    assert not measured or not re.search(r"(?<![\w-])(nan|inf)(?!\w)", out, re.I), (command, out)
    assert code != 2 or re.match(r"\w*Error: .|usage: ", err.removeprefix("warning: ")), err
    return code, out


def contents(folder: Path) -> dict[str, bytes]:
    files = (p for p in folder.rglob("*") if p.is_file() and p.name != ".lock")
    return {str(p): p.read_bytes() for p in files}


def check(case: int, places: dict[str, Path], capsys) -> None:
    """Damage one file of a run and call every verb that looks, and a few that do something."""
    random = Random(case)
    bad = places["BAD"]
    files = sorted(p for p in bad.rglob("*") if p.is_file() and p.name != ".lock")
    path, name = random.choice(files), random.choice(sorted(DAMAGES))
    DAMAGES[name](path, random)
    told = f"case {case}: {name} {path.relative_to(bad)}"
    print(told)
    before = contents(bad)
    for command in LOOKS:
        call(command, places, capsys)
        assert contents(bad) == before, f"{told}: {command} has changed it"
    rows = json.loads(call("list ROOT --json", places, capsys)[1])
    good = next(r for r in rows if r["folder"] == str(places["GOOD"]))
    assert (good["status"], good["id"]) == ("finished", "0" * 16)
    turn = case * AT_A_TIME
    for command in [(WORK * 2)[i % len(WORK)] for i in range(turn, turn + AT_A_TIME)]:
        call(command, places, capsys)


@pytest.mark.parametrize("case", range(20))
def test_a_damaged_folder_is_no_traceback(case, places, capsys):
    check(case, places, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("case", range(20, 120))
def test_a_hundred_more(case, places, capsys):
    check(case, places, capsys)


def test_every_verb_works_on_a_whole_folder(places, capsys):
    """What the other tests call has to mean something."""
    for command in [*LOOKS, *WORK]:
        code, _ = call(command, places, capsys)
        assert code == (2 if command.startswith("verify") else 0), command
