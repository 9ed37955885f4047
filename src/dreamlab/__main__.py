"""`python -m dreamlab` is `dreamlab`."""

from __future__ import annotations

import os
import sys
from multiprocessing import util

from dreamlab.cli import main

if __name__ == "__main__":
    code = main()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # gloo's threads may abort a process that tears down its interpreter: everything is written
        sys.stdout.flush()
        sys.stderr.flush()
        # as at any exit: environments in their own processes end quietly
        util._exit_function()  # pyright: ignore[reportAttributeAccessIssue]
        os._exit(code)
    sys.exit(code)
