"""Run by test_optim.py in a process of its own: compiled steps against plain ones."""

from __future__ import annotations

from typing import Any

import torch
import torch._dynamo.config as dynamo
from torch import Tensor, nn
from torch._inductor.utils import run_and_get_code

from dreamlab.core.optim import PARTS, Optimizer, optimizer_part

OPTIONS: dict[str, Any] = {
    "lr": 1e-2, "warmup_steps": 2, "agc": 0.3, "clip": 0.5, "ema": 0.9,
    "groups": {"b": {"lr_scale": 0.5}}, "schedule": {"_target_": "cosine", "steps": 9},
}  # fmt: skip


def made(kind: str) -> tuple[list[nn.Parameter], Optimizer]:
    torch.manual_seed(0)
    params = [nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(2, 2))]
    names = {id(params[0]): "a", id(params[1]): "b"}
    opt = Optimizer(optimizer_part(kind, **OPTIONS), params, names)
    opt.allocate()
    return params, opt


def steps(kind: str, compiled: bool) -> list[Tensor]:
    """Take five steps, the last two at another learning rate."""
    params, opt = made(kind)

    def step(x: Tensor) -> Tensor:
        return opt.step(sum((p * x * p).sum() for p in params))

    take = torch.compile(step) if compiled else step
    for i in range(5):
        if i == 3:
            opt.set_lr(0.1)
        take(torch.tensor(1.0 + i))
    return [*(p.detach() for p in params), *opt.average]


def powers_in_loops() -> int:
    """Return how many loops over the weights of a compiled Adam raise something to a power."""
    params = [nn.Parameter(torch.randn(40)), nn.Parameter(torch.randn(8, 8))]
    opt = Optimizer(optimizer_part("adam", clip=1.0), params)
    opt.allocate()
    torch._dynamo.reset()
    take = torch.compile(lambda x: opt.step(sum((p * x * p).sum() for p in params)))
    _, sources = run_and_get_code(take, torch.tensor(1.0))
    loops = [part for code in sources for part in code.split("for(")[1:]]
    assert any("sqrt" in loop for loop in loops)
    return sum("std::pow" in loop.split("\n    }\n")[0] for loop in loops)


def main() -> None:
    dynamo.trace_autograd_ops = True
    for kind in sorted(PARTS):
        torch._dynamo.reset()
        torch.testing.assert_close(steps(kind, True), steps(kind, False))
    assert powers_in_loops() == 0
    print("same")


if __name__ == "__main__":
    main()
