"""Q(s, a) of observations and continuous actions or chunks: encoder, ensemble, readout.

There may be one or several actions per state; each state is encoded once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dreamlab.components.critics import HOME
from dreamlab.components.critics.ensemble import Aggregate, aggregate, draw_members
from dreamlab.components.critics.readout import Readout
from dreamlab.components.encoder import Encoder, EncoderConfig
from dreamlab.core.config import Part, part
from dreamlab.core.errors import ConfigError
from dreamlab.core.limits import PositiveInt, Range, Width
from dreamlab.core.types import ArraySpec, Obs, Spec
from dreamlab.nn.ensemble import EnsembleMLP
from dreamlab.nn.mlp import Act


@dataclass(frozen=True)
class QConfig:
    """Networks, readout, and number of critics in a target."""

    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    num_critics: Annotated[int, Range(1, 1_000)] = 2
    hidden: tuple[Width, ...] = (256, 256)
    act: Act = "relu"
    norm: bool = False
    """Normalize each hidden layer."""
    readout: Part = part("mse", HOME, Readout)
    """Meaning of the outputs: `mse`, `huber`, `two_hot`, `hl_gauss`, `c51`, `quantile`."""
    subset: PositiveInt | None = None
    """Number of critics in a target, resampled at each update (REDQ); None uses all."""
    replacement: bool = False
    """Sample them with replacement."""
    target: Aggregate = "min"
    """Aggregation of these critics in a target."""

    def __post_init__(self) -> None:
        if self.subset is not None and self.subset > self.num_critics:
            raise ValueError(
                f"subset={self.subset} is more than the {self.num_critics} critics there are"
            )


class QFunction(nn.Module):
    """An ensemble of critics on a shared encoder."""

    def __init__(self, config: QConfig, spec: Spec, horizon: int) -> None:
        super().__init__()
        c = self.config = config
        check_continuous(spec.action)
        self.encoder = Encoder(c.encoder, spec.obs)
        self.readout: Any = c.readout.build()
        dims = [self.encoder.out_dim + horizon * spec.action.size, *c.hidden]
        self.net = EnsembleMLP(c.num_critics, dims, self.readout.outputs, c.act, c.norm)

    def features(self, obs: Obs) -> Float[Tensor, "b d"]:
        """Return the critics' features of observations [b, ...]."""
        return self.encoder(obs)

    def forward(
        self, z: Float[Tensor, "b d"], action: Float[Tensor, "b ..."], learn: bool = True
    ) -> Float[Tensor, "m b k"]:
        """Return the raw outputs of every critic for one action, or one chunk, of each state.

        Without `learn`, gradients reach state and action, but no weights.
        """
        return self.net(torch.cat([z, action.flatten(1)], -1), learn).float()

    def values(
        self, z: Float[Tensor, "b d"], action: Float[Tensor, "b ..."], learn: bool = False
    ) -> Float[Tensor, "m b"]:
        """Return the values of every critic for one action, or one chunk, of each state."""
        return self.readout.decode(self(z, action, learn))

    def ranked(
        self,
        z: Float[Tensor, "b d"],
        actions: Float[Tensor, "b n h a"],
        how: Aggregate = "mean",
        learn: bool = False,
    ) -> Float[Tensor, "b n"]:
        """Return the aggregated value of each of n chunks of each state."""
        return aggregate(self.every(z, actions, learn), how)

    def every(
        self, z: Float[Tensor, "b d"], actions: Float[Tensor, "b n h a"], learn: bool = False
    ) -> Float[Tensor, "m b n"]:
        """Return the values of every critic for each of n chunks of each state."""
        num = actions.shape[1]
        rows = z[:, None].expand(-1, num, -1).flatten(0, 1)
        return self.values(rows, actions.flatten(0, 1), learn).unflatten(1, (-1, num))

    def bootstrap(
        self, z: Float[Tensor, "b d"], action: Float[Tensor, "b ..."]
    ) -> Float[Tensor, " b"]:
        """Return the bootstrap value of actions, from a random subset of critics."""
        values = self.values(z, action)
        if self.config.subset is not None:
            c = self.config
            members = draw_members(c.num_critics, self.config.subset, c.replacement, z.device)
            values = values.index_select(0, members)
        return aggregate(values, self.config.target)

    def loss(
        self, out: Float[Tensor, "m b k"], target: Float[Tensor, " b"]
    ) -> Float[Tensor, "m b"]:
        """Return the loss of every critic against one common target."""
        return self.readout.loss(out, target.expand(out.shape[:-1]))


def check_continuous(action: ArraySpec) -> None:
    """Raise unless actions are continuous in [-1, 1]."""
    if action.is_discrete:
        raise ConfigError(
            "workflow: this algorithm needs continuous actions, this environment's are discrete. "
            "Use DQN, SAC or PPO instead."
        )
    if (action.low, action.high) != (-1.0, 1.0):
        raise ConfigError(
            f"workflow: actions must be in [-1, 1], but this environment's are in "
            f"[{action.low}, {action.high}]. Set env.scale_actions=true."
        )
