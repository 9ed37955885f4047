"""Write `requirements/*.txt` from pyproject.toml: one file for the core, one for each extra.

python scripts/make_requirements.py
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
OUT = ROOT / "requirements"
HEAD = """\
# Made from pyproject.toml by scripts/make_requirements.py; do not edit.
-c ../constraints.txt
"""
OWN = re.compile(r"dreamlab\[(?P<extras>[\w,-]+)\]")


def wanted(names: list[str], extras: dict[str, list[str]]) -> list[str]:
    """Return requirements with those of our own extras in the place of their names."""
    found: list[str] = []
    for name in names:
        own = OWN.fullmatch(name)
        inner = own["extras"].split(",") if own else []
        found += [r for e in inner for r in wanted(extras[e], extras)] if own else [name]
    return list(dict.fromkeys(found))


def files() -> dict[str, str]:
    """Return the text of every file by its name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    texts = {"base.txt": HEAD + "\n".join(project["dependencies"]) + "\n"}
    for extra, names in extras.items():
        lines = "\n".join(wanted(names, extras))
        texts[f"{extra}.txt"] = f"{HEAD}-r base.txt\n{lines}\n"
    return texts


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    for old in OUT.glob("*.txt"):
        old.unlink()
    for file, text in files().items():
        (OUT / file).write_text(text)
