"""Learn from what another run has stored, without an environment: `dreamlab train offline.yaml`."""

from __future__ import annotations

from pathlib import Path

from dreamlab import training
from dreamlab.config import compose, load_config

YAML = Path(__file__).with_name("offline.yaml")


def main() -> None:
    first = ["dqn_cartpole", "tiny=true", "training.total_frames=1_000", "eval.video=false"]
    played, _ = training.train(load_config(compose([*first, "run.dir=experiments/played"])))
    data = f"buffers.replay.run={played.folder}"
    config = load_config(compose([str(YAML), data, "run.dir=experiments/studied"]))
    run, status = training.train(config)
    losses = [round(record["train/loss"], 4) for record in run.metrics()]
    print(status, "after", run.manifest["updates"], "updates; losses", losses)
    # with an environment named, the policy is measured there; nothing is collected
    named = [
        "env.id=CartPole-v1",
        "eval.every_updates=200",
        "eval.episodes=2",
        "eval.video=false",
    ]
    measured = load_config(compose([str(YAML), data, *named, "run.dir=experiments/measured"]))
    print(training.train(measured)[0].manifest["final_eval"])


if __name__ == "__main__":
    main()
