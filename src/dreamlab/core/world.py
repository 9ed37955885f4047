"""The processes that train one run: rank and size of this one, and collective operations.

The only module that calls collectives; those of sharded weights are torch's own. With one process
every function returns its input immediately. All processes must call the same functions in the same
order.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import _functional_collectives as collectives

from dreamlab.core import rng
from dreamlab.core.errors import LabError

T = TypeVar("T")
Grads = Sequence[Tensor | None]
TIMEOUT_S = 3600.0
"""Maximum wait for other processes, for example while rank 0 evaluates."""


LOST = ("gloo/transport", "Connection closed by peer", "Connection reset by peer", "NCCL error")
"""What torch's errors say if a peer is gone."""


class PeerLostError(LabError):
    """Another process of the run has ended, so this one cannot continue."""


@dataclass(frozen=True)
class World:
    """Rank of this process and number of processes."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Rank on this machine, which selects the GPU."""
    local_size: int = 1


_here = World()


class Resettable(Protocol):
    """An object that may hold recorded collectives, and can drop them."""

    def reset(self) -> None: ...


_recorded: WeakSet[Resettable] = WeakSet()
"""What is reset before the group ends: nccl waits for graphs that hold its collectives."""


def rank() -> int:
    """Return the rank of this process; rank 0 writes the run folder."""
    return _here.rank


def size() -> int:
    """Return the number of processes that train together."""
    return _here.size


def local_rank() -> int:
    """Return the rank of this process on its machine."""
    return _here.local_rank


def local_size() -> int:
    """Return the number of processes on this machine."""
    return _here.local_size


def is_main() -> bool:
    """Return whether this process writes the run folder, the logs and the videos."""
    return _here.rank == 0


# -- coming together ------------------------------------------------------------------------------


def launched() -> World | None:
    """Return the world from the environment variables of torchrun; None without torchrun."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return None
    try:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        local_rank = int(os.environ.get("LOCAL_RANK", rank))
        return World(rank, size, local_rank, int(os.environ.get("LOCAL_WORLD_SIZE", size)))
    except ValueError:
        raise LabError("RANK, WORLD_SIZE and LOCAL_RANK of torchrun must be numbers") from None


@contextmanager
def joined(
    place: World, cuda: bool = False, timeout_s: float = TIMEOUT_S, store: Any = None
) -> Iterator[None]:
    """Join the process group inside the block: gloo on the CPU, nccl between GPUs.

    Processes find each other through `store`, or by torchrun's environment variables.
    """
    global _here  # noqa: PLW0603 - a process is in one world
    if place.size == 1 and not cuda:
        yield
        return
    where: dict[str, Any] = {} if store is None else {"store": store}
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if cuda else "gloo",
        rank=place.rank, world_size=place.size, timeout=timedelta(seconds=timeout_s), **where,
    )  # fmt: skip
    before, _here = _here, place
    try:
        yield
        barrier()  # no process may leave while another still communicates with it
    finally:
        _here = before
        while _recorded:
            _recorded.pop().reset()
        dist.destroy_process_group()


def in_group() -> bool:
    """Return whether this process is in a process group, which may be of one process."""
    return dist.is_initialized()


def reset_before_leaving(recorded: Resettable) -> None:
    """Reset an object, if it still lives, before this process leaves its group, if it is in one."""
    if in_group():
        _recorded.add(recorded)


@contextmanager
def alone() -> Iterator[None]:
    """Compute as a single process inside the block, for work that only one process does."""
    global _here  # noqa: PLW0603
    before, _here = _here, replace(_here, size=1)
    try:
        yield
    finally:
        _here = before


@contextmanager
def _heard() -> Iterator[None]:
    """Turn a lost connection to another process into a one-sentence error."""
    try:
        yield
    except (RuntimeError, dist.DistError) as error:
        raise _peer_lost(error) from error


def peer_lost(error: Exception) -> PeerLostError | None:
    """Return a lost connection that torch's own operations met, as one sentence; else None."""
    if isinstance(error, PeerLostError):
        return error
    met = isinstance(error, dist.DistError) or any(text in str(error) for text in LOST)
    return _peer_lost(error) if met else None


