"""What the verbs say of a run directory that is damaged in places."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from dreamlab.cli import main
from dreamlab.core.readers import FileError
from dreamlab.runs.options import counts, differences, flatten
from dreamlab.runs.readers import (
    in_order,
    newest_metrics,
    planned_count,
    problems,
    read_events,
    read_manifest,
    read_metrics,
)
from dreamlab.runs.run import Run
from tests.results.test_compare import make_run
from tests.runs.made import make


def run(capsys, *arguments):
    code = main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A run with four records."""
    folder = make_run(tmp_path_factory.mktemp("whole") / "run", [1.0, 2.0, 3.0, 4.0])
    Run(folder).event("phase", name="learn", env_frames=0)
    return folder


@pytest.fixture
def copy(whole, tmp_path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def spoil(folder: Path, number: int, line: str, name: str = "metrics") -> None:
    """Put another line in the place of one of a file's."""
    path = folder / f"{name}.jsonl"
    lines = path.read_text().splitlines()
    lines[number] = line
    path.write_text("".join(f"{x}\n" for x in lines))


# -- metrics.jsonl --------------------------------------------------------------------------------


DAMAGED = [
    "x", '{"env_frames": 2', "[]", "{}", '{"env_frames": "200"}', '{"env_frames": -1}',
    '{"env_frames": 1.5}', '{"env_frames": true}', '{"env_frames": NaN}',
    '{"env_frames": 20, "eval/return": NaN}', '{"env_frames": 20, "eval/return": "3.5"}',
    '{"env_frames": 20, "eval/return": [3.5]}', '{"env_frames": 20, "eval/return": null}',
    '{"env_frames": 1' + "0" * 400 + "}", '{"env_frames": 20, "eval/return": 1e999}',
]  # fmt: skip


@pytest.mark.parametrize("line", DAMAGED)
def test_a_damaged_line_costs_one_record_and_no_later_one(copy, line):
    before = Run(copy).metrics()
    spoil(copy, 1, line)
    found = read_metrics(copy)
    assert found.records == [before[0], *before[2:]]
    assert found.damaged == 1
    assert newest_metrics(copy)["env_frames"] == before[-1]["env_frames"]


def test_values_that_are_not_finite_are_no_damage(copy):
    first = Run(copy).metrics()[0]
    spoil(copy, 0, json.dumps({**first, "eval/return": "nan", "train/loss": "-inf"}))
    assert read_metrics(copy).damaged == 0


@pytest.mark.parametrize("frames", [0, 10**12])
def test_a_record_whose_frames_are_wrong_does_not_cost_the_others(copy, frames):
    before = Run(copy).metrics()
    spoil(copy, 2, json.dumps({**before[2], "env_frames": frames}))
    found = read_metrics(copy)
    assert found.records == before[:2] + before[3:]
    assert found.damaged == 1


def test_lines_that_are_there_twice_are_brought_into_order(copy):
    path = copy / "metrics.jsonl"
    path.write_text(path.read_text() * 2)
    frames = [r["env_frames"] for r in Run(copy).metrics()]
    assert frames == sorted(frames)


@pytest.mark.parametrize(
    ("values", "length"),
    [([], 0), ([3], 1), ([1, 2, 2, 3], 4), ([9, 1, 2, 3], 3), ([1, 2, 9, 3, 4], 4), ([3, 2, 1], 1)],
)
def test_the_longest_part_in_order(values, length):
    kept = in_order(values)
    assert len(kept) == length
    assert kept == sorted(kept)
    assert [values[i] for i in kept] == sorted(values[i] for i in kept)


def test_compare_uses_every_whole_record_and_says_what_it_skipped(copy, capsys):
    code, expected, err = run(capsys, "compare", copy, "--json")
    assert (code, err) == (0, "")
    spoil(copy, 0, "x")
    spoil(copy, 2, "\x00" * 50)
    code, out, err = run(capsys, "compare", copy, "--json")
    assert code == 0
    said = f"{copy / 'metrics.jsonl'}: 2 corrupted lines skipped"
    assert err == f"warning: {said}\n"
    found = json.loads(out)
    assert found["metrics"] == json.loads(expected)["metrics"], "the last record is still there"
    assert found["warnings"] == [said]
    for verb in (["compare", copy], ["export", copy]):
        code, _, err = run(capsys, *verb)
        assert code == 0
        assert err.count("2 corrupted lines skipped") == 1


def test_show_and_report_and_logs_and_watch_say_it_too(copy, tmp_path, capsys):
    assert "corrupted" not in run(capsys, "show", copy)[1]
    spoil(copy, 1, "x")
    spoil(copy, 0, "x", "events")
    for arguments in (["show", copy], ["show", copy, "--json"]):
        code, out, _ = run(capsys, *arguments)
        assert code == 0
        assert "metrics.jsonl: 1 corrupted line skipped" in out
        assert "events.jsonl: 1 corrupted line skipped" in out
    code, out, err = run(capsys, "logs", copy)
    assert code == 0
    assert out.count("eval/return") == 3
    assert err.count("corrupted") == 2
    code, _, err = run(capsys, "watch", copy, "--all", "--once")
    assert code == 0
    assert err.count("corrupted") == 2
    code, _, err = run(capsys, "report", copy, "--out", tmp_path / "r.html")
    assert code == 0
    assert err.count("corrupted") == 1
    assert "metrics.jsonl: 1 corrupted line skipped" in (tmp_path / "r.html").read_text()


def test_metrics_that_are_no_file_are_named(copy, capsys):
    (copy / "metrics.jsonl").unlink()
    (copy / "metrics.jsonl").mkdir()
    for verb in ("compare", "export", "logs"):
        code, _, err = run(capsys, verb, copy)
        assert code == 2
        assert f"{copy / 'metrics.jsonl'} is not a file" in err
    code, _, err = run(capsys, "watch", copy, "--all", "--once")
    assert code == 0, "a run that is damaged is shown beside the others"
    assert "is not a file" in err


def test_an_event_needs_a_time_that_a_calendar_has(copy):
    lines = ['{"time": 1e18, "event": "x"}', '{"time": "now", "event": "x"}', '{"time": 1}']
    with (copy / "events.jsonl").open("a") as file:
        file.writelines(f"{x}\n" for x in [*lines, '{"time": 5, "event": "y"}'])
    found = read_events(copy)
    assert found.damaged == 3
    assert found.records[-1]["event"] == "y"


# -- manifest.json, config.yaml, pointers ---------------------------------------------------------


def test_a_field_that_is_something_else_is_left_out(tmp_path):
    odd = {
        "git": ["a"], "versions": "1", "hardware": None, "final_eval": {"eval/return": "x", "b": 1},
        "command": {"a": 1}, "tags": "keep", "wall_s": "long", "heartbeat": 1e18, "env_frames": "9",
        "last_return": float("nan"), "seed": 10**400, "status": 3, "cleaned": 1, "mine": [{}],
        "project": {"commit": 7, "diff": None, "dirty": True},
    }  # fmt: skip
    folder = make(tmp_path / "a", name="kept", **odd)
    manifest = read_manifest(folder)
    assert {k: manifest[k] for k in odd if k in manifest} == {
        "final_eval": {"b": 1}, "mine": [{}], "project": {"dirty": True},
    }  # fmt: skip
    assert manifest["name"] == "kept"


BROKEN = {
    "empty": b"", "text": b"hello", "list": b"[]", "null": b"null", "binary": bytes(range(256)),
    "cut": b'{"a": {"b"', "zeros": b"\0" * 64, "deep": b"[" * 100_000,
}  # fmt: skip


@pytest.mark.parametrize("damage", BROKEN)
@pytest.mark.parametrize("name", ["manifest.json", "config.yaml"])
def test_a_broken_file_is_one_line_and_the_other_runs_are_listed(name, damage, copy, capsys):
    root, bad = copy.parent, copy
    good = make(root / "good")
    (bad / name).write_bytes(BROKEN[damage])
    code, out, err = run(capsys, "list", root, "--json")
    assert code == 0
    assert {r["folder"]: r["status"] for r in json.loads(out)} == {
        str(bad): "broken", str(good): "finished",
    }  # fmt: skip
    assert err.count("\n") == 1
    assert f"warning: {bad / name}" in err
    verbs = [["diff", good, bad], ["resume", bad], ["eval", bad], ["verify", bad]]
    verbs += [["show", bad], ["tag", bad, "x"]] if name == "manifest.json" else []
    for verb in verbs:
        code, _, err = run(capsys, *verb)
        assert code == 2, verb
        assert err.count("\n") == 1, err
        assert str(bad / name) in err
    code, out, _ = run(capsys, "cleanup", root, "--keep-best", "0", "--keep-recent", "0", "--json")
    kept = {r["folder"]: r["kept"] for r in json.loads(out)}
    assert kept == {str(bad): "unreadable", str(good): None}


def test_a_damaged_configuration_does_not_cost_a_run_its_tags(tmp_path):
    folder = make(tmp_path / "a")
    text = (folder / "config.yaml").read_text().replace("tags: []", "tags: [keep]")
    (folder / "config.yaml").write_text(text + "\t")
    with pytest.raises(FileError):
        Run(folder).tag(["x"])
    (folder / "config.yaml").write_text(text)
    assert Run(folder).tag(["x"]) == ["keep", "x"]


def test_problems_are_named_one_by_one(copy):
    assert list(problems(copy)) == []
    (copy / "checkpoints").mkdir(exist_ok=True)
    (copy / "checkpoints" / "best").write_bytes(b"\xff")
    assert [p.split()[0] for p in problems(copy)] == [str(copy / "checkpoints" / "best")]
    (copy / "checkpoints" / "best").write_text("000000000007\n")
    assert "which does not exist" in next(problems(copy))
    (copy / "manifest.json").write_text("[")
    (copy / "config.yaml").unlink()
    assert len(list(problems(copy))) == 3


@pytest.mark.parametrize("training", [None, [], "x", {"phases": 3}, {"total_frames": "many"}])
def test_the_length_of_a_run_is_unknown_where_its_configuration_is_odd(training):
    assert planned_count({"training": training}) is None


# -- one rule for options -------------------------------------------------------------------------


def test_options_that_change_no_number_do_not_count():
    for name in ("run.dir", "log.every_frames", "watch.on_nan", "checkpoint.keep", "schema"):
        assert not counts(name)
    for name in ("workflow.lr", "eval.episodes", "runner", "logs.x", "seed"):
        assert counts(name)
    assert not counts("eval.episodes", "eval")
    assert counts("evaluation", "eval")


def test_options_as_one_table_and_what_differs():
    a, b = flatten({"a": {"b": [1, 2]}, "c": [{"d": 1}], "e": {}}), {"a.b": [1, 3], "f": 1}
    assert a == {"a.b": [1, 2], "c.0.d": 1, "e": {}}
    assert differences([a, b]) == {
        "a.b": [[1, 2], [1, 3]], "c.0.d": [1, "-"], "e": [{}, "-"], "f": ["-", 1],
    }  # fmt: skip
    assert differences([a, a]) == {}
