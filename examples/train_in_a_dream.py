"""Learn a world model, train PPO inside it, and test PPO in the real environment."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from dreamlab import build, training
from dreamlab.config import compose, load_config


def trained(*options: str) -> Path:
    """Train one experiment and return its run folder."""
    run, status = training.train(load_config(compose(list(options))))
    print(run.folder, status)
    return run.folder


def main(extra: list[str]) -> None:
    world = trained("+experiment=dreamer_cartpole", "training.total_frames=2000", *extra)
    student = trained(
        "+experiment=ppo_cartpole",
        "env.suite=imagined",
        f"env.id={world}",
        "env.options={length: 50}",
        "training.total_frames=5000",
        "eval.video=false",
        *extra,
    )
    policy = training.load_policy(student)
    real = replace(policy.config, env=training.load_policy(world).config.env)
    result = build.build_evaluator(real).run(policy.workflow, None)
    print(f"PPO never saw the real CartPole; there it scores {result.metrics()['eval/return']:.0f}")


if __name__ == "__main__":
    main(sys.argv[1:])
