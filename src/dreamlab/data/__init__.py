"""Experience: what is stored, and how batches are drawn from it."""

PARTS = {
    "replay": "dreamlab.data.replay.Replay",
    "run_replay": "dreamlab.data.run_replay.RunReplay",
    "rollout": "dreamlab.data.rollout.Rollout",
    "uniform": "dreamlab.data.samplers.Uniform",
    "prioritised": "dreamlab.data.samplers.Prioritised",
    "recency": "dreamlab.data.samplers.Recency",
    "mixture": "dreamlab.data.samplers.Mixture",
    "online": "dreamlab.data.samplers.Online",
    "passes": "dreamlab.data.passes.Passes",
}
