"""R2-Dreamer (ICLR 2026): DreamerV3 with representations learned without reconstruction.

The world model is `components.world_models.redundancy`; everything else is DreamerV3's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from dreamlab.components.world_models.redundancy import RedundancyModel
from dreamlab.components.world_models.world_model import WorldModel
from dreamlab.core.limits import NonNegative
from dreamlab.workflows.dreamer_v3 import DreamerV3, DreamerV3Config, Scales


@dataclass(frozen=True)
class R2Scales(Scales):
    """DreamerV3's weights, and that of the representation loss; `rec` trains the decoder alone."""

    redundancy: NonNegative = 0.05


@dataclass(frozen=True)
class R2DreamerConfig(DreamerV3Config):
    """DreamerV3's options and defaults."""

    scales: R2Scales = field(default_factory=R2Scales)


class R2Dreamer(DreamerV3):
    """DreamerV3 without reconstruction."""

    Config = R2DreamerConfig
    Model: ClassVar[type[WorldModel]] = RedundancyModel
