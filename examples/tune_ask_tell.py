"""Search for a learning rate and a network: ask for options, train, tell what they were worth."""

from __future__ import annotations

import dreamlab

SPACE = {"lr": {"loguniform": [1e-4, 1e-2]}, "hidden": [[32, 32], [64, 64]]}
TRIALS = 5


def main() -> None:
    # the search is in its folder: run this again and it goes on where it stopped
    tuner = dreamlab.Tuner(SPACE, "experiments/ask_tell", startup_trials=3)
    while len(tuner) < TRIALS:
        trial = tuner.ask()
        run = dreamlab.train(
            "ppo_cartpole",
            **trial.params,
            total_frames=2_000,
            video=False,
            terminal="off",
            run_dir=trial.folder,
        )
        if run.status == "interrupted":  # not told: its options are asked for again
            return
        tuner.tell(trial, run.evaluate(5).mean)
        print(trial.number, trial.params, tuner.trials[-1].value)
    print("best:", tuner.best.params, tuner.best.value)
    print(tuner.frame())


if __name__ == "__main__":
    main()
