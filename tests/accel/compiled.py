"""Run by test_compile.py in a process of its own: type checks at run time confuse the compiler."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from dreamlab.accel.compile import compile_updates
from tests.helpers import open_loop


def main(name: str, folder: Path) -> None:
    """Take the same three updates plainly and compiled, and compare the weights."""
    options = [f"+experiment={name}", "tiny=true", "device=cpu", "eval.every_frames=0"]
    plain, other = (open_loop(folder / str(i), *options) for i in range(2))
    while plain.counters.updates == 0:  # until there is something to learn from
        action = plain.scheduler.next_action()
        assert action is not None
        plain._do(action)
    buffer = plain.parts.buffers[plain.scheduler.phase.buffer]
    while not buffer.ready():
        plain._do("collect")
    batch = buffer.sample().map(lambda x: x.clone())
    other.workflow.load_state_dict(plain.workflow.state_dict())
    compile_updates(other.workflow)
    for loop in (plain, other):
        for opt in loop.workflow.optimizers.values():
            opt.watch_grads()
        for i in range(3):
            torch.manual_seed(i)
            hook = getattr(loop.workflow, plain.scheduler.phase.update_hooks[0])
            hook(batch, phase=plain.scheduler.phase)
    pairs = zip(plain.workflow.named_parameters(), other.workflow.parameters(), strict=True)
    for (key, a), b in pairs:
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4, msg=lambda m, k=key: f"{k}: {m}")
    pairs = zip(plain.workflow.optimizers.values(), other.workflow.optimizers.values(), strict=True)
    for a, b in pairs:
        assert a.grad_norms is not None
        assert b.grad_norms is not None
        assert a.grad_norms.any()
        torch.testing.assert_close(a.grad_norms, b.grad_norms, atol=1e-5, rtol=1e-3)
    print("same")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
