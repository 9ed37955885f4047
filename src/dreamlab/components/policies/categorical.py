"""Discrete actions: one choice of n, or several independent ones."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor, nn

from dreamlab.components.policies.protocol import Policy, PolicyConfig, check_discrete
from dreamlab.core.limits import Positive, Width
from dreamlab.core.types import Mode, Obs, Spec
from dreamlab.nn.dists import MultiCategorical
from dreamlab.nn.mlp import MLP, Act, MLPConfig


@dataclass(frozen=True)
class CategoricalPolicyConfig(PolicyConfig):
    """Hidden layers."""

    hidden: tuple[Width, ...] = (256, 256)
    act: Act = "relu"
    temperature: Positive = 1.0
    """Softmax temperature of samples; log-probabilities use 1."""


class CategoricalPolicy(Policy):
    """Independent logits for every choice of a chunk, trained with cross-entropy."""

    Config = CategoricalPolicyConfig
    has_log_prob = True

    def __init__(self, config: CategoricalPolicyConfig, spec: Spec) -> None:
        super().__init__(config, spec)
        self.classes = check_discrete(spec.action, "categorical")
        self.temperature = config.temperature
        self.net = MLP(MLPConfig(config.hidden, config.act, gain=None), self.feature_dim)
        self.head = nn.Linear(self.net.out_dim, self.horizon * sum(self.classes))

    def logits(self, obs: Obs) -> Float[Tensor, "b h k"]:
        """Return the logits of all choices, concatenated."""
        flat = self.net.into(self.head, self.features(obs)).float()
        return flat.unflatten(-1, (self.horizon, sum(self.classes)))

    def sample(self, obs: Obs, n: int = 1, *, mode: Mode = Mode.TRAIN) -> Int[Tensor, "b {n} h a"]:
        """Sample class indices, without gradients."""
        logits = self.logits(obs)[:, None].expand(-1, n, -1, -1)
        dist = MultiCategorical(logits / self.temperature, self.classes)
        return dist.sample() if mode.samples else dist.mode()

    def loss(self, obs: Obs, action: Int[Tensor, "b h a"]) -> Float[Tensor, " b"]:
        """Return the cross-entropy, summed over the choices of a chunk."""
        return -self.log_prob(obs, action)

    def log_prob(self, obs: Obs, action: Int[Tensor, "b h a"]) -> Float[Tensor, " b"]:
        return MultiCategorical(self.logits(obs), self.classes).log_prob(action).sum(-1)
