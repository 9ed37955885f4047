"""Invertible normalization: a shift and a scale for every entry of an array."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dreamlab.core.types import Array, ArraySpec, Spec

ACTION = "action"


@dataclass(frozen=True)
class Affine:
    """`(x - shift) / scale`; `bounded` says that observed values then lie in [-1, 1]."""

    shift: Array
    scale: Array
    bounded: bool = False

    def apply(self, x: Array) -> Array:
        """Normalize values."""
        return ((x - self.shift) / self.scale).astype(np.float32)

    def invert(self, x: Array) -> Array:
        """Undo the normalization."""
        return (x * self.scale + self.shift).astype(np.float32)

    def spec(self, spec: ArraySpec) -> ArraySpec:
        """Return the spec of an array after normalization."""
        edge = 1.0 if self.bounded else None
        return replace(spec, low=None if edge is None else -edge, high=edge)

    def differs(self, other: Affine) -> bool:
        """Return whether `other` normalizes differently."""
        same = np.allclose(self.shift, other.shift) and np.allclose(self.scale, other.scale)
        return not same

    def get_state(self) -> dict[str, Any]:
        """Return shift, scale and `bounded` as arrays."""
        return {"shift": self.shift, "scale": self.scale, "bounded": np.array(float(self.bounded))}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Affine:
        """Restore an instance from `get_state`."""
        shift, scale = (np.asarray(state[k], np.float64) for k in ("shift", "scale"))
        return cls(shift, scale, bool(np.asarray(state["bounded"]) > 0))


Scaling = dict[str, Affine]
"""Keyed by observation name, or `action`."""


def scaled_spec(spec: Spec, scaling: Mapping[str, Affine]) -> Spec:
    """Return the spec of normalized observations and actions."""
    obs = {k: scaling[k].spec(s) if k in scaling else s for k, s in spec.obs.items()}
    action = scaling[ACTION].spec(spec.action) if ACTION in scaling else spec.action
    return replace(spec, obs=obs, action=action)
