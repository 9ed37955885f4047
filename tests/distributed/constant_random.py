"""Random numbers that do not depend on how a batch is divided: every draw is a constant."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
NORMAL, UNIFORM = 0.3, 0.37
LIKE = {
    aten.randn: NORMAL, aten.rand: UNIFORM, aten.randn_like: NORMAL, aten.rand_like: UNIFORM,
    aten.normal_functional: NORMAL,
}  # fmt: skip
IN_PLACE = {aten.normal_: NORMAL, aten.uniform_: UNIFORM, aten.exponential_: 1.0}
WHOLE = (aten.randint, aten.randint_like, aten.random_)


class ConstantRandom(TorchDispatchMode):
    """Replaces what a random operation returns, and notes what it has replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        packet = func.overloadpacket
        if packet is aten.native_dropout:
            self.seen.add(str(packet))
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        out = func(*args, **kwargs)
        if packet in LIKE or packet in IN_PLACE:
            out.fill_({**LIKE, **IN_PLACE}[packet])
        elif packet in WHOLE:
            out.zero_()
        elif packet in (aten.bernoulli, aten.bernoulli_):
            out.fill_(1)
        elif packet is aten.multinomial:
            out.copy_(args[0].argmax(-1, keepdim=True).expand_as(out))
        elif packet is aten.randperm:
            out.copy_(torch.arange(len(out)))
        else:
            return out
        self.seen.add(str(packet))
        return out
