"""The site: it builds strictly; messages and options that pages quote exist."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dreamlab.config import compose, load_config
from dreamlab.core.config import dump
from dreamlab.runs.options import flatten
from tests.helpers import need

ROOT = Path(__file__).parents[2]
SHORTEST = 12
"""A message with fewer characters of its own could be anything."""


def text_of(node: ast.AST) -> str | None:
    """Return a string of the source with `…` for what is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(v) or "…" for v in node.values)
    return None


@cache
def trees() -> dict[Path, ast.Module]:
    return {p: ast.parse(p.read_text()) for p in (ROOT / "src").rglob("*.py")}


@cache
def texts() -> list[str]:
    found = (text_of(node) for tree in trees().values() for node in ast.walk(tree))
    return [t for t in found if t]


def messages() -> list[str]:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    return re.findall(r"^### `(.+)`$", page, re.MULTILINE)


def is_said(message: str) -> bool:
    """Tell whether one string of the source has all the fixed parts of a message, in order."""
    parts = [p for p in re.split("…", message) if p.strip(" .:,'")]
    pattern = re.compile(".*".join(map(re.escape, parts)), re.DOTALL)
    return any(pattern.search(text) for text in texts())


@pytest.mark.parametrize("message", messages())
def test_a_message_of_the_troubleshooting_page_is_one_of_ours(message):
    if message.startswith("there is no …"):  # joined from two
        assert all(is_said(part) for part in ("there is no ", "Did you mean "))
        return
    assert len(message.replace("…", "")) >= SHORTEST
    assert is_said(message)


def test_a_message_that_nobody_says_is_noticed():
    assert len(messages()) > 25
    assert not is_said("the replay buffer is on holiday: …")
    assert not is_said("training diverged: … on holiday")


@cache
def options(experiment: str) -> set[str]:
    """Return every option of an experiment, groups of options included."""
    leaves = flatten(dump(load_config(compose([f"+experiment={experiment}"]))))
    parts = [name.split(".") for name in leaves]
    return {".".join(p[:i]) for p in parts for i in range(1, len(p) + 1)}


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "coming-from").glob("*.md")), ids=str)
def test_an_option_that_another_programs_user_is_told_exists(page):
    text = page.read_text()
    named = re.search(r"<!-- options of: (.+?) -->", text)
    assert named
    known: set[str] = set().union(*(options(e) for e in named[1].split()))
    section = text.split("| differs |")[1].split("\n\n")[0]
    told = 0
    for row in section.splitlines()[2:]:
        _, here, differs = (c.strip() for c in row.strip("|").split("|"))
        quoted = re.findall(r"`([a-z_.]+)`", here)
        quoted += [q for q in re.findall(r"`([a-z_.]+)`", differs) if "." in q.strip(".")]
        for name in quoted:
            if name.startswith("."):
                continue
            told += 1
            assert name in known, f"{page.name}: {name}"
    assert told > 20


def test_no_module_imports_at_its_top_what_only_posix_has():
    """What docs/platforms.md says of Windows; inside a function or behind a condition is fine."""
    posix = {"fcntl", "resource", "termios", "tty", "pty", "pwd", "grp"}
    for path, tree in trees().items():
        for node in tree.body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not posix & set(names), path


@pytest.mark.slow
def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(tmp_path):
    need("mkdocs")
    need("mkdocstrings")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    page: Any = (tmp_path / "tutorials" / "own-environment" / "index.html").read_text()
    assert 'href="../../repo/examples/own_environment.py/"' in page
    assert "class Corridor" in html_text(tmp_path / "repo/examples/own_environment.py/index.html")
    assert "decide( obs: Obs" in html_text(tmp_path / "reference" / "workflow" / "index.html")
    assert not re.search(r'(src|href)="https?://(?!squidfunk)[^"]*\.(js|css|woff2?)"', page)


def html_text(path: Path) -> str:
    """Return what a page shows."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", path.read_text()))


@pytest.mark.slow
def test_the_python_of_the_readme_runs_as_it_stands(tmp_path):
    [code] = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    env = {**os.environ, "SDL_VIDEODRIVER": "dummy"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert float(done.stdout.split()[-1]) > 195
