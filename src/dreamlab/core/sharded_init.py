"""Builds a workflow of which no process ever holds all weights, with the weights of its seed.

It is built twice. On the meta device, where nothing is allocated, it is noted how many parameters
there are when each one is used last; then for real, and each parameter is cut to this process's
part as soon as the next one comes after that. Random numbers are drawn in the same order as ever.
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
    """Follows parameters, in the order in which modules get them, through all that uses them.

    That a function looks at what one is counts too: some do nothing on the meta device.
    """

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[int, int] = {}
        """The number of the parameter that lies in a storage."""
        self.last: list[int] = []
        """For each parameter, how many there were when it was used last."""

    def registered(self, module: nn.Module, name: str, p: Any) -> None:
        """Follow a parameter from now on."""
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
    """Cuts a parameter when the first one comes after which nothing is done with it any more."""

    def __init__(self, last: list[int], least: int) -> None:
        self.due: dict[int, list[int]] = {}
        for number, moment in enumerate(last):
            self.due.setdefault(moment, []).append(number)
        self.least = least
        self.seen: list[tuple[nn.Module, str, nn.Parameter] | None] = []

    def registered(self, module: nn.Module, name: str, p: Any) -> None:
        """Cut what is over, and take note of a parameter."""
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
    """Return what `make` builds, each parameter cut to this process's part once it has begun."""
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
    shard_module(built, least)  # copies of modules have not been followed
    return built
