"""Builds a sharded workflow without ever holding all weights in one process, from its seed.

It is built twice. On the meta device, where nothing is allocated, it records how many parameters
exist at the last use of each one; then for real, cutting each parameter to this process's part as
soon as that count is exceeded. Random numbers are drawn in the usual order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from dreamlab.core import rng
from dreamlab.core.errors import ConfigError
from dreamlab.core.sharding import check_module, shard_module, shard_parameter, unread

M = TypeVar("M", bound=nn.Module)


class _Following(TorchFunctionMode):
    """Tracks all uses of parameters, in the order of their registration.

    Reading a parameter's attributes counts too: some functions do nothing on the meta device.
    """

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[int, int] = {}
        """Index of the parameter in a storage."""
        self.last: list[int] = []
        """For each parameter, the number of parameters at its last use."""

    def registered(self, module: nn.Module, name: str, p: Any) -> None:
        """Track a new parameter."""
        if p is not None:
            self.places[_place(p)] = len(self.last)
            self.last.append(len(self.last) + 1)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for x in tree_leaves((args, kwargs)):
            number = self.places.get(_place(x)) if isinstance(x, Tensor) else None
            if number is not None:
                self.last[number] = len(self.last)
        return func(*args, **(kwargs or {}))


def _place(x: Tensor) -> int:
    with torch._C.DisableTorchFunction():
        return x.untyped_storage()._cdata


class _Cutting:
    """Cuts each parameter once a later one is registered after its last use."""

    def __init__(self, last: list[int], least: int) -> None:
        self.due: dict[int, list[int]] = {}
        for number, moment in enumerate(last):
            self.due.setdefault(moment, []).append(number)
        self.least = least
        self.seen: list[tuple[nn.Module, str, nn.Parameter] | None] = []

    def registered(self, module: nn.Module, name: str, p: Any) -> None:
        """Cut finished parameters, and record the new one."""
        if p is None:
            return
        for number in self.due.get(len(self.seen), ()):
            self._cut(number)
        self.seen.append((module, name, p))

    def _cut(self, number: int) -> None:
        found, self.seen[number] = self.seen[number], None
        if found is not None and found[2].numel() >= self.least:
            check_module(found[0])
            shard_parameter(*found)


@contextmanager
def _heard(registered: Any) -> Iterator[None]:
    handle = register_module_parameter_registration_hook(registered)
    try:
        yield
    finally:
        handle.remove()


def build_sharded(make: Callable[[], M], least: int) -> M:
    """Build a module with each parameter cut to this process's part after initialization."""
    follow = _Following()
    try:
        with rng.fork(0), torch.device("meta"), _heard(follow.registered), follow:
            make()
    except (RuntimeError, NotImplementedError) as error:
        raise ConfigError(
            "distributed.shard: this workflow cannot be built on the meta device, where nothing is "
            f"computed: {error}"
        ) from error
    with _heard(_Cutting(follow.last, least).registered), unread(least):
        built = make()
    shard_module(built, least)  # copies of modules were not tracked
    return built
