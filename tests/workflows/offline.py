"""What the tests of workflows with critics share: a spec, batches, and workflows that are small."""

from __future__ import annotations

from typing import Any

import torch

from dreamlab.core.config import load
from dreamlab.core.phase import Phase
from dreamlab.core.types import ArraySpec, Batch, Spec
from dreamlab.core.workflow import Workflow

SPEC = Spec({"state": ArraySpec((3,))}, ArraySpec((2,), low=-1.0, high=1.0))
OFFLINE = Phase("offline", ("update_critic",), type="offline")
ONLINE = Phase("online", ("collect", "update_critic"))
POLICIES: dict[str, dict[str, Any]] = {
    "gaussian": {"_target_": "gaussian", "hidden": (16, 16)},
    "diffusion": {
        "_target_": "diffusion", "levels": 3, "betas": "vp",
        "net": {"width": 16, "blocks": 1, "time_dim": 8, "dropout": 0.0},
    },
    "flow": {
        "_target_": "flow", "sample_steps": 3,
        "net": {"width": 16, "blocks": 1, "time_dim": 8, "dropout": 0.0},
    },
    "autoregressive": {"_target_": "autoregressive", "bins": 9, "dim": 16, "heads": 2, "layers": 1},
}  # fmt: skip
"""One of each kind, with chunks of one action."""


def make(cls: type[Workflow[Any]], spec: Spec = SPEC, **options: Any) -> Any:
    """Return a workflow as YAML would make it, from the same weights each time."""
    torch.manual_seed(0)
    return cls(load(cls.Config, options, "workflow"), spec)


def batch_of(num: int = 6, length: int = 2, spec: Spec = SPEC, seed: int = 1) -> Batch:
    """Return windows of noise, the first of which terminates at its second step."""
    torch.manual_seed(seed)
    no = torch.zeros(num, length, dtype=torch.bool)
    terminal = no.clone()
    terminal[0, 1] = True
    obs = {k: torch.randn(num, length, *s.shape) for k, s in spec.obs.items()}
    action = torch.rand(num, length, *spec.action.shape) * 2 - 1
    extras = {"mc_return": torch.randn(num, length)}
    return Batch(obs, action, torch.randn(num, length), no, terminal, terminal, extras)


def flat(module: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in module.parameters()])
