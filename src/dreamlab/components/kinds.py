"""Interfaces of the parts of DreamerV3: world model, actor and critic.

Each is a `torch.nn.Module` built with its config and the sizes named here. A state is a `Latent`;
inputs may have any number of leading axes `*b`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from dreamlab.components.world_models.rssm import Latent
from dreamlab.core.types import ArraySpec, Metrics, Mode, Obs
from dreamlab.nn.dists import Dist


class Module(Protocol):
    """A `torch.nn.Module`."""

    def parameters(self) -> Iterator[nn.Parameter]: ...


class Encoder(Module, Protocol):
    """Built with the observations' specs."""

    out_dim: int

    def forward(self, obs: Obs) -> Float[Tensor, "*b e"]:
        """Return the tokens of observations [*b, ...]."""
        ...

    def __call__(self, obs: Obs) -> Float[Tensor, "*b e"]: ...


class Dynamics(Module, Protocol):
    """Built with the sizes of tokens and of actions."""

    config: Any
    deter_dim: int
    stoch_dim: int
    out_dim: int
    """Size of a state's `feature`."""

    def initial(self, num: int, device: Any) -> Latent:
        """Return the initial states."""
        ...

    def noise(self, *shape: int, device: Any, mode: Mode = Mode.TRAIN) -> Float[Tensor, " ..."]:
        """Sample the noise for states of this shape."""
        ...

    def observe_step(
        self,
        state: Latent,
        action: Float[Tensor, "n a"],
        tokens: Float[Tensor, "n e"],
        is_first: Bool[Tensor, " n"],
        noise: Float[Tensor, "n ..."],
    ) -> tuple[Latent, Float[Tensor, "n ..."]]:
        """Return the next states [n, ...] and the posterior parameters."""
        ...

    def observe(
        self,
        state: Latent,
        action: Float[Tensor, "b t a"],
        tokens: Float[Tensor, "b t e"],
        is_first: Bool[Tensor, "b t"],
        noise: Float[Tensor, "t b ..."] | None = None,
    ) -> tuple[Latent, Float[Tensor, "b t ..."]]:
        """Filter sequences; return states and posterior parameters."""
        ...

    def imagine_step(
        self, state: Latent, action: Float[Tensor, "n a"], noise: Float[Tensor, "n ..."]
    ) -> Latent:
        """Sample the next states [n, ...] from the prior."""
        ...

    def prior(self, deter: Float[Tensor, "*b d"]) -> Float[Tensor, " ..."]:
        """Return the prior parameters."""
        ...

    def kl(
        self, post: Float[Tensor, " ..."], prior: Float[Tensor, " ..."]
    ) -> tuple[Float[Tensor, "*b"], Float[Tensor, "*b"], Metrics]:
        """Return the losses of prior and posterior, and metrics."""
        ...

    def compress(self, latent: Latent) -> dict[str, Shaped[Tensor, " ..."]]:
        """Return states in the replay's format."""
        ...

    def decompress(self, extras: dict[str, Shaped[Tensor, " ..."]]) -> Latent:
        """Return the states stored by `compress`."""
        ...


class Decoder(Module, Protocol):
    """Built with the observations' specs and the sizes of a state's two parts."""

    decoded: dict[str, ArraySpec]
    """Specs of the predicted observations."""

    def forward(self, deter: Float[Tensor, "n d"], stoch: Float[Tensor, "n s"]) -> Obs:
        """Return predictions [n, ...]."""
        ...

    def __call__(self, deter: Float[Tensor, "n d"], stoch: Float[Tensor, "n s"]) -> Obs: ...

    def natural(self, predicted: Obs) -> Obs:
        """Return predictions in the units of the observations; images in (0, 1)."""
        ...

    def losses(self, predicted: Obs, obs: Obs) -> Obs:
        """Return the loss [n] of each prediction."""
        ...


class NumberHead(Module, Protocol):
    """Rewards or values; built with the size of a state."""

    def forward(self, feature: Float[Tensor, "*b d"]) -> Float[Tensor, " ..."]:
        """Return the distribution parameters of states."""
        ...

    def __call__(self, feature: Float[Tensor, "*b d"]) -> Float[Tensor, " ..."]: ...

    def mean(self, logits: Float[Tensor, " ..."]) -> Float[Tensor, "*b"]:
        """Return the mean."""
        ...

    def loss(
        self, logits: Float[Tensor, " ..."], target: Float[Tensor, "*b"]
    ) -> Float[Tensor, "*b"]:
        """Return the loss against a scalar target."""
        ...


class ProbabilityHead(Module, Protocol):
    """Continuation; built with the size of a state."""

    def forward(self, feature: Float[Tensor, "*b d"]) -> Float[Tensor, "*b"]:
        """Return logits."""
        ...

    def __call__(self, feature: Float[Tensor, "*b d"]) -> Float[Tensor, "*b"]: ...

    def loss(self, logits: Float[Tensor, "*b"], target: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        """Return the loss against a probability."""
        ...


class PolicyHead(Module, Protocol):
    """Built with the size of a state and the action's spec."""

    def forward(self, feature: Float[Tensor, "*b d"]) -> Dist:
        """Return the action distribution."""
        ...

    def __call__(self, feature: Float[Tensor, "*b d"]) -> Dist: ...

    def shaped(self, flat: Shaped[Tensor, " ..."]) -> Shaped[Tensor, " ..."]:
        """Return sampled actions in the environment's shape."""
        ...
