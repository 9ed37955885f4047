"""Offline RL (IQL) with an ensemble of critics on another run's replay, in a loop of one's own."""

from __future__ import annotations

from pathlib import Path

from dreamlab import training
from dreamlab.config import compose, load_config
from dreamlab.core.config import load
from dreamlab.data.run_replay import RunReplay, RunReplayConfig
from dreamlab.data.source import BufferContext
from dreamlab.factories import create_agent


def main() -> None:
    played = ["sac_pendulum", "tiny=true", "training.total_frames=800", "eval.video=false"]
    run, _ = training.train(load_config(compose([*played, "run.dir=experiments/played"])))
    options = {"run": str(run.folder), "batch": 64, "length": 2, "windows": "transitions"}
    config = load(RunReplayConfig, options, "data")
    spec = RunReplay.spec_of(config)
    data = RunReplay(config, BufferContext(spec, num_envs=1))

    policy = {"_target_": "gaussian", "hidden": (32, 32)}
    critic = {"kind": "ensemble", "hidden": (32, 32)}
    agent = create_agent("offline_rl", spec, policy, critic, beta=1.0)
    for i in range(200):
        metrics = agent.update(data.sample())
        if i % 50 == 0:
            print({k: round(float(metrics[k]), 3) for k in ("q", "value", "policy_loss")})

    file = Path("experiments/agent.pt")
    agent.save(file)
    again = create_agent("offline_rl", spec, policy, critic, beta=1.0)
    again.load(file)
    obs = {k: v[:3, 0] for k, v in data.sample().obs.items()}
    same = agent.act(obs, evaluation=True) == again.act(obs, evaluation=True)
    print("the saved agent acts alike:", bool(same.all()))


if __name__ == "__main__":
    main()
