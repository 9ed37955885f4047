"""Run by test_traced.py: as `traced`, but with shapes checked as in every test of a GPU."""

from __future__ import annotations

import sys

import tests.conftest  # noqa: F401 (before anything that is to be checked)
from tests.accel.traced import main

if __name__ == "__main__":
    main(*sys.argv[1:])
