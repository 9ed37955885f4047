"""A YAML file is plain and whole, or one line says why not."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dreamlab.core.errors import ConfigError
from dreamlab.core.readers import FileError, read_yaml
from dreamlab.core.strict_yaml import MOST_BYTES, check_yaml


def bomb(levels: int) -> str:
    lines = ["x0: &x0 [a, a, a, a, a, a, a, a, a, a]"]
    lines += [f"x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 10)}]" for i in range(1, levels)]
    return "\n".join(lines)


REFUSED = [
    ("a: 1\nb: 2\na: 3\n", "line 3: the key 'a' is a duplicate of line 1"),
    ("a: {b: 1, b: 2}\n", "line 1: the key 'b' is a duplicate of"),
    (
        "a:\n\tb: 1\n",
        "is not valid YAML: found character '\\t' that cannot start any token (line 2)",
    ),
    ("a: &a\n  b: *a\n", "line 2: the alias *a contains itself"),
    ("a: &a [1, [*a]]\n", "line 1: the alias *a contains itself"),
    ("a: *b\n", "line 1: there is no anchor &b before this alias"),
    (bomb(6), "more than 300,000 values"),
    (bomb(60), "more than 300,000 values"),
    ("a: " + "[" * 60 + "]" * 60, "line 1: nested deeper than 50 levels"),
    ("[" * 100_000, "expected options as `key: value`"),
    ("a: " + "{a: " * 100_000, "line 1: nested deeper than 50 levels"),
    ("a: 1\n---\nb: 2\n", "line 2: a second document starts here"),
    (
        "a: !!python/object/apply:os.system [ls]\n",
        "line 1: the tag !!python/object/apply:os.system",
    ),
    ("a: !!int x\n", "line 1: the tag !!int is not allowed"),
    ("? [a, b]\n: 1\n", "line 1: a key must be a string"),
    ("- a\n", "line 1: expected options as `key: value`"),
    ("hello\n", "line 1: expected options as `key: value`"),
    ("", "f.yaml: is empty"),
    ("# only this\n", "f.yaml: is empty"),
    ("a: [1, 2\n", "is not valid YAML: expected ',' or ']', but got '<stream end>' (line 2)"),
    ("a: b: c\n", "is not valid YAML: mapping values are not allowed here (line 1)"),
    ("a: \x07\n", "is not valid YAML: special characters are not allowed"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_what_is_odd_is_one_line_at_once(text: str, message: str):
    began = time.process_time()
    with pytest.raises(ConfigError) as error:
        check_yaml(text, "f.yaml")
    assert time.process_time() - began < 10
    assert str(error.value).startswith("f.yaml")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [1, 2]\nb: [*a, *a]\nc: {a: 1}\nd: {a: 1}\n",
        "a: &x {b: 1}\nb: {<<: *x, c: 2}\n",
        "a: 'it''s'\nb: |\n  text: with a colon\n",
        bomb(4),
        "a: " + "[" * 40 + "]" * 40,
    ],
)
def test_what_is_plain_passes(text: str):
    check_yaml(text, "f.yaml")


def test_a_file_is_text_of_a_reasonable_size(tmp_path: Path):
    path = tmp_path / "f.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: \xc3\xbc\n")
    assert read_yaml(path) == {"name": "\u00fc"}
    for data, message in (
        (b"name: \xff\n", "is not UTF-8 text: byte 6"),
        ("name: a".encode("utf-16"), "is not UTF-8 text"),
        (b"#" * (MOST_BYTES + 1), "more than 1 MiB is too large for a configuration"),
    ):
        path.write_bytes(data)
        with pytest.raises(FileError, match=message):
            read_yaml(path)
