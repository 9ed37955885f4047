"""Same as `dreamlab train`, for those who start scripts: python scripts/train.py +experiment=ppo_cartpole."""

import sys

from dreamlab.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
