"""Does what `dreamlab train` does: python scripts/train.py +experiment=ppo_cartpole seed=1."""

import sys

from dreamlab.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
