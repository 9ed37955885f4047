"""Train from Python with options, resume for longer, measure two checkpoints, read the metrics."""

from __future__ import annotations

import dreamlab


def main() -> None:
    # every option of the command line: a name that only one option has, a section, a dotted key
    run = dreamlab.train(
        "ppo_cartpole",
        lr=1e-3,
        env={"num_envs": 4},
        total_frames=3_000,
        **{"eval.video": False, "checkpoint.every_frames": 1_000},
    )
    print(run, run.manifest["final_eval"]["eval/return"])

    # a folder is all it takes: weights, configuration and normalisation come from it
    run = dreamlab.Run(str(run.folder)).resume(total_frames=6_000)
    for checkpoint in ("best", "latest"):
        print(checkpoint, run.evaluate(5, checkpoint=checkpoint).returns)

    print(run.frame()[["env_frames", "episode/return", "eval/return"]].tail())
    run.plot("train/value_loss", "train/policy_loss", path=run.folder / "losses.png")

    try:
        dreamlab.train("ppo_cartpole", learning_rate=1e-3)
    except dreamlab.LabError as error:
        print(error)


if __name__ == "__main__":
    main()
