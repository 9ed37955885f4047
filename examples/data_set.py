"""Record a policy's episodes as a LeRobot data set, look into it, and learn from it offline."""

from __future__ import annotations

import numpy as np

from dreamlab import training
from dreamlab.cli import main as dreamlab
from dreamlab.config import compose, load_config
from dreamlab.data.datasets.opening import open_dataset

SMALL = ["tiny=true", "eval.episodes=2", "eval.video=false"]
LEARN = [
    "sac_pendulum", *SMALL, "env.scale_actions=false", "~buffers.replay", "eval.every_frames=0",
    "buffers.demos={_target_: dataset, path: data/pendulum, batch: 64, length: 2, "
    "normalize: {action: bounds, state: mean_std}, mc_gamma: 0.99}",
    "training.phases=[{name: study, type: offline, buffer: demos, duration_updates: 50, "
    "workflow_hooks: [update_controller]}]",
]  # fmt: skip


def main() -> None:
    play = ["random_cartpole", *SMALL, "env.id=Pendulum-v1", "training.total_frames=200"]
    run, _ = training.train(load_config(compose([*play, "run.dir=experiments/random"])))
    dreamlab(["data", "record", str(run.folder), "data/pendulum", "--episodes", "4"])

    data = open_dataset("data/pendulum")
    actions = data.columns["action"]  # in the environment's own units: a torque
    print(data.kind, len(data.episodes), "episodes", data.num_frames, "frames at", data.fps, "fps")
    print("actions from", actions.min(), "to", actions.max(), "bounds", data.features["action"].low)
    print("return", np.sum(data.columns["next.reward"]) / len(data.episodes))

    # any algorithm learns from it; whoever acts is normalised as the data is
    learnt, status = training.train(load_config(compose([*LEARN, "run.dir=experiments/studied"])))
    print(status, learnt.manifest["final_eval"])


if __name__ == "__main__":
    main()
