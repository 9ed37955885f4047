"""Run by test_latent_plans.py in a process of its own: Triton's interpreter is chosen at import."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from dreamlab.accel import plan_ops
from dreamlab.accel.dispatch import reference_kernels
from dreamlab.core.config import load
from dreamlab.core.types import ArraySpec, Mode, Obs, Spec, TaskSpec
from dreamlab.nn import latent_plans
from dreamlab.workflows.tdmpc2 import TDMPC2, TDMPC2Config

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
SIZES: dict[str, Any] = {
    "size": None, "enc_dim": 16, "enc_layers": 1, "latent_dim": 32, "num_q": 3,
    "task_dim": 8, "num_pi_plans": 5, "bins": {"num": 21},
    "planner": {"elites": 6, "iterations": 2},
}  # fmt: skip


FEWEST = 32
"""Plans of an environment that are two tiles in float32, of which the interpreter runs each."""


FORMS = {48: ("tiles", "whole"), 64: ("rows", "whole")}
"""How layers of a width are computed here; rows are read whole if that is a power of two."""


def agent(device: str, actions: int, tasks: bool, width: int, samples: int = 48) -> TDMPC2:
    """Return an agent whose weights are all far from 0."""
    obs = {"state": ArraySpec((4,))}
    known: tuple[Any, ...] = ()
    if tasks:
        obs["task"] = ArraySpec((), "int64", 0, 1)
        known = (TaskSpec("a", actions, 100), TaskSpec("b", actions - 1, 50))
    spec = Spec(obs, ArraySpec((actions,), low=-1.0, high=1.0), 100, tasks=known)
    planner = {**SIZES["planner"], "samples": samples}
    sizes = {**SIZES, "mlp_dim": width, "planner": planner}
    found = TDMPC2(load(TDMPC2Config, sizes, "workflow"), spec).to(device)
    for name, p in found.named_parameters():
        far = 0.3 if p.ndim > 1 and "bias" not in name else 0.1
        p.data.add_(far * torch.randn_like(p))
    return found


def mend_interpreter() -> None:
    """Let Triton's interpreter multiply bfloat16 numbers, not their bits, and round to nearest."""
    if not INTERPRETED:
        return
    from triton.runtime import interpreter

    builder: Any = interpreter.InterpreterBuilder
    plain_dot, plain_cast, tl = builder.create_dot, builder.cast_impl, interpreter.tl

    def cast(self: Any, x: Any, to: Any) -> Any:
        if (x.dtype.scalar, to.scalar) != (tl.float32, tl.bfloat16):
            return plain_cast(self, x, to)
        rounded = torch.from_numpy(x.data.copy()).bfloat16().view(torch.int16)
        return interpreter.TensorHandle(rounded.numpy().view("uint16"), tl.bfloat16)

    def dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return plain_dot(self, *(plain_cast(self, x, tl.float32) for x in (a, b)), *rest)

    builder.create_dot, builder.cast_impl = dot, cast


def compare(fused: Tensor, plain: Tensor, exact: Tensor | None) -> None:
    """Fail unless two forms are equal, or, given exact numbers, round no worse than each other."""
    if exact is None:
        atol = 1e-4 if fused.is_cuda else 2e-5  # exponentials of a GPU are rounded less well
        torch.testing.assert_close(fused, plain, atol=atol, rtol=1e-4)
        return
    off, usual = ((x - exact).square().mean().sqrt() for x in (fused, plain))
    assert off <= 1.2 * usual, (off, usual)


@torch.no_grad()
def main(device: str, dtype: str, actions: int, tasks: str, width: int) -> None:
    """Score and propose the same plans in both forms, and compare."""
    torch.manual_seed(0)
    precision = getattr(torch, dtype)
    latent_plans.PRECISIONS.add(precision)
    low = precision != torch.float32
    short = INTERPRETED and not low
    envs, num = (2, FEWEST) if short else (3, 48)
    a = agent(device, actions, tasks == "tasks", width, num)
    obs = {"state": torch.randn(envs, 4, device=device)}
    if tasks == "tasks":
        obs["task"] = torch.tensor([0, 1, 1], device=device)[:envs]
    task = a.model.task_of(obs)
    z = a.model.encode(obs, task)
    if low:
        mend_interpreter()
    for rows in (1, envs):  # the same noise for all environments, or each its own
        plans = torch.rand(envs, num, 3, actions, device=device) * 2 - 1
        last = torch.randn(rows, num, actions, device=device)
        noise = torch.randn(3, rows, a.sizes.proposed, actions, device=device)
        args = (z, task, plans, last, torch.tensor([2, 0], device=device))
        plain_gains = lambda args=args: a.parts.gains(*args[:2], a.mask_of(task), *args[2:])  # noqa: E731
        exact = (plain_gains(), a.propose(z, task, noise)) if low else (None, None)
        with torch.autocast(device, precision if low else None, enabled=low):
            assert a.packable
            assert latent_plans.available(z)
            nets = a.pack(z, task)
            plain = plain_gains()
            assert plain.std(-1).min() > 0.05, plain.std(-1)
            for form in FORMS[width][:1] if short and rows == 1 else FORMS[width]:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(plan_ops, "CHOSEN", dict.fromkeys(plan_ops.CHOSEN, form))
                    found = latent_plans.gains(nets, *args[2:])
                    compare(torch.cat([found[:-2], found[-2:].sum(0)[None]]), plain, exact[0])
                    compare(a.propose(z, task, noise, nets), a.propose(z, task, noise), exact[1])
            if not short:  # whole decisions are compared below
                known = (None if x is None else score_of(a, task, x) for x in (plain, exact[0]))
                compare(a.score_plans(*args, nets), *known)
        refit(a, plans)
    if not low:
        decide(a, obs)
    print("same")


def decide(a: TDMPC2, obs: Obs) -> None:
    """Compare whole decisions."""
    num = len(obs["state"])
    args = (
        obs,
        torch.ones(num, dtype=torch.bool, device=a.device),
        a.initial_state(num),
        Mode.FIXED,
    )
    fused = a.decide(*args)
    with reference_kernels():
        plain = a.decide(*args)
    torch.testing.assert_close(fused.action, plain.action, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(fused.state["mean"], plain.state["mean"], atol=1e-4, rtol=1e-3)


def score_of(a: TDMPC2, task: Tensor, gains: Tensor) -> Tensor:
    gamma = a.model.task_discount(task)[:, None]
    return sum(gamma**t * gain for t, gain in enumerate(gains))  # type: ignore[return-value]


def refit(a: TDMPC2, plans: Tensor) -> None:
    """Compare what the planner makes of scores."""
    score = torch.randn(plans.shape[:2], device=plans.device)
    plan = a.planner.start(plans[:, 0], plans[:, 1].abs())
    fused = a.planner.tell(plan, plans, score)
    with reference_kernels():
        plain = a.planner.tell(plan, plans, score)
    order = plain.score.argsort(1, descending=True)
    assert torch.equal(fused.score, plain.score.gather(1, order))
    torch.testing.assert_close(fused.weight, plain.weight.gather(1, order))
    torch.testing.assert_close(fused.mean, plain.mean)
    torch.testing.assert_close(fused.std, plain.std)
    for elites, of, i in zip(fused.elites, plain.elites, order, strict=True):
        assert torch.equal(elites, of[i])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
