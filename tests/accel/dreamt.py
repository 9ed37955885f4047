"""Run by test_dream.py in a process of its own: Triton's interpreter is chosen at import."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any

import torch

from dreamlab.accel import dispatch
from dreamlab.accel import dream as fused
from dreamlab.components.heads import LatentPolicy, PolicyConfig
from dreamlab.components.world_models import dreaming
from dreamlab.components.world_models.rssm import Latent
from dreamlab.components.world_models.world_model import WorldModel, WorldModelConfig
from dreamlab.core.config import load
from dreamlab.core.types import ArraySpec, Spec

ACTIONS = {
    "numbers": ArraySpec((3,), low=-1.0, high=1.0),
    "choice": ArraySpec((), "int64", classes=5),
    "choices": ArraySpec((2,), "int64", classes=(3, 4)),
}
SIZES = {
    "small": ({"deter": 64, "hidden": 32, "stoch": 4, "classes": 4, "blocks": 2}, 32, 2),
    "odd": ({"deter": 96, "hidden": 48, "stoch": 16, "classes": 5, "blocks": 3}, 16, 3),
    "deep": ({"deter": 64, "hidden": 16, "stoch": 3, "classes": 16, "blocks": 2,
              "prior_layers": 3}, 48, 1),
    "12m": ({"deter": 2048, "hidden": 256, "stoch": 32, "classes": 16, "blocks": 8}, 256, 3),
}  # fmt: skip
"""Options of the model, and width and depth of the actor."""


def parts(size: str, kind: str) -> tuple[WorldModel, LatentPolicy]:
    """Return a model and an actor with random weights, biases and scales."""
    options, units, layers = SIZES[size]
    small = {"rssm": options, "encoder": {"units": 8, "layers": 1}}
    config = load(WorldModelConfig, small, "model")
    model = WorldModel(config, Spec({"state": ArraySpec((4,))}, ACTIONS[kind]))
    actor = PolicyConfig(units=units, layers=layers)
    policy = LatentPolicy(actor, model.rssm.out_dim, ACTIONS[kind])
    for p in (*model.parameters(), *policy.parameters()):
        p.data.add_(0.1 * torch.randn_like(p))  # biases are 0 and scales 1 at the start
    return model, policy


def multiply_bfloat16() -> None:
    """Teach the interpreter products in bfloat16, whose bits it would multiply as whole numbers."""
    import triton.language as tl
    from triton.runtime import interpreter

    build: Any = interpreter.InterpreterBuilder
    product = build.create_dot

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        wide = lambda x: self.create_fp_ext(x, tl.block_type(tl.float32, list(x.data.shape)))  # noqa: E731
        a, b = (wide(x) if x.dtype.scalar == tl.bfloat16 else x for x in (a, b))
        return product(self, a, b, *rest)

    build.create_dot = create_dot


def main(device: str, size: str, kind: str, rows: str, precision: str) -> None:
    """Dream from the same states step by step and in one call, with the same random numbers."""
    if dispatch.INTERPRETED:
        multiply_bfloat16()
    torch.manual_seed(0)
    model, actor = (x.to(device) for x in parts(size, kind))
    rssm, num, half = model.rssm, int(rows), precision == "bfloat16"
    stoch = rssm.dist(rssm._logits(torch.randn(num, rssm.stoch_dim, device=device)))
    start = Latent(
        torch.randn(num, rssm.deter_dim, device=device).tanh(),
        stoch.sample(rssm.noise(num, device=device)).detach(),
    )
    if half:
        start = Latent(*(x.bfloat16() for x in start))
    policy = lambda latent: actor.shaped(actor(latent.feature).sample())  # noqa: E731
    calls: list[int] = []

    def choose(hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        calls.append(len(hidden))
        return dreaming.chosen(model, actor, hidden)

    dreamer = dreaming.Dreamer(
        model, actor, lambda latent, chance: model.advance(policy, latent, chance), choose
    )
    found: list[tuple[torch.Tensor, torch.Tensor]] = []
    halves: list[torch.Tensor] = []
    cast = torch.autocast(device, torch.bfloat16, cache_enabled=False) if half else nullcontext()
    with torch.no_grad(), cast:
        for when in ("never", "always"):
            fused.Use.when = when
            torch.manual_seed(1)
            found.append(dreamer.dream(start, policy, 3, halfway=halves.append))
    (first,) = halves  # that of the kernels, before they made the rest
    assert torch.equal(first, found[1][0][:, :2])
    assert calls == ([num] * 4 if kind == "choices" else []), calls
    compare(*found, rssm.deter_dim, half)
    print("same")


def compare(
    plain: tuple[torch.Tensor, torch.Tensor], fast: tuple[torch.Tensor, torch.Tensor], deter: int,
    half: bool,
) -> None:  # fmt: skip
    """Fail where both differ by more than rounding explains."""
    for a, b in zip(plain, fast, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
    if not half:
        torch.testing.assert_close(
            fast[0][..., :deter], plain[0][..., :deter], atol=1e-5, rtol=1e-4
        )
        torch.testing.assert_close(fast[0][..., deter:], plain[0][..., deter:], atol=0, rtol=0)
        torch.testing.assert_close(fast[1], plain[1], atol=1e-5, rtol=1e-4)
        return
    # after one step: later, choices that rounding turned lead elsewhere
    off = (fast[0] - plain[0])[:, 1, :deter].float().abs()
    assert off.mean() < 5e-3, off.mean()
    same = (fast[0] == plain[0])[:, 1, deter:].float().mean()
    assert same > 0.97, same
    first = (fast[1][:, 0].float() - plain[1][:, 0].float()).abs()
    assert first.mean() < 0.05, first.mean()


if __name__ == "__main__":
    main(*sys.argv[1:])
