"""Encoders, world models, policies and critics: parts that depend on observations and actions.

These parts can be named in a configuration; `kinds` defines the interfaces of world model parts,
`policies.protocol` that of policies.
"""

PARTS = {
    "encoder": "dreamlab.components.world_models.codec.Encoder",
    "decoder": "dreamlab.components.world_models.codec.Decoder",
    "rssm": "dreamlab.components.world_models.rssm.RSSM",
    "two_hot": "dreamlab.components.heads.TwoHotHead",
    "normal": "dreamlab.components.world_models.world_model_planet.NormalHead",
    "binary": "dreamlab.components.heads.BinaryHead",
    "latent_policy": "dreamlab.components.heads.LatentPolicy",
    "ensemble": "dreamlab.components.world_models.dynamics_ensemble.DynamicsEnsemble",
    "planet_rssm": "dreamlab.components.world_models.planned.PlannedRSSM",
    "tdmpc2_latent": "dreamlab.components.world_models.planned_latent.PlannedLatent",
    "pendulum_reward": "dreamlab.components.rewards.PendulumReward",
    "gaussian": "dreamlab.components.policies.gaussian.GaussianPolicy",
    "categorical": "dreamlab.components.policies.categorical.CategoricalPolicy",
    "diffusion": "dreamlab.components.policies.diffusion.DiffusionPolicy",
    "scaled_diffusion": "dreamlab.components.policies.scaled.ScaledDiffusionPolicy",
    "flow": "dreamlab.components.policies.flow.FlowPolicy",
    "autoregressive": "dreamlab.components.policies.autoregressive.AutoregressivePolicy",
}
HOME = "dreamlab.components"
"""Package in which a configuration looks up short names."""
