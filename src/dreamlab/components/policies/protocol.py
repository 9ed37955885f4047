"""Interface of policies: sample actions, a supervised loss and, if available, log-densities.

A policy is a part: `workflow.policy: {_target_: diffusion, ...}`. It owns the encoder of its
observations, whose leaves are `[b, obs_steps, ...]`; actions are `[b, h, a]`, continuous in [-1, 1]
or class indices, flattened over the environment's own shape.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

from jaxtyping import Float, Shaped
from torch import Tensor, nn

from dreamlab.components.encoder import Encoder, EncoderConfig
from dreamlab.core.errors import ConfigError, LabError
from dreamlab.core.limits import PositiveInt
from dreamlab.core.types import ArraySpec, Mode, Obs, Spec


@dataclass(frozen=True)
class PolicyConfig:
    """Options of every policy: encoder, observation history, and action horizon.

    step        0    1    2   ...   8   ...  15
    obs         o0   o1                           obs_steps = 2: the last of them is now
    action      a0   a1   a2  ...   a8  ...  a15  horizon = 16: from the first observation's step on
    executed         a1   a2  ...   a8            execute = 8: from now on
    """

    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    obs_steps: PositiveInt = 1
    horizon: PositiveInt = 1
    execute: PositiveInt = 1

    def __post_init__(self) -> None:
        if self.execute > (most := self.horizon - self.obs_steps + 1):
            raise ValueError(
                f"execute={self.execute} is more than the {most} actions that horizon="
                f"{self.horizon} has from the last of obs_steps={self.obs_steps} on"
            )


class Policy(nn.Module, ABC):
    """A distribution over action chunks, of any form; built with a spec."""

    has_log_prob: ClassVar[bool] = False
    """Whether `log_prob` is available; otherwise it raises."""

    def __init__(self, config: PolicyConfig, spec: Spec) -> None:
        super().__init__()
        self.obs_steps, self.horizon = config.obs_steps, config.horizon
        self.execute = config.execute
        self.action, self.action_dim = spec.action, spec.action.size
        self.encoder = Encoder(config.encoder, spec.obs)
        self.feature_dim = self.obs_steps * self.encoder.out_dim

    @abstractmethod
    def sample(
        self, obs: Obs, n: int = 1, *, mode: Mode = Mode.TRAIN
    ) -> Shaped[Tensor, "b {n} h a"]:
        """Sample n action chunks for each row of observations.

        Gradients flow to the weights if actions are continuous outputs of a network. Deterministic
        modes return the policy's mode, if it has one; FIXED draws no random numbers.
        """

    @abstractmethod
    def loss(self, obs: Obs, action: Shaped[Tensor, "b h a"]) -> Float[Tensor, " b"]:
        """Return the policy's own supervised loss of each row."""

    def log_prob(self, obs: Obs, action: Shaped[Tensor, "b h a"]) -> Float[Tensor, " b"]:
        """Return the log-density of chunks, or raise if the policy has none in closed form."""
        raise LabError(
            f"{type(self).__name__} has no log-probability: use a policy that has one "
            "(gaussian, categorical, autoregressive), or its loss"
        )

    def encode(self, obs: Obs) -> Float[Tensor, "b t d"]:
        """Encode each observed step."""
        return self.encoder(obs)

    def features(self, obs: Obs) -> Float[Tensor, "b {self.feature_dim}"]:
        """Encode all observed steps, concatenated."""
        return self.encode(obs).flatten(1)

    def flat(self, action: Shaped[Tensor, "*b"]) -> Shaped[Tensor, "... a"]:
        """Flatten actions from the environment's shape to rows."""
        lead = action.shape[: action.ndim - len(self.action.shape)]
        return action.reshape(*lead, self.action_dim)

    def shaped(self, action: Shaped[Tensor, "*b a"]) -> Shaped[Tensor, " ..."]:
        """Reshape rows to the environment's shape."""
        return action.reshape(*action.shape[:-1], *self.action.shape)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Disable dropout and random crops inside the block, for sampling."""
    was = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(was)


def check_bounded(action: ArraySpec, kind: str, plain: bool = False) -> None:
    """Raise unless actions are continuous in [-1, 1], or unbounded for a `plain` policy."""
    if action.is_discrete:
        raise ConfigError(
            f"workflow.policy: {kind} takes continuous actions, these are discrete: "
            "use _target_: categorical"
        )
    unbounded = action.low is None or action.high is None
    if (action.low, action.high) == (-1.0, 1.0) or (plain and unbounded):
        return
    found = "unbounded" if unbounded else f"in [{action.low}, {action.high}]"
    raise ConfigError(
        f"workflow.policy: {kind} acts in [-1, 1], these actions are {found}. Normalize those of a "
        "dataset by min_max, quantiles or bounds (mean_std has no bounds: only _target_: gaussian "
        "with squash: false takes it), else set env.scale_actions=true"
    )


def check_discrete(action: ArraySpec, kind: str) -> tuple[int, ...]:
    """Return the number of classes of each choice, or raise if actions are not discrete."""
    if action.classes is None:
        raise ConfigError(
            f"workflow.policy: {kind} takes discrete actions, these are continuous: "
            "use _target_: gaussian, diffusion, flow or autoregressive"
        )
    return (action.classes,) if isinstance(action.classes, int) else action.classes
