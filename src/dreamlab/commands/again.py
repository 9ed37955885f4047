"""The clean process of `dreamlab verify`: prepared like one of the command line."""

from __future__ import annotations

import sys
from pathlib import Path

from dreamlab.accel.before_torch import prepare

if __name__ == "__main__":
    prepare()
    from dreamlab.commands.second_run import again

    sys.exit(again(Path(sys.argv[1]), int(sys.argv[2]), [int(n) for n in sys.argv[3:]]))
