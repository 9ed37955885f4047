"""What a check found: of an environment, a machine, a training loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at; an error is a defect, a warning may be one."""

    level: Literal["ok", "warning", "error"]
    text: str
