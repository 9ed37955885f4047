"""A diffusion policy that imitates what another run stored, in a loop of one's own."""

from __future__ import annotations

from dreamlab import training
from dreamlab.config import compose, load_config
from dreamlab.core.config import load
from dreamlab.data.run_replay import RunReplay, RunReplayConfig
from dreamlab.data.source import BufferContext
from dreamlab.factories import create_agent

SMALL = {"width": 64, "blocks": 2, "time_dim": 16}


def main() -> None:
    played = ["sac_pendulum", "tiny=true", "training.total_frames=800", "eval.video=false"]
    run, _ = training.train(load_config(compose([*played, "run.dir=experiments/demonstrations"])))
    config = load(RunReplayConfig, {"run": str(run.folder), "batch": 64, "length": 8}, "data")
    spec = RunReplay.spec_of(config)
    data = RunReplay(config, BufferContext(spec, num_envs=1))

    # chunks of eight actions, of which four are carried out before the next is decided
    policy = {"_target_": "diffusion", "levels": 10, "horizon": 8, "execute": 4, "net": SMALL}
    agent = create_agent("imitation", spec, policy)
    for i in range(200):
        metrics = agent.update(data.sample())
        if i % 50 == 0:
            print({k: round(float(v), 4) for k, v in metrics.items()})
    obs = {k: v[:3, 0] for k, v in data.sample().obs.items()}
    print("actions", agent.act(obs, evaluation=True)[:, 0].tolist())


if __name__ == "__main__":
    main()
