"""What planners, reports, imagined environments and workflows ask of a world model, of any kind.

A latent is a NamedTuple of tensors [*b, ...]; its fields are the model's own business.
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
"""Latents [n, ...] to actions as an environment takes them."""

Advance = Callable[[Any, Float[Tensor, "n ..."]], tuple[Any, Shaped[Tensor, "n ..."]]]
"""A latent and noise to the latent that follows, and the action that led there."""


class Posterior(Protocol):
    """What a model makes of sequences [b, t]; a model's own has more in it."""

    @property
    def latent(self) -> Any:
        """Return the latents [b, t, ...]."""
        ...


class WorldModel(Protocol):
    """Follows what happens in latents, and continues them without seeing anything."""

    Latent: type[Any]
    """The NamedTuple of this model's latents."""

    @property
    def decoded(self) -> dict[str, ArraySpec]:
        """Return the observations that `predict` gives; none where the model decodes none."""
        ...

    @property
    def discount(self) -> float: ...

    def initial(self, num: int, device: Any) -> Any:
        """Return the latents [num, ...] before anything was seen."""
        ...

    def observe(
        self,
        obs: Obs,
        action: Shaped[Tensor, "b t ..."],
        is_first: Bool[Tensor, "b t"],
        state: Any,
    ) -> Posterior:
        """Follow sequences from `state`; `action[:, i]` led to step i."""
        ...

    def imagine(
        self,
        start: Any,
        policy: Policy,
        horizon: int,
        noise: Float[Tensor, "h ..."] | None = None,
    ) -> tuple[Any, Shaped[Tensor, "n {horizon}+1 ..."]]:
        """Continue from latents [n, ...]; return latents and actions [n, horizon + 1].

        The first latent is the start; the last action is decided but not carried out.
        """
        ...

    def predict(self, latent: Any) -> dict[str, Any]:
        """Return `obs`, `reward` and `cont`, the discount in it, of latents [n, ...]."""
        ...

    def predict_reward(self, latent: Any) -> dict[str, Float[Tensor, "*b"]]:
        """Return `reward` and `cont` of latents [*b, ...]."""
        ...


def map_latent(fn: Callable[..., Shaped[Tensor, " ..."]], *latents: Z) -> Z:
    """Return the latent whose every field is `fn` of that field of all the latents."""
    return type(latents[0])(*(fn(*parts) for parts in zip(*latents, strict=True)))


def flatten_time(latent: Z) -> Z:
    """Return latents [b, t, ...] as [b * t, ...]."""
    return map_latent(lambda x: x.flatten(0, 1), latent)


def roll_out(
    advance: Advance, start: Z, policy: Policy, noise: Float[Tensor, "h ..."]
) -> tuple[Z, Shaped[Tensor, "n h+1 ..."]]:
    """Go from latent to latent, once per noise; see `WorldModel.imagine`."""
    latents, actions = [start], list[Tensor]()
    for chance in noise:
        latent, action = advance(latents[-1], chance)
        latents.append(latent)
        actions.append(action)
    actions.append(policy(latents[-1]))
    return map_latent(lambda *x: torch.stack(x, 1), *latents), torch.stack(actions, 1)
