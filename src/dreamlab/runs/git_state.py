"""Which code a run was made with: commits, and what was not committed yet."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
KEPT_CHARACTERS = 200_000
"""Maximum size of a stored diff; longer ones are truncated."""
NEW_FILES = (".py", ".pyi", ".yaml", ".yml", ".toml", ".sh")
NEW_BYTES = 100_000
"""Files that git does not know yet are part of the diff if they have one of these endings, are no
larger than this, and do not lie in a run directory."""
TIMEOUT_S = 10.0


def git_state(folder: Path = HERE) -> dict[str, Any]:
    """Return the commit of a folder's repository and what differs from it; empty outside of one."""
    top = toplevel(folder)
    commit = None if top is None else git(top, "rev-parse", "HEAD")
    if top is None or commit is None:
        return {}
    diff = _diff(top)
    state = {"commit": commit.strip(), "dirty": bool(diff), "diff": diff[:KEPT_CHARACTERS]}
    return {**state, "cut": True} if len(diff) > KEPT_CHARACTERS else state


def project_state() -> dict[str, Any]:
    """Return the same of the repository we are called in, if that is not this program's own."""
    here = toplevel(Path.cwd())
    return {} if here is None or here == toplevel(HERE) else git_state(here)


def toplevel(folder: Path) -> Path | None:
    """Return the root of the repository that a folder lies in."""
    found = git(folder, "rev-parse", "--show-toplevel")
    return Path(found.strip()) if found else None


def _diff(top: Path) -> str:
    """Return what differs from the commit, new files included; the repository is only read."""
    listed = git(top, "ls-files", "--others", "--exclude-standard", "-z") or ""
    new = [name for name in listed.split("\0") if name and _counts(top / name)]
    index = git(top, "rev-parse", "--git-path", "index")
    if not new or index is None:
        return git(top, "diff", "HEAD") or ""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "index"
        if (path := top / index.strip()).exists():
            shutil.copyfile(path, copy)
        git(top, "add", "--intent-to-add", "--", *new, index=copy)
        return git(top, "diff", "HEAD", index=copy) or ""


def _counts(path: Path) -> bool:
    if path.suffix not in NEW_FILES or (path.parent / "manifest.json").exists():
        return False
    try:
        return path.stat().st_size <= NEW_BYTES
    except OSError:
        return False


def git(folder: Path, *args: str, index: Path | None = None) -> str | None:
    """Return what git prints; None if it fails, is slow, or is not there."""
    env = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    if index is not None:
        env["GIT_INDEX_FILE"] = str(index)
    command = ["git", "-C", str(folder), *args]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=env
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return done.stdout if done.returncode == 0 else None
