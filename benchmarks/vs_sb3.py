"""Env steps per second, side by side with Stable-Baselines3: same machine, same hyperparameters.

    python benchmarks/vs_sb3.py [--rounds 3] [--record]

Each system trains in its own process, in turn, several rounds; the ratio is that of the medians.
Every process first trains a little without being timed. Stable-Baselines3 is given whichever number
of torch threads suits it better; ours is as `dreamlab train` would set it. The ratio is that of
ours with `compile=true`, whose compilation falls into the warm-up; the table also has ours without.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

# hyperparameters of rl-baselines3-zoo for each task: what SB3's own users run
FRAMES = {"ppo": 30_000, "dqn": 12_000, "sac": 1_500}
WARM_UP = {"ppo": 2_560, "dqn": 3_000, "sac": 600}


def ours(name: str, compiled: bool) -> tuple[float, dict[str, float]]:
    """Return env frames per second of our experiment, and where the time went."""
    import tempfile

    from dreamlab import build, train
    from dreamlab.config import compose, load_config
    from dreamlab.engine.terminal import Terminal

    experiment = {"ppo": "ppo_cartpole", "dqn": "dqn_cartpole", "sac": "sac_pendulum"}[name]
    with tempfile.TemporaryDirectory() as folder:
        options = [
            f"+experiment={experiment}", f"run.dir={folder}/run", "log.terminal=off", "device=cpu",
            "eval.every_frames=0", "checkpoint.every_frames=0", "checkpoint.every_s=0", "seed=1",
            f"training.total_frames={WARM_UP[name] + FRAMES[name]}",
            f"compile={compiled}", *OURS[name],
        ]  # fmt: skip
        with train.open_run(load_config(compose(options))) as opened:
            loop = build.build(opened.config, opened.run, Terminal("off", opened.config.name))
            opened.keep()
        speed = _speed(WARM_UP[name])
        loop.observers.add(speed)
        loop.run()
    total = sum(speed.seconds.values())
    return speed.frames_per_s, {k: v / total for k, v in speed.seconds.items()}


def _speed(warm_up: int):
    """Return an observer that times training, and training alone, from a frame on."""
    from dreamlab.engine.observer import StageTimes

    class Speed(StageTimes):
        frames_per_s, since = 0.0, (0.0, 0)

        def started(self, loop):
            self.loop = loop

        def before(self, action):
            frames = self.loop.counters.env_frames
            if not self.since[1] and frames >= warm_up:
                self.since, self.seconds = (time.perf_counter(), frames), {}
            super().before(action)

        def after(self, action):
            super().after(action)
            if self.loop.scheduler.next_action() is None:
                elapsed = time.perf_counter() - self.since[0]
                self.frames_per_s = (self.loop.counters.env_frames - self.since[1]) / elapsed
                self.seconds["rest"] = elapsed - sum(self.seconds.values())
                self.loop.stop()  # without the evaluation of the end

    return Speed()


OURS: dict[str, list[str]] = {"ppo": [], "dqn": ["workflow.optimizer.lr=2.3e-3"], "sac": []}


def theirs(name: str, threads: int) -> float:
    """Return env steps per second of Stable-Baselines3."""
    import torch

    torch.set_num_threads(threads)
    model = MAKERS[name]()
    model.learn(WARM_UP[name])
    began = time.perf_counter()
    model.learn(FRAMES[name], reset_num_timesteps=False)
    return FRAMES[name] / (time.perf_counter() - began)


def _ppo():
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    return PPO(
        "MlpPolicy", make_vec_env("CartPole-v1", n_envs=8, seed=1), n_steps=32, batch_size=256,
        n_epochs=20, gamma=0.98, gae_lambda=0.8, ent_coef=0.0, learning_rate=lambda p: p * 1e-3,
        clip_range=lambda p: p * 0.2, device="cpu", seed=1,
    )  # fmt: skip


def _dqn():
    from stable_baselines3 import DQN

    return DQN(
        "MlpPolicy", "CartPole-v1", learning_rate=2.3e-3, batch_size=64, buffer_size=100_000,
        learning_starts=1_000, gamma=0.99, target_update_interval=10, train_freq=256,
        gradient_steps=128, exploration_fraction=0.16, exploration_final_eps=0.04,
        policy_kwargs={"net_arch": [256, 256]}, device="cpu", seed=1,
    )  # fmt: skip


def _sac():
    from stable_baselines3 import SAC

    return SAC("MlpPolicy", "Pendulum-v1", learning_rate=1e-3, device="cpu", seed=1)


MAKERS = {"ppo": _ppo, "dqn": _dqn, "sac": _sac}


def in_process(*arguments: str) -> dict:
    """Run one measurement in a fresh process and return what it printed."""
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def measure(name: str, rounds: int) -> dict:
    """Alternate both systems and return the medians."""
    best = max((1, 2), key=lambda t: in_process("--one", "sb3", name, str(t))["speed"])
    mine, plain, peer, shares = [], [], [], {}
    for _ in range(rounds):
        result = in_process("--one", "dreamlab", name, "1")
        mine.append(result["speed"])
        shares = result["shares"]
        peer.append(in_process("--one", "sb3", name, str(best))["speed"])
        plain.append(in_process("--one", "dreamlab", name, "0")["speed"])
    a, b, c = (statistics.median(x) for x in (mine, peer, plain))
    ratios = {"ratio": a / b, "plain_ratio": c / b}
    return {"ours": a, "plain": c, "sb3": b, **ratios, "sb3_threads": best, "shares": shares}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--record", action="store_true", help="write benchmarks/results/vs_sb3.md")
    parser.add_argument("--only", nargs="*", default=["ppo", "dqn", "sac"])
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        system, name, threads = options.one
        if system == "sb3":
            print(json.dumps({"speed": theirs(name, int(threads))}))
        else:
            speed, shares = ours(name, compiled=threads == "1")
            print(json.dumps({"speed": speed, "shares": shares}))
        return
    results = {name: measure(name, options.rounds) for name in options.only}
    lines = [
        "| algorithm | dreamlab, compiled | dreamlab | SB3 | ratio | without compiling "
        "| compiled: collect/update/rest |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, r in results.items():
        share = " / ".join(f"{r['shares'].get(k, 0):.0%}" for k in ("collect", "update", "rest"))
        peer = f"{r['sb3']:,.0f} ({r['sb3_threads']} thread{'s' * (r['sb3_threads'] > 1)})"
        lines.append(
            f"| {name} | {r['ours']:,.0f} | {r['plain']:,.0f} | {peer} | {r['ratio']:.2f} "
            f"| {r['plain_ratio']:.2f} | {share} |"
        )
    print("\n".join(lines))
    if options.record:
        record(lines, options.rounds)
    print("ratio " + " ".join(f"{name}={r['ratio']:.2f}" for name, r in results.items()))


def record(lines: list[str], rounds: int) -> None:
    """Write the table with what it depends on."""
    from importlib.metadata import version

    from dreamlab.runs.run import git_state, hardware

    versions = ", ".join(f"{p} {version(p)}" for p in ("torch", "stable-baselines3", "gymnasium"))
    commit = git_state().get("commit", "?")[:10]
    machine = f"{hardware()['cpu']}, {hardware()['cpus']} cores"
    text = f"""# Speed beside Stable-Baselines3

`python benchmarks/vs_sb3.py --rounds {rounds} --record`, commit {commit},
{machine}, Python {platform.python_version()}, {versions}.

CartPole-v1 (PPO, DQN) and Pendulum-v1 (SAC) with the hyperparameters of rl-baselines3-zoo; both
systems on the CPU, each measured in its own process after a warm-up, in turn, medians of env steps
per second. `compile=true` costs 10 to 25 s the first time, a few seconds later (cached); without it
nothing is compiled.

"""
    path = Path(__file__).parent / "results" / "vs_sb3.md"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
