"""Train an agent, measure it, ask it for an action."""

import dreamlab

run = dreamlab.train("ppo_cartpole", total_frames=6_000, seed=1)
agent = run.agent()
print("mean return of 5 episodes:", agent.evaluate(5).mean)
run.plot(path=run.folder / "returns.png")
action, state = agent.predict([0.0, 0.1, 0.0, -0.1])
