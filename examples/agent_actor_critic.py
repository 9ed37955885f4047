"""Actor-critic online, with an autoregressive policy that no gradient goes through: PA-RL's way."""

from __future__ import annotations

import torch

from dreamlab import build, training
from dreamlab.config import compose, load_config
from dreamlab.core.config import load
from dreamlab.core.types import Decision
from dreamlab.data.replay import Replay, ReplayConfig
from dreamlab.data.source import BufferContext
from dreamlab.envs.vector import EnvConfig, Envs
from dreamlab.factories import create_agent

TINY = {"_target_": "autoregressive", "bins": 33, "dim": 32, "heads": 2, "layers": 1}


def main() -> None:
    envs = Envs(EnvConfig("Pendulum-v1", num_envs=4), seed=0)
    options = {"capacity": 10_000, "batch": 64, "length": 2, "windows": "transitions"}
    replay = Replay(load(ReplayConfig, options, "replay"), BufferContext(envs.spec, 4))

    # the policy proposes, the critics rank and climb, the policy imitates what they chose
    critic = {"kind": "distributional", "hidden": (64, 64)}
    improve = {"samples": 8, "keep": 2, "steps": 2, "step_size": 0.02}
    agent = create_agent("actor_critic", envs.spec, TINY, critic, improve=improve)
    step = envs.reset()
    for tick in range(300):
        obs = {k: torch.from_numpy(v) for k, v in step.obs.items()}
        action = agent.act(obs, torch.from_numpy(step.is_first))
        replay.add(step, Decision(action))
        step = envs.step(action.numpy())
        if replay.ready() and tick % 3 == 0:
            metrics = agent.update(replay.sample())
            if tick % 60 == 0:
                print(tick, {k: round(float(metrics[k]), 3) for k in ("q", "policy_loss")})
    envs.close()

    # the same agent as a run, with checkpoints, evaluation and curves: only the loop differs
    tiny = ["pa_rl_pendulum", "tiny=true", "training.total_frames=400", "eval.video=false"]
    config = load_config(compose([*tiny, "eval.episodes=1"]))
    run, status = training.train(config)
    print(status, run.folder, type(build.build_workflow(config, envs.spec)).__name__)


if __name__ == "__main__":
    main()
