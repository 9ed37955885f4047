"""Tensors of other programs' torch checkpoints; nothing else in such a file comes to life.

A checkpoint is a zip file with a pickle and the bytes of each storage; before torch 1.6 it was one
pickle after another, then the bytes. The pickle may name any class: tensors are read, and whatever
else it builds becomes an empty stand-in of ours. No number of bytes is believed.
"""

from __future__ import annotations

import io
import math
import pickle
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dreamlab.core.errors import CheckpointError
from dreamlab.core.types import Array
from dreamlab.engine.watch import memory_available
from dreamlab.interop.array_files import BROKEN, MOST_DIMS, Call, check_pickle, check_zip

STORAGES = {
    "FloatStorage": "<f4", "DoubleStorage": "<f8", "HalfStorage": "<f2", "LongStorage": "<i8",
    "IntStorage": "<i4", "ShortStorage": "<i2", "CharStorage": "<i1", "ByteStorage": "<u1",
    "BoolStorage": "|b1", "BFloat16Storage": "<u2",
}  # fmt: skip
BFLOAT16 = "BFloat16Storage"
ZIP = b"PK"
"""How a zip file starts."""
OLD_MAGIC, OLD_VERSION = 0x1950A86A20F9469CFC6C, 1001
MOST_PICKLE = 1 << 21
"""Bytes of a pickle; each tensor takes about a hundred."""

MOST_REPEATED = 1 << 20
"""Numbers of a tensor that repeats those of its storage; copies of it need room."""


class StandIn:
    """What is built in the place of a class that is not a tensor's: it takes anything, is nothing.

    It has no room for anything, so no file can change what another one sees.
    """

    __slots__ = ()

    def __new__(cls, *args: Any, **kwargs: Any) -> StandIn:
        return object.__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __call__(self, *args: Any, **kwargs: Any) -> StandIn:
        return self

    def __setstate__(self, state: Any) -> None: ...

    def __setitem__(self, key: Any, value: Any) -> None: ...

    def append(self, value: Any) -> None: ...

    def extend(self, values: Any) -> None: ...

    def add(self, value: Any) -> None: ...


class _Sealed:
    """What a pickle may refer to and not change."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("it tries to modify its reader")


class _Kind(_Sealed):
    """A kind of storage, by its name."""

    __slots__ = ("dtype", "name")

    def __init__(self, name: str) -> None:
        self.name, self.dtype = name, np.dtype(STORAGES[name])


class _Storage(_Sealed):
    """The numbers of one storage; nobody may write to them."""

    __slots__ = ("numbers",)

    def __init__(self, kind: _Kind, data: bytes | memoryview) -> None:
        numbers = np.frombuffer(data, kind.dtype)
        if kind.name == BFLOAT16:  # the upper half of a float
            numbers = (numbers.astype(np.uint32) << 16).view(np.float32)
        self.numbers = numbers


class _Ordered(dict[Any, Any]):
    """An OrderedDict without the attributes that torch gives it (`_metadata`)."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None: ...


def _ordered(*pairs: Any) -> _Ordered:
    if pairs:  # a copy: a few bytes would take as much as all that came before
        raise pickle.UnpicklingError("it copies a dictionary")
    return _Ordered()


def _tensor(storage: Any, offset: Any, shape: Any, stride: Any, *_: Any) -> Array | StandIn:
    """Return a view of the tensor that lies in a storage; it has to lie there whole."""
    if isinstance(storage, StandIn):
        return storage
    plain = all(
        isinstance(x, tuple) and len(x) <= MOST_DIMS and all(type(n) is int and n >= 0 for n in x)
        for x in (shape, stride)
    )
    if not isinstance(storage, _Storage) or not plain or len(shape) != len(stride):
        raise pickle.UnpicklingError("it has an invalid tensor")
    have = storage.numbers.size
    stride = [s if n > 1 else 0 for n, s in zip(shape, stride, strict=True)]
    last = sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if 0 not in shape else -1
    most = max(have, MOST_REPEATED)
    if type(offset) is not int or offset < 0 or offset + last >= have or math.prod(shape) > most:
        raise pickle.UnpicklingError(f"a tensor of shape {shape} exceeds its storage of {have}")
    step, rest = storage.numbers.itemsize, storage.numbers[offset:]
    if 0 in shape:
        return rest[:0].reshape(shape)
    steps = [s * step for s in stride]
    return np.lib.stride_tricks.as_strided(rest, shape, steps, writeable=False)


def _parameter(data: Any, *_: Any) -> Any:
    return data


def _subclass(build: Any, kind: Any, args: Any, *_: Any) -> Any:
    """Return the tensor that an object of a subclass is; its attributes are not kept."""
    ours = isinstance(build, Call) and isinstance(args, tuple)
    return build(*args) if ours else StandIn()


KNOWN: dict[tuple[str, str], Callable[..., Any]] = {
    ("torch._utils", "_rebuild_tensor"): _tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _parameter,
    ("torch._tensor", "_rebuild_from_type_v2"): _subclass,
    ("collections", "OrderedDict"): _ordered,
}
"""What a pickle may call, and what is called instead."""


