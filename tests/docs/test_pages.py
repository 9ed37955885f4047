"""What the pages say is true: commands parse, links lead somewhere, files and functions exist."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from dreamlab import build, cli
from dreamlab.commands.submit import place_of
from dreamlab.commands.train import each_seed
from dreamlab.config import compose, load_config
from dreamlab.envs.suites import SUITES

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
FENCE = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)
ANY_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
PATH = re.compile(r"(?:src|configs|tests|docs|examples|scripts|benchmarks)/[\w./-]+(?::\w+)?")
PLACEHOLDERS = ("...", "<")  # a command with one of these is a pattern, FOLDER stands for a run


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def commands(page: Path) -> list[tuple[Path, list[str]]]:
    """Return the commands of a page's bash fences, each with the folder it is run in."""
    found = []
    for fence in FENCE.findall(page.read_text()):
        folder = ROOT
        for line in fence.splitlines():
            for part in line.split("&&"):
                words = shlex.split(part, comments=True)
                if words[:1] == ["cd"]:
                    folder = folder / words[1] if (folder / words[1]).is_dir() else folder
                words = [w for i, w in enumerate(words) if i or not re.match(r"[A-Z]+=", w)]
                if words:
                    found.append((folder, words))
    return found


def of(program: str) -> list:
    every = [(page, *c) for page in PAGES for c in commands(page) if c[1][0] == program]
    return [pytest.param(*c, id=f"{name(c[0])}: {' '.join(c[2][1:])}"[:120]) for c in every]


def test_there_are_commands():
    assert len(of("dreamlab")) > 30


@pytest.mark.parametrize(("page", "folder", "words"), of("dreamlab"))
def test_a_command_is_one_that_works(page, folder, words, monkeypatch, capsys):
    verb, args = words[1], words[2:]
    assert verb in cli.SUMMARIES
    if any(p in w for w in args for p in PLACEHOLDERS):
        return
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    if verb in ("train", "plan") and args:
        _, own = place_of([a for a in args if a not in ("--cfg", "job")])
        for overrides in each_seed(own):
            build.check(load_config(compose(overrides)))
    elif verb == "check":
        assert build.env_config(compose(args)).suite in SUITES
    elif verb in ("eval", "resume"):  # gets as far as looking for the folder: options are known
        assert cli.main([verb, *args]) == 2
        assert "not a run directory" in capsys.readouterr().err


@pytest.mark.parametrize(("page", "folder", "words"), of("make"))
def test_make_has_the_target(page, folder, words):
    assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize(("page", "folder", "words"), of("pip"))
def test_extras_exist(page, folder, words):
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extras in re.findall(r"\[(.*?)\]", words[-1]):
        assert set(extras.split(",")) <= known.keys()


def test_the_readme_lists_every_extra():
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    table = (ROOT / "README.md").read_text().split("| extra |")[1].split("\n\n")[0]
    hidden = {"bench", "envpool"}  # for benchmarks only
    assert set(re.findall(r"`([a-z0-9]+)`", table)) >= known.keys() - hidden


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings as GitHub makes them."""
    text = ANY_FENCE.sub("", page.read_text())
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", t.lower()).strip().replace(" ", "-") for t in titles}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    text = ANY_FENCE.sub("", page.read_text())
    # pictures of results come with the figures; while one is still open they may be missing
    pages = (page, ROOT / "README.md")
    unmeasured = any("<!-- figure:" in p.read_text() for p in pages)
    for link in LINK.findall(text):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        if unmeasured and "benchmarks/results/" in link:
            continue
        assert path.exists(), link
        assert not anchor or anchor in anchors(path), link


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_files_and_functions_in_backticks_exist(page):
    text = ANY_FENCE.sub("", page.read_text())
    for quoted in re.findall(r"`([^`\n]+)`", text):
        if not PATH.fullmatch(quoted):
            continue
        path, _, function = quoted.partition(":")
        assert (ROOT / path).exists(), quoted
        if function:
            assert re.search(rf"(def|class) {function}\b", (ROOT / path).read_text()), quoted


def test_the_status_table_says_something_in_every_row():
    table = (ROOT / "docs" / "status.md").read_text().split("\n\n")[2]
    rows = [[c.strip() for c in r.strip("|").split("|")] for r in table.splitlines()[2:]]
    assert len(rows) > 8
    for feature, state in rows:
        assert feature
        assert state.startswith(("works and tested", "untested", "planned next")), feature


def test_contributing_fits_on_a_screen():
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) <= 60


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/decisions/*.md")), ids=lambda p: p.stem)
def test_a_decision_is_a_page_with_context_decision_and_consequences(page):
    text = page.read_text()
    assert len(text.splitlines()) <= 50
    for part in ("**Context.**", "**Decision.**", "**Consequences.**"):
        assert part in text
