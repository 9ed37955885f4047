"""`python -m dreamlab` is `dreamlab`."""

from __future__ import annotations

import sys

from dreamlab.cli import main

if __name__ == "__main__":
    sys.exit(main())
