"""Learning curves that others published, to compare runs with.

`published.csv.gz` has one row per suite, task, method and number of env frames: mean and deviation
over seeds. `source` dreamerv3: derived from the score files of github.com/danijar/dreamerv3, the
mean of training episodes inside the tenth of the run that ends there. `source` tdmpc2: from the
result files of github.com/nicklashansen/tdmpc2, evaluations.
"""

from __future__ import annotations

import csv
import gzip
from functools import cache
from importlib.resources import files


@cache
def published_rows() -> list[dict[str, str]]:
    """Return every row, by column."""
    with (
        files("dreamlab.runs").joinpath("published.csv.gz").open("rb") as raw,
        gzip.open(raw, "rt", newline="") as file,
    ):
        return list(csv.DictReader(file))
