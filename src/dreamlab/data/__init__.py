"""Experience: what is stored, and how batches are sampled from it."""

PARTS = {
    "replay": "dreamlab.data.replay.Replay",
    "run_replay": "dreamlab.data.run_replay.RunReplay",
    "dataset": "dreamlab.data.dataset_source.DatasetSource",
    "rollout": "dreamlab.data.rollout.Rollout",
    "uniform": "dreamlab.data.samplers.Uniform",
    "prioritised": "dreamlab.data.samplers.Prioritised",
    "recency": "dreamlab.data.samplers.Recency",
    "mixture": "dreamlab.data.samplers.Mixture",
    "online": "dreamlab.data.samplers.Online",
    "shuffled": "dreamlab.data.shuffled.Shuffled",
    "passes": "dreamlab.data.passes.Passes",
    "episodes": "dreamlab.data.episodes.Episodes",
}
