"""Lets the pages link to files of the repository, on the site as on a code host.

A page says `../examples/curriculum.py`, which a code host opens. The site has no such file:
whatever a page links to outside `docs/` becomes a page (or picture) below `repo/`, and the link
leads there.
Pages that mkdocs.yml does not name are put into the navigation by their folder.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"(!?\[[^\]]*\])\(([^)\s]+)\)")
FENCE = re.compile(r"(^```.*?^```|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
TITLE_LINK = re.compile(r"(\[!\[[^\]]*\]\([^)\s]+\)\])\(([^)\s]+)\)")
PLACES = {
    "algorithms": "Algorithms", "formats": "Formats", "decisions": "Decisions",
    "tutorials": "Tutorials", "coming-from": "Coming from", "reference": "Reference",
}  # fmt: skip
PICTURES = (".png", ".gif", ".jpg", ".svg", ".mp4")


def on_config(config: Any) -> Any:
    """Add the pages that the navigation does not name."""
    sections: dict[str, list[Any]] = {k: v for n in config.nav for k, v in n.items()}
    named = {
        p for pages in sections.values() for p in ([pages] if isinstance(pages, str) else pages)
    }
    for page in sorted(DOCS.rglob("*.md")):
        path = page.relative_to(DOCS)
        if path.as_posix() not in named:
            sections[PLACES.get(path.parts[0], "How-to")].append(path.as_posix())
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add what pages link to outside of `docs/`, and what those link to in turn."""
    waiting, seen = sorted(DOCS.rglob("*.md")), set[Path]()
    while waiting:
        page = waiting.pop()
        for target in targets(page):
            if target in seen or target.is_relative_to(DOCS) or not target.is_file():
                continue
            seen.add(target)
            files.append(_generated(target, config))
            if target.suffix == ".md":
                waiting.append(target)
    return files


def _generated(target: Path, config: Any) -> File:
    name = place(target)
    if target.suffix in PICTURES:
        return File.generated(config, name, abs_src_path=str(target))
    text = target.read_text()
    if target.suffix == ".ipynb":
        text = _notebook(target)
    elif target.suffix != ".md":
        language = {".py": "python", ".yaml": "yaml", ".json": "json", ".sh": "bash"}
        kind = language.get(target.suffix, "text")
        title = target.relative_to(ROOT).as_posix()
        text = f"# {title}\n\n````{kind}\n{text}\n````\n"
    return File.generated(config, name, content=text)


def _notebook(target: Path) -> str:
    """Return the texts and the code of a notebook."""
    cells = json.loads(target.read_text())["cells"]
    texts = [(c["cell_type"], "".join(c["source"])) for c in cells]
    shown = [f"````python\n{text}\n````" if kind == "code" else text for kind, text in texts]
    name = target.relative_to(ROOT).as_posix()
    return "\n\n".join([*shown, f"This is `{name}`, which runs as it stands."])


def place(target: Path) -> str:
    """Return where a file of the repository is on the site, seen from `docs/`."""
    name = target.relative_to(ROOT).as_posix()
    ending = "" if target.suffix in (".md", *PICTURES) else ".md"
    return f"repo/{name}{ending}"


def origin(src_uri: str) -> Path:
    """Return the file of the repository that a page of the site was made from."""
    return ROOT / src_uri.removeprefix("repo/") if src_uri.startswith("repo/") else DOCS / src_uri


def targets(page: Path) -> list[Path]:
    """Return the files that a page links to."""
    found: list[Path] = []

    def note(link: str) -> str:
        path, _, _ = link.partition("#")
        if path and not re.match(r"[a-z]+:", path):
            found.append((page.parent / path).resolve())
        return link

    rewritten(page.read_text(), note)
    return found


def rewritten(text: str, change: Callable[[str], str]) -> str:
    """Return a page with its links changed; what is in backticks stays as it is."""
    parts = FENCE.split(text)
    for i in range(0, len(parts), 2):
        for pattern in (TITLE_LINK, LINK):
            parts[i] = pattern.sub(lambda m: f"{m[1]}({change(m[2])})", parts[i])
    return "".join(parts)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Let links lead to where their targets are on the site."""
    source = origin(page.file.src_uri)
    if page.file.src_uri.startswith("repo/") and not source.is_file():
        return markdown  # source code
    here = (DOCS / page.file.src_uri).parent

    def change(link: str) -> str:
        path, mark, anchor = link.partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return link
        target = (source.parent / path).resolve()
        inside = target.is_relative_to(DOCS)
        if target.is_dir() or not target.exists():
            return link  # mkdocs complains
        there = target if inside else DOCS / place(target)
        return os.path.relpath(there, here).replace(os.sep, "/") + mark + anchor

    return rewritten(markdown, change)
