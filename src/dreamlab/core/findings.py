"""Results of checks: of an environment, a machine, a training loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """Result of one check; an error is a defect, a warning may be one."""

    level: Literal["ok", "warning", "error"]
    text: str
