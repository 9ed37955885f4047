"""A diffusion policy that stores its data's normalization, as in LeRobot's checkpoints."""

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
    """`(x - shift) / scale`, saved with the weights; the identity until it is loaded."""

    shift: Float[Tensor, " ..."]
    scale: Float[Tensor, " ..."]

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("shift", torch.zeros(shape))
        self.register_buffer("scale", torch.ones(shape))

    def forward(self, x: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        return (x - self.shift) / self.scale

    def inverse(self, x: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        """Undo the normalization."""
        return x * self.scale + self.shift


class ScaledDiffusionPolicy(DiffusionPolicy):
    """Observes and acts in the units of its data; needs `env.scale_actions=false`."""

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
        """Sample actions in the data's units; guidance uses normalized ones."""
        out = super().sample(obs, n, mode=mode, guidance=guidance, noise=noise)
        return self.action_scale.inverse(out)

    def estimate(self, obs: Obs, action: Float[Tensor, "b h a"]) -> Estimate:
        return super().estimate(obs, self.action_scale(action))
