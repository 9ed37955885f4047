"""Diffusion-policy RL on another run's replay: samples ranked, and then guided, by critics."""

from __future__ import annotations

from dreamlab import training
from dreamlab.config import compose, load_config
from dreamlab.core.config import load
from dreamlab.data.run_replay import RunReplay, RunReplayConfig
from dreamlab.data.source import BufferContext
from dreamlab.factories import create_agent

POLICY = {"_target_": "diffusion", "levels": 5, "betas": "vp", "net": {"width": 64, "blocks": 2}}
CRITIC = {"kind": "standard", "hidden": (64, 64)}
VARIANTS = {
    "the plain policy": {"rank": {"samples": 1}},
    "the best of 16 samples (IDQL)": {"rank": {"samples": 16}},
    "a loss through the chain (DQL)": {"rank": {"samples": 1}, "q_loss": 0.5},
    "guided samples": {"rank": {"samples": 1}, "guidance_scale": 1.0},
    "RIC": {"rank": {"samples": 1}, "ric": {"constraint": 0.1, "value": 0.1}},
}


def main() -> None:
    played = ["sac_pendulum", "tiny=true", "training.total_frames=800", "eval.video=false"]
    run, _ = training.train(load_config(compose([*played, "run.dir=experiments/played"])))
    options = {"run": str(run.folder), "batch": 64, "length": 2, "windows": "transitions"}
    config = load(RunReplayConfig, options, "data")
    spec = RunReplay.spec_of(config)
    for name, more in VARIANTS.items():
        data = RunReplay(config, BufferContext(spec, num_envs=1))
        agent = create_agent("diffusion_rl", spec, POLICY, CRITIC, **more)
        metrics = {}
        for _ in range(100):
            metrics = agent.update(data.sample())
        obs = {k: v[:, 0] for k, v in data.sample().obs.items()}
        action = agent.act(obs, evaluation=True)
        critics = agent.workflow.critic.q
        worth = float(critics.values(critics.features(obs), action).mean())
        print(f"{name}: loss {float(metrics['policy_loss']):.3f}, by the critics {worth:.2f}")


if __name__ == "__main__":
    main()
