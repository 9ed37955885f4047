"""Interface of world models for planners, reports, imagined environments and workflows.

A latent is a NamedTuple of tensors [*b, ...] whose fields are private to the model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from dreamlab.core.types import ArraySpec, Obs

Z = TypeVar("Z", bound=tuple[Tensor, ...])

Policy = Callable[[Any], Shaped[Tensor, "n ..."]]
"""Maps latents [n, ...] to actions in the environment's format."""

Advance = Callable[[Any, Float[Tensor, "n ..."]], tuple[Any, Shaped[Tensor, "n ..."]]]
"""Maps a latent and noise to the next latent, and the action that led there."""


class Posterior(Protocol):
    """Result of filtering sequences [b, t]; models may add fields."""

    @property
    def latent(self) -> Any:
        """Return the latents [b, t, ...]."""
        ...


class WorldModel(Protocol):
    """Filters sequences into latents, and imagines latents without observations."""

    Latent: type[Any]
    """NamedTuple type of this model's latents."""

    @property
    def decoded(self) -> dict[str, ArraySpec]:
        """Return the specs of the observations from `predict`; empty without a decoder."""
        ...

    def initial(self, num: int, device: Any) -> Any:
        """Return the initial latents [num, ...]."""
        ...

    def observe(
        self,
        obs: Obs,
        action: Shaped[Tensor, "b t ..."],
        is_first: Bool[Tensor, "b t"],
        state: Any,
    ) -> Posterior:
        """Filter sequences from `state`; `action[:, i]` led to step i."""
        ...

    def imagine(
        self,
        start: Any,
        policy: Policy,
        horizon: int,
        noise: Float[Tensor, "h ..."] | None = None,
    ) -> tuple[Any, Shaped[Tensor, "n {horizon}+1 ..."]]:
        """Imagine from latents [n, ...]; return latents and actions [n, horizon + 1].

        The first latent is the start; the last action is chosen but not executed.
        """
        ...

    def predict(self, latent: Any) -> dict[str, Any]:
        """Return `obs`, `reward` and `cont`, which includes the discount, of latents [n, ...]."""
        ...

    def predict_reward(self, latent: Any) -> dict[str, Float[Tensor, "*b"]]:
        """Return `reward` and `cont` of latents [*b, ...]."""
        ...

    def discount_of(self, latent: Any) -> Float[Tensor, "*b"]:
        """Return the discount that `cont` of latents [*b, ...] includes: that of their task."""
        ...


def map_latent(fn: Callable[..., Shaped[Tensor, " ..."]], *latents: Z) -> Z:
    """Apply `fn` to each field of the latents."""
    return type(latents[0])(*(fn(*parts) for parts in zip(*latents, strict=True)))


def flatten_time(latent: Z) -> Z:
    """Reshape latents [b, t, ...] to [b * t, ...]."""
    return map_latent(lambda x: x.flatten(0, 1), latent)


def roll_out(
    advance: Advance, start: Z, policy: Policy, noise: Float[Tensor, "h ..."]
) -> tuple[Z, Shaped[Tensor, "n h+1 ..."]]:
    """Apply `advance` once per noise step; see `WorldModel.imagine`."""
    latents, actions = [start], list[Tensor]()
    for chance in noise:
        latent, action = advance(latents[-1], chance)
        latents.append(latent)
        actions.append(action)
    actions.append(policy(latents[-1]))
    return map_latent(lambda *x: torch.stack(x, 1), *latents), torch.stack(actions, 1)
