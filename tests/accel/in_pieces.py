"""Run by test_rssm_scan.py in a process of its own: Triton's interpreter is chosen at import."""

from __future__ import annotations

import sys

import torch

from dreamlab.accel.dispatch import Sequences
from dreamlab.components.world_models.rssm import Latent
from dreamlab.components.world_models.world_model import WorldModel, WorldModelConfig
from dreamlab.core.config import load
from dreamlab.core.types import ArraySpec, Spec

OPTIONS = {
    "rssm": {"deter": 64, "hidden": 32, "stoch": 4, "classes": 4, "blocks": 2},
    "encoder": {"depth": 2, "mults": [1, 2], "units": 8, "layers": 1},
    "decoder": {"depth": 2, "mults": [1, 2], "units": 8, "layers": 1, "blocks": 2},
}


def main(device: str, rows: int, steps: int) -> None:
    """Follow sequences of images at once and in pieces; compare states and gradients."""
    torch.manual_seed(0)
    spec = Spec({"image": ArraySpec((16, 16, 3), "uint8")}, ArraySpec((3,), low=-1.0, high=1.0))
    model = WorldModel(load(WorldModelConfig, OPTIONS, "model"), spec).to(device)
    images = torch.randint(256, (rows, steps, 16, 16, 3), dtype=torch.uint8, device=device)
    action = torch.rand(rows, steps, 3, device=device) * 2 - 1
    first = torch.rand(rows, steps, device=device) < 0.2
    start = Latent(*(torch.randn_like(x) for x in model.initial(rows, device)))
    noise = model.rssm.noise(steps, rows, device=device)
    pulls: list[torch.Tensor] = []
    found: list[list[torch.Tensor]] = []
    weights = [*model.encoder.parameters(), *model.rssm.cell.parameters()]
    for pieces in (1, 2, 4):
        Sequences.pieces = pieces
        assert model._pieces(first) == (pieces if steps % pieces == 0 else 1)
        seen = model.observe({"image": images}, action, first, start, noise)
        outs = list(seen.tensors)
        pulls = pulls or [torch.randn_like(x) for x in outs]
        grads = torch.autograd.grad(outs, weights, pulls)
        found.append([*(x.detach() for x in outs), *grads])
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            torch.testing.assert_close(b, a, atol=1e-4, rtol=1e-3)
    print("same")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
