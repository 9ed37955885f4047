"""Play a trained agent by hand: one plain Gymnasium environment, then a batch of three."""

from __future__ import annotations

import gymnasium as gym
import numpy as np

import dreamlab


def one(agent: dreamlab.Agent) -> float:
    """Play one episode; the observation is raw, the action in the environment's own units."""
    env = gym.make("Pendulum-v1")
    obs, _ = env.reset(seed=7)
    state, total, over = None, 0.0, False  # no state: an episode begins
    while not over:
        action, state = agent.predict(obs, state)
        obs, reward, terminated, truncated, _ = env.step(action)
        total, over = total + float(reward), terminated or truncated
    return total


def batch(agent: dreamlab.Agent, steps: int = 300) -> list[float]:
    """Play three environments at once; each begins a new episode when its last one is over."""
    envs = [agent.make_env() for _ in range(3)]  # with the wrappers of the training
    obs = np.stack([env.reset(seed=i)[0] for i, env in enumerate(envs)])
    state, start, totals = None, None, [0.0] * 3
    for _ in range(steps):
        actions, state = agent.predict(obs, state, episode_start=start, deterministic=False)
        start = np.zeros(3, bool)
        for i, env in enumerate(envs):
            obs[i], reward, terminated, truncated, _ = env.step(actions[i])
            totals[i] += float(reward)
            if terminated or truncated:
                obs[i], _ = env.reset()
                start[i] = True
    return totals


def main() -> None:
    run = dreamlab.train("sac_pendulum", total_frames=1_000, video=False, seed=1)
    agent = dreamlab.load(run.folder)  # or "hub:OWNER/NAME"
    print("one episode:", one(agent))
    print("300 steps of three environments:", batch(agent))


if __name__ == "__main__":
    main()