class TensorUnpickler(pickle.Unpickler):
    """Builds tensors (as arrays), numbers, text and containers, and stand-ins for all else."""

    def __init__(self, stream: Any, read: Callable[[str], bytes | memoryview]) -> None:
        super().__init__(stream)
        self.read_storage = read
        self.storages: dict[str, _Storage] = {}

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if (module_name, global_name) in KNOWN:
            return Call(KNOWN[module_name, global_name])
        if module_name in ("torch", "torch.storage") and global_name in STORAGES:
            return _Kind(global_name)
        return StandIn

    def persistent_load(self, pid: Any, /) -> Any:
        kind, key = _reference(pid)
        if not isinstance(kind, _Kind):
            return StandIn()
        if key not in self.storages:
            self.storages[key] = _Storage(kind, self.read_storage(key))
        return self.storages[key]


class _Kinds(TensorUnpickler):
    """Builds nothing but stand-ins, and notes the kind of each storage."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream, lambda key: b"")
        self.kinds: dict[str, _Kind] = {}

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        found = super().find_class(module_name, global_name)
        return found if isinstance(found, _Kind) else StandIn

    def persistent_load(self, pid: Any, /) -> Any:
        kind, key = _reference(pid)
        if isinstance(kind, _Kind):
            self.kinds[key] = kind
        return StandIn()


def _reference(pid: Any) -> tuple[Any, str]:
    """Return kind and key of the storage that a pickle refers to: in new files, in old ones."""
    plain = isinstance(pid, tuple) and (len(pid) == 5 or (len(pid) == 6 and pid[5] is None))
    if not plain or pid[0] != "storage" or not isinstance(pid[2], str):
        raise pickle.UnpicklingError("it refers to something that is not a tensor storage")
    return pid[1], pid[2]


# -- files ----------------------------------------------------------------------------------------


def read_tensors(file: Path) -> Any:
    """Return what a torch checkpoint holds, its tensors as arrays; nothing in it is executed."""
    try:
        with file.open("rb") as stream:
            start = stream.read(len(ZIP))
        if start != ZIP:
            return _read_old(file)
        if not zipfile.is_zipfile(file):
            raise ValueError("it is truncated")
        with zipfile.ZipFile(file) as data:
            return _read(data)
    except BROKEN as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise CheckpointError(f"import: {file} cannot be read: {reason}") from None


def _read(data: zipfile.ZipFile) -> Any:
    names = [n for n in data.namelist() if n == "data.pkl" or n.endswith("/data.pkl")]
    if len(names) != 1:
        raise ValueError("it is not a torch checkpoint")
    check_zip(data)
    folder = names[0].removesuffix("data.pkl")
    if data.getinfo(names[0]).file_size > MOST_PICKLE:
        raise ValueError(f"its pickle has more than {MOST_PICKLE:,} bytes")
    order = f"{folder}byteorder"
    if order in data.namelist() and data.read(order) != b"little":
        raise ValueError("it was not written on a little-endian machine")
    content = data.read(names[0])
    check_pickle(io.BytesIO(content))
    return TensorUnpickler(io.BytesIO(content), lambda key: data.read(f"{folder}data/{key}")).load()


def _read_old(file: Path) -> Any:
    """Read a file as torch wrote it before 1.6: head, objects, names of storages, their bytes."""
    need, free = file.stat().st_size, memory_available()
    if need > free:
        raise MemoryError(f"it has {need:,} bytes, but only {free:,} are free")
    content = memoryview(file.read_bytes())
    if not content.nbytes or content[0] != pickle.PROTO[0]:
        raise ValueError("it is not a torch checkpoint, or is truncated")
    nothing: Mapping[str, memoryview] = {}
    place = 0
    for expected in (OLD_MAGIC, OLD_VERSION):
        found, place = _next(content, place, nothing)
        if type(found) is not int or found != expected:
            raise ValueError("it is not a torch checkpoint")
    machine, place = _next(content, place, nothing)
    if not isinstance(machine, dict) or machine.get("little_endian") is not True:
        raise ValueError("it was not written on a little-endian machine")
    first = io.BytesIO(content[place : place + MOST_PICKLE])
    check_pickle(first)
    first.seek(0)
    noting = _Kinds(first)
    noting.load()
    keys, after = _next(content, place + first.tell(), nothing)
    return _next(content, place, _storages(content[after:], keys, noting.kinds))[0]


def _next(content: memoryview, place: int, storages: Mapping[str, Any]) -> tuple[Any, int]:
    """Return the object of the pickle at a place, and where it ends."""
    stream = io.BytesIO(content[place : place + MOST_PICKLE])
    check_pickle(stream)
    stream.seek(0)
    return TensorUnpickler(stream, storages.__getitem__).load(), place + stream.tell()


def _storages(content: memoryview, keys: Any, kinds: Mapping[str, _Kind]) -> dict[str, memoryview]:
    """Return the bytes of each storage; each begins with how many numbers it has."""
    if not isinstance(keys, list):
        raise ValueError("it does not list its storages")
    found: dict[str, memoryview] = {}
    for key in keys:
        if not isinstance(key, str) or key not in kinds:
            raise ValueError(f"its storage {str(key)[:40]!r} has numbers of an unknown kind")
        size = int.from_bytes(content[:8], "little", signed=True) * kinds[key].dtype.itemsize
        if len(content) < 8 or not 0 <= size <= len(content) - 8:
            raise EOFError("it is truncated")
        found[key], content = content[8 : 8 + size], content[8 + size :]
    return found
