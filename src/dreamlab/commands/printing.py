"""Output of the commands: JSON, warnings and findings."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from dreamlab.core.text import one_line, print


def warn(notes: Iterable[str]) -> None:
    """Print each note once, on stderr."""
    for note in dict.fromkeys(notes):
        print(f"warning: {one_line(note)}", file=sys.stderr)


def json_text(data: Any, indent: int | None = 2) -> str:
    """Return data as JSON; NaN and infinity become text, as in metrics.jsonl."""
    return json.dumps(_finite(data), indent=indent, default=str, allow_nan=False)


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {k: _finite(v) for k, v in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(v) for v in data]
    return str(data) if isinstance(data, float) and not math.isfinite(data) else data


def hang_up() -> None:
    """Discard the rest of the output after a broken pipe, so that exit does not raise."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            with suppress(OSError):  # a stream without a file descriptor has nothing to flush
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def tell_findings(findings: Iterable[Any]) -> int:
    """Print the findings of a check; return 1 if one is an error, else 0."""
    levels: list[str] = []
    for finding in findings:
        print(f"{finding.level:8s} {finding.text}")
        levels.append(finding.level)
    return 1 if "error" in levels else 0
