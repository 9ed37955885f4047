"""What a part of DreamerV3's world model, its actor or its critic must be able to do.

Each is a `torch.nn.Module` built with its config, then with the sizes named here. A state is a
`Latent`; whatever a part computes may have any number of leading axes `*b`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from torch import Tensor, nn

from dreamlab.components.world_models.rssm import Latent
from dreamlab.core.types import ArraySpec, Mode, Obs
from dreamlab.nn.dists import Dist


class Module(Protocol):
    """A `torch.nn.Module`."""

    def parameters(self) -> Iterator[nn.Parameter]: ...


class Encoder(Module, Protocol):
    """Built with the observations' specs."""

    out_dim: int

    def forward(self, obs: Obs) -> Tensor:
        """Return tokens [*b, out_dim] of observations [*b, ...]."""
        ...

    def __call__(self, obs: Obs) -> Tensor: ...


class Dynamics(Module, Protocol):
    """Built with the sizes of tokens and of actions."""

    config: Any
    deter_dim: int
    stoch_dim: int
    out_dim: int
    """Of a state's `feature`."""

    def initial(self, num: int, device: Any) -> Latent:
        """Return the states before the first step."""
        ...

    def noise(self, *shape: int, device: Any, mode: Mode = Mode.TRAIN) -> Tensor:
        """Return the chance that states of this shape need."""
        ...

    def observe_step(
        self, state: Latent, action: Tensor, tokens: Tensor, is_first: Tensor, noise: Tensor
    ) -> tuple[Latent, Tensor]:
        """Return the next states [n, ...] and what describes the posterior."""
        ...

    def observe(
        self,
        state: Latent,
        action: Tensor,
        tokens: Tensor,
        is_first: Tensor,
        noise: Tensor | None = None,
    ) -> tuple[Latent, Tensor]:
        """Follow sequences [b, t, ...]; return states and what describes their posteriors."""
        ...

    def imagine_step(self, state: Latent, action: Tensor, noise: Tensor) -> Latent:
        """Return the next states [n, ...] without looking."""
        ...

    def prior(self, deter: Tensor) -> Tensor:
        """Return what describes the priors."""
        ...

    def kl(self, post: Tensor, prior: Tensor) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """Return the losses [*b] of prior and posterior, and metrics."""
        ...

    def compress(self, latent: Latent) -> dict[str, Tensor]:
        """Return states as a replay keeps them."""
        ...

    def decompress(self, extras: dict[str, Tensor]) -> Latent:
        """Return the states that `compress` wrote down."""
        ...


class Decoder(Module, Protocol):
    """Built with the observations' specs and the sizes of a state's two parts."""

    @property
    def decoded(self) -> dict[str, ArraySpec]:
        """Return the observations that are predicted."""
        ...

    def forward(self, deter: Tensor, stoch: Tensor) -> Obs:
        """Return predictions [n, ...]."""
        ...

    def __call__(self, deter: Tensor, stoch: Tensor) -> Obs: ...

    def natural(self, predicted: Obs) -> Obs:
        """Return predictions in the observations' own units; images in (0, 1)."""
        ...

    def losses(self, predicted: Obs, obs: Obs) -> Obs:
        """Return the error [n] of each prediction."""
        ...


class NumberHead(Module, Protocol):
    """Rewards or values; built with the size of a state."""

    def forward(self, feature: Tensor) -> Tensor:
        """Return what describes the number of states [*b, f]."""
        ...

    def __call__(self, feature: Tensor) -> Tensor: ...

    def mean(self, logits: Tensor) -> Tensor:
        """Return the number [*b]."""
        ...

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the distance [*b] from a number."""
        ...


class ProbabilityHead(Module, Protocol):
    """Continuation; built with the size of a state."""

    def forward(self, feature: Tensor) -> Tensor:
        """Return logits [*b]."""
        ...

    def __call__(self, feature: Tensor) -> Tensor: ...

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the distance [*b] from a probability."""
        ...


class PolicyHead(Module, Protocol):
    """Built with the size of a state and the action's spec."""

    def forward(self, feature: Tensor) -> Dist:
        """Return the policy in states [*b, f]."""
        ...

    def __call__(self, feature: Tensor) -> Dist: ...

    def shaped(self, flat: Tensor) -> Tensor:
        """Return sampled actions in the environment's shape."""
        ...
