"""Clone an agent: record its episodes as a data set, learn from them with another policy."""

from __future__ import annotations

from pathlib import Path

from dreamlab import cli, training
from dreamlab.config import compose, load_config

YAML = Path(__file__).with_name("clone.yaml")


def main() -> None:
    expert = ["sac_pendulum", "tiny=true", "training.total_frames=1_500", "eval.video=false"]
    taught, _ = training.train(load_config(compose([*expert, "run.dir=experiments/expert"])))
    cli.main(["data", "record", str(taught.folder), "data/pendulum", "--episodes", "4"])
    data = "buffers.demos.path=data/pendulum"
    gaussian = "workflow.policy={_target_: gaussian, obs_steps: 2, horizon: 8, execute: 4}"
    for name, words in (("diffusion", []), ("gaussian", [gaussian])):
        config = load_config(compose([str(YAML), data, *words, f"run.dir=experiments/{name}"]))
        run, status = training.train(config)
        print(name, status, "with a return of", run.manifest["final_eval"]["eval/return"])


if __name__ == "__main__":
    main()
