"""A diffusion policy that keeps the normalization of its data: LeRobot's checkpoints come so."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dreamlab.components.policies.diffusion import DiffusionConfig, DiffusionPolicy
from dreamlab.components.policies.generative import Estimate, Guidance
from dreamlab.core.errors import ConfigError
from dreamlab.core.types import ArraySpec, Mode, Obs, Spec
from dreamlab.nn.named import NamedModules


class Scale(nn.Module):
    """`(x - shift) / scale`, saved with the weights; it changes nothing until it is filled."""

    shift: Float[Tensor, " ..."]
    scale: Float[Tensor, " ..."]

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("shift", torch.zeros(shape))
        self.register_buffer("scale", torch.ones(shape))

    def forward(self, x: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        return (x - self.shift) / self.scale

    def inverse(self, x: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        """Return numbers in their own units."""
        return x * self.scale + self.shift


class ScaledDiffusionPolicy(DiffusionPolicy):
    """Observes and acts in the units of its data, whatever they are: `env.scale_actions=false`."""

    Config = DiffusionConfig

    def __init__(self, config: DiffusionConfig, spec: Spec) -> None:
        super().__init__(config, spec)
        vectors = {k: s for k, s in spec.obs.items() if not s.is_image and not s.is_discrete}
        self.obs_scale = NamedModules({k: Scale(s.shape) for k, s in vectors.items()})
        self.action_scale = Scale((self.action_dim,))

    def check(self, action: ArraySpec) -> None:
        """Raise if actions are discrete; their range is that of the data."""
        if action.is_discrete:
            raise ConfigError("workflow.policy: scaled_diffusion takes continuous actions")

    def encode(self, obs: Obs) -> Float[Tensor, "b t d"]:
        scaled = {k: scale(obs[k]) for k, scale in self.obs_scale.items()}
        return super().encode({**obs, **scaled})

    def sample(
        self,
        obs: Obs,
        n: int = 1,
        *,
        mode: Mode = Mode.TRAIN,
        guidance: Guidance | None = None,
        noise: Float[Tensor, "b {n} h a"] | None = None,
    ) -> Float[Tensor, "b {n} h a"]:
        """Return actions in the data's units; a guidance sees them normalized."""
        out = super().sample(obs, n, mode=mode, guidance=guidance, noise=noise)
        return self.action_scale.inverse(out)

    def estimate(self, obs: Obs, action: Float[Tensor, "b h a"]) -> Estimate:
        return super().estimate(obs, self.action_scale(action))