def _peer_lost(error: Exception) -> PeerLostError:
    return PeerLostError(
        f"rank {_here.rank} of {_here.size}: another process of this run has ended or does not "
        f"answer ({' '.join(str(error).split())[:200]})"
    )


def derive(seed: int, *path: int) -> int:
    """Return the seed of one stream of this process; rank 0 uses that of a single-process run."""
    own = rng.derive(seed, *path)
    return own if _here.rank == 0 else rng.derive(own, 0, 0, _here.rank)


# -- tensors, where they are ----------------------------------------------------------------------


class _Mean(torch.autograd.Function):
    """The mean over processes; its gradient is also averaged over processes.

    A gradient averaged over processes is then that of their mean loss.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _reduce(x, "sum") / dist.get_world_size()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _reduce(grad, "sum") / dist.get_world_size()


def _reduce(x: Tensor, op: str) -> Tensor:
    group: Any = dist.group.WORLD
    reduced = collectives.all_reduce(x.contiguous(), op, group)
    if torch.compiler.is_compiling():
        return reduced
    with _heard():
        return collectives.wait_tensor(reduced)


def mean(x: Tensor) -> Tensor:
    """Average a tensor over all processes, with gradients."""
    return x if _here.size == 1 else _Mean.apply(x)


def total(x: Tensor) -> Tensor:
    """Sum a tensor over all processes, without a gradient."""
    return x if _here.size == 1 else _reduce(x.detach(), "sum")


def largest(x: Tensor) -> Tensor:
    """Compute the elementwise maximum over all processes, without a gradient."""
    return x if _here.size == 1 else _reduce(x.detach(), "max")


def gathered(x: Tensor) -> Tensor:
    """Concatenate the rows of all processes by rank, without a gradient."""
    if _here.size == 1:
        return x
    slots = x.new_zeros(_here.size, *x.shape)
    slots[_here.rank] = x.detach()  # a sum with zeros is the only reduction in all versions
    return _reduce(slots, "sum").flatten(0, 1)


def mean_gradients(grads: Grads) -> list[Tensor | None]:
    """Average gradients over all processes: one bucket, one reduction.

    All processes must use the same parameters: None gradients are not in the bucket.
    """
    there = [g for g in grads if g is not None]
    if _here.size == 1 or not there:
        return list(grads)
    bucket = torch.cat([g.detach().reshape(-1).float() for g in there])
    flat = _reduce(bucket, "sum") / _here.size
    parts = iter(flat.split([g.numel() for g in there]))
    return [None if g is None else next(parts).view(g.shape).to(g.dtype) for g in grads]


# -- numbers and plain data on the host -----------------------------------------------------------


def agree(values: Sequence[float]) -> list[float]:
    """Sum a few numbers over all processes."""
    if _here.size == 1:
        return list(values)
    with _heard():
        numbers = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(numbers)
        return numbers.tolist()


def any_of(flag: bool) -> bool:
    """Return whether the flag is set on any process."""
    return flag if _here.size == 1 else agree([float(flag)])[0] > 0


def all_of(flag: bool) -> bool:
    """Return whether the flag is set on every process."""
    return flag if _here.size == 1 else agree([float(flag)])[0] == _here.size


def gather(value: T) -> list[T]:
    """Return the plain data of all processes, by rank."""
    if _here.size == 1:
        return [value]
    out: list[Any] = [None] * _here.size
    with _heard():
        dist.all_gather_object(out, value)
    return out


def broadcast(value: T) -> T:
    """Return rank 0's plain data on every process."""
    if _here.size == 1:
        return value
    box: list[Any] = [value]
    with _heard():
        dist.broadcast_object_list(box, src=0)
    return box[0]


def barrier() -> None:
    """Wait for all processes."""
    if _here.size > 1:
        agree([0.0])


# -- sharded weights ------------------------------------------------------------------------------


def all_processes() -> int:
    """Return the number of processes, also inside `alone`."""
    return dist.get_world_size() if in_group() else 1


def mesh(device: str) -> Any:
    """Return the mesh of all processes, with a device of this type each."""
    from torch.distributed.device_mesh import init_device_mesh  # takes a second to import

    return init_device_mesh(device, (all_processes(),))
