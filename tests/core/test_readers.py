"""Readers: whatever is wrong with a file is one line that names it, and nothing hangs."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from dreamlab.core.readers import (
    MOST_DEPTH,
    FileError,
    MissingFileError,
    Tail,
    is_number,
    read_json,
    read_jsonl,
    read_pointer,
    read_text,
    read_yaml,
)
from tests.runs.made import as_nobody

READERS = [read_text, read_json, read_yaml, read_pointer]
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 9)}]\n" for i in range(9)
)
MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{i + 1}: &a{i + 1} {{<<: [{', '.join([f'*a{i}'] * 9)}]}}\n" for i in range(9)
)


def told(read, path: Path) -> str:
    """What a reader says of a file that it refuses: one line that names it."""
    with pytest.raises(FileError) as caught:
        read(path)
    text = str(caught.value)
    assert text.startswith(str(path))
    assert "\n" not in text
    return text


def any_record(record) -> bool:
    return True


@pytest.mark.parametrize("read", READERS)
def test_what_is_no_readable_file_is_named(read, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    os.mkfifo(tmp_path / "pipe")  # opened, it would wait for a writer
    (tmp_path / "text").write_bytes(b"name: \xff\xfe")
    assert "is not a file" in told(read, tmp_path / "folder")
    assert "is not a file" in told(read, tmp_path / "pipe")
    assert "too many levels" in told(read, tmp_path / "loop").lower()
    assert "is not UTF-8 text: byte 6" in told(read, tmp_path / "text")


@pytest.mark.parametrize("read", READERS)
def test_a_file_of_somebody_else_is_named(read):
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    (folder / "mine").write_text("{}")
    (folder / "mine").chmod(0)

    def look() -> None:
        assert "Permission denied" in told(read, folder / "mine")

    try:
        as_nobody(look)
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("read", [read_text, read_json, read_yaml])
def test_a_missing_file_can_be_told_from_a_damaged_one(read, tmp_path):
    with pytest.raises(MissingFileError, match="does not exist"):
        read(tmp_path / "nothing")
    (tmp_path / "file").touch()
    with pytest.raises(MissingFileError, match="does not exist"):
        read(tmp_path / "file" / "below")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not valid JSON"),
        ('{"a": 1', "is not valid JSON"),
        ("\0" * 100, "is not valid JSON"),
        ("[]", "contains a list, not an object"),
        ("null", "contains nothing, not an object"),
        ("17", "contains a number, not an object"),
        ('"{}"', "contains text, not an object"),
        ('{"a": ' + "9" * 5000 + "}", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ('{"a": ' + "[" * 500 + "]" * 500 + "}", "it is nested too deeply"),
    ],
)
def test_damaged_json_is_named(text, reason, tmp_path):
    (tmp_path / "f").write_text(text)
    assert reason in told(read_json, tmp_path / "f")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        ("a: [1", "is not valid YAML"),
        ("a:\n\tb: 1", "is not valid YAML"),
        ("a: 1\nb: 2\na: 3", "line 3: the key 'a' is a duplicate of line 1"),
        ("a: {b: 1, b: 2}", "the key 'b' is a duplicate of"),
        ("- 1", "expected options as `key: value`"),
        ("a: 1\n---\nb: 2", "a second document starts here"),
        ("a: \x07", "is not valid YAML"),
        ("a: !!python/object/apply:os.system [true]", "the tag !!python"),
        ("a: *nobody", "there is no anchor &nobody"),
        ("a: &a [*a]", "the alias *a contains itself"),
        ("a: &a {<<: *a}", "the alias *a contains itself"),
        (BOMB, "more than 300,000 values"),
        (MERGES, "more than 300,000 values"),
        ("a: " + "[" * 100_000, "nested deeper than 50 levels"),  # libyaml's own stack ends before
        ("a: " + "9" * 5000, "is not valid YAML"),
    ],
)
def test_damaged_yaml_is_named(text, reason, tmp_path):
    (tmp_path / "f").write_text(text)
    assert reason in told(read_yaml, tmp_path / "f")


def test_yaml_is_read_as_by_omegaconf_which_writes_it(tmp_path):
    text = """
    a: [1e-3, 1.5e3, 1.e+5, .5e-2, -2E4, 1.0e-05, 1_000, 0x10, 1:30, .inf, 12e03, 1e, e1, -.5]
    b: [true, off, y, null, ~, "", 2020-01-01, 2020-01-01T00:00:00, '1e-3', "1", 0.1, 007, +1]
    c: {x: &x {k: 1}, y: *x, z: {<<: *x, m: 2}}
    1: one
    """
    (tmp_path / "f").write_text(text)
    expected = OmegaConf.to_container(OmegaConf.load(tmp_path / "f"))
    assert repr(read_yaml(tmp_path / "f")) == repr({str(k): v for k, v in expected.items()})


def test_a_large_file_without_aliases_is_read(tmp_path):
    jobs = "".join(f"- {{a: {i}, b: {i}}}\n" for i in range(20_000))
    (tmp_path / "f").write_text(f"jobs:\n{jobs}")
    assert len(read_yaml(tmp_path / "f")["jobs"]) == 20_000


def test_half_a_character_can_be_printed(tmp_path):
    (tmp_path / "f").write_text('{"a": ["\\ud800 x"], "\\uDFFF": 1, "ok": "\\ud83d\\ude00"}')
    found = read_json(tmp_path / "f")
    assert found == {"a": ["? x"], "?": 1, "ok": "😀"}


def test_depth_that_we_write_ourselves_is_read(tmp_path):
    deep = "[" * (MOST_DEPTH - 2) + "]" * (MOST_DEPTH - 2)
    (tmp_path / "f").write_text(json.dumps({"a": json.loads(deep), "text": "[{" * 1000}))
    assert read_json(tmp_path / "f")["text"] == "[{" * 1000


def test_a_pointer_is_a_name(tmp_path):
    assert read_pointer(tmp_path / "latest") is None
    (tmp_path / "latest").write_text("000000000100\n")
    assert read_pointer(tmp_path / "latest") == "000000000100"
    for text in ("", "\n", "..", "../x", "/etc", "a\nb", "a\0b", "\x1b[31m", "x" * 5000):
        (tmp_path / "latest").write_text(text)
        assert "does not contain a name" in told(read_pointer, tmp_path / "latest")


@pytest.mark.parametrize("value", [True, "1", None, float("nan"), float("inf"), 10**400, [1], {}])
def test_what_is_not_a_number(value):
    assert not is_number(value)


# -- JSONL ----------------------------------------------------------------------------------------


def test_only_the_damaged_lines_are_lost_and_they_are_counted(tmp_path):
    lines = [b'{"a": 1}', b'{"a": ', b"\xff\xfe", b"[]", b"null", b"[" * 5000, b"\0" * 20]
    (tmp_path / "f").write_bytes(b"\n".join([*lines, b'{"a": 2}', b""]))
    found = read_jsonl(tmp_path / "f", any_record)
    assert found.records == [{"a": 1}, {"a": 2}]
    assert found.damaged == 6
    assert found.told(Path("f")) == ["f: 6 corrupted lines skipped"]


@pytest.mark.parametrize(
    ("end", "records", "damaged"),
    [
        (b'{"a": 2, "b": "x', 1, 0),  # cut off by a crash, or being written
        (b'{"a": 2}', 2, 0),
        (b"\0\0\0", 1, 1),
        (b"x", 1, 1),
        (b"", 1, 0),
    ],
)
def test_a_last_line_that_is_cut_off_is_no_damage(end, records, damaged, tmp_path):
    (tmp_path / "f").write_bytes(b'{"a": 1}\n' + end)
    found = read_jsonl(tmp_path / "f", any_record)
    assert (len(found.records), found.damaged) == (records, damaged)


def test_a_file_that_is_not_there_yet_has_no_lines(tmp_path):
    assert read_jsonl(tmp_path / "f", any_record).records == []
    assert "is not a file" in told(lambda p: read_jsonl(p, any_record), tmp_path)


def test_a_tail_counts_each_damaged_line_once_and_survives_what_takes_its_place(tmp_path):
    path = tmp_path / "f"
    tail = Tail(path, any_record)
    path.write_bytes(b'{"a": 1}\nx\n{"a"')
    for _ in range(2):
        assert tail.read() == [{"a": 1}]
        assert tail.lines.damaged == 1
    path.unlink()
    path.mkdir()
    assert tail.read() == [{"a": 1}]
    assert "is not a file" in str(tail.problem)
    path.rmdir()
    path.write_bytes(b'{"a": 2}\n')
    assert tail.read() == [{"a": 2}]
    assert tail.problem is None
