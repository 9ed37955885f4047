"""Train two learning rates with three seeds each, and compare them as a paper would."""

from __future__ import annotations

from pathlib import Path

import dreamlab


def main() -> None:
    root = Path("experiments/learning_rates")
    groups: dict[str, list[dreamlab.Run]] = {"slow": [], "fast": []}
    for name, lr in (("slow", 1e-4), ("fast", 2e-3)):
        for seed in (1, 2, 3):
            folder = root / f"{name}_{seed}"  # a run that is there already is resumed, or done
            options = {"log": {"every_frames": 500, "terminal": "off"}, "video": False}
            run = dreamlab.train(
                "ppo_cartpole", lr=lr, seed=seed, run_dir=folder, total_frames=3_000, **options
            )
            groups[name].append(run)

    found = dreamlab.compare(groups, metrics=["episode/return"])
    print(found)
    print(found.frame())
    found.figure.savefig(root / "curves.png")
    print(*found.save(root / "figures"), sep="\n")


if __name__ == "__main__":
    main()
