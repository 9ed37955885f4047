"""Text of others: shown, never obeyed; and what may become a file's name."""

from __future__ import annotations

import ast
import io
from pathlib import Path

import pytest

from dreamlab.core import text
from dreamlab.core.errors import ConfigError
from dreamlab.core.names import check_tag, check_word
from dreamlab.core.text import one_line, visible

SRC = Path(__file__).parents[2] / "src" / "dreamlab"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("plain, größer, 模型 ▁▂▃", "plain, größer, 模型 ▁▂▃"),
        ("a\nb\tc\xa0d", "a\nb\tc\xa0d"),
        ("\x1b[31mred\x07", r"\x1b[31mred\x07"),
        ("one\rtwo\b", r"one\rtwo\x08"),
        ("\x9b2J", r"\x9b2J"),
        ("evil\u202etxt.exe\u200b", r"evil\u202etxt.exe\u200b"),
        ("caf\udce9", r"caf\udce9"),
    ],
)
def test_control_characters_are_shown(given: str, shown: str):
    assert visible(given) == shown
    assert visible(shown) == shown


def test_a_name_stays_on_its_line():
    assert one_line("a\nfinished  b\tc") == r"a\nfinished  b\tc"


def test_print_is_the_builtin_with_visible_text():
    out = io.StringIO()
    text.print("a\x1b", 3, sep="\x07 ", end="\n", file=out)
    assert out.getvalue() == "a\\x1b\\x07 3\n"


def test_whatever_prints_prints_visible_text():
    """A module that calls `print` takes it from `core.text`: the builtin obeys what it is given."""
    for path in sorted(SRC.rglob("*.py")):
        tree = ast.parse(path.read_text())
        uses = any(isinstance(n, ast.Name) and n.id == "print" for n in ast.walk(tree))
        named = [
            f"{n.module}.{a.name}"
            for n in ast.walk(tree)
            if isinstance(n, ast.ImportFrom)
            for a in n.names
        ]
        assert not uses or "dreamlab.core.text.print" in named, path


@pytest.mark.parametrize("name", ["run", "ppo_cartpole", "a.b-c+d", "Größe", "_x", "9", "x" * 100])
def test_a_word_can_be_part_of_a_files_name(name: str):
    assert check_word(name, "name") == name


@pytest.mark.parametrize(
    ("name", "better"),
    [
        ("../../evil", "evil"),
        ("/etc/passwd", "etc_passwd"),
        ("a/b", "a_b"),
        ("..", "run"),
        (".hidden", "hidden"),
        ("-rf", "rf"),
        ("my run", "my_run"),
        ("a\nb", "a_b"),
        ("x\x1b[0m", "x_0m"),
        ("nul\0", "nul_"),
        ("", "run"),
        ("x" * 101, "x" * 100),
    ],
)
def test_what_cannot_be_a_name_comes_with_one_that_can(name: str, better: str):
    with pytest.raises(ConfigError, match=r"name: .* is not a valid name") as error:
        check_word(name, "name")
    assert str(error.value).endswith(f"e.g. {better!r}")
    assert check_word(better, "name") == better


@pytest.mark.parametrize("tag", ["", "a b", "x\x1b", "a\nb", "y" * 101])
def test_what_cannot_be_a_tag(tag: str):
    assert check_tag("paper:fig/3+x", "tag")
    with pytest.raises(ConfigError, match="is not a valid tag"):
        check_tag(tag, "run.tags")
