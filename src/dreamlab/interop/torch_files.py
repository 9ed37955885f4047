"""Tensors of other programs' torch checkpoints; nothing else in such a file comes to life.

A checkpoint is a zip file with a pickle and the bytes of each storage. The pickle may name any
class: tensors are read, and whatever else it builds becomes an empty stand-in of ours. No number of
bytes is believed.
"""

from __future__ import annotations

import io
import math
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dreamlab.core.errors import CheckpointError
from dreamlab.core.types import Array
from dreamlab.engine.watch import memory_available
from dreamlab.interop.array_files import BROKEN, MOST_DIMS, Call, check_memo

STORAGES = {
    "FloatStorage": "<f4", "DoubleStorage": "<f8", "HalfStorage": "<f2", "LongStorage": "<i8",
    "IntStorage": "<i4", "ShortStorage": "<i2", "CharStorage": "<i1", "ByteStorage": "<u1",
    "BoolStorage": "|b1", "BFloat16Storage": "<u2",
}  # fmt: skip
BFLOAT16 = "BFloat16Storage"
PLAIN = {kind.__name__: kind for kind in (dict, list, tuple, int, float, str)}


class StandIn:
    """What is built in the place of a class that is not a tensor's: it takes anything, is nothing.

    It is a fresh subclass at every mention, so that no file can change what another one sees.
    """

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


class _Kind:
    """A kind of storage, by its name."""

    def __init__(self, name: str) -> None:
        self.name, self.dtype = name, np.dtype(STORAGES[name])


class _Storage:
    """The numbers of one storage."""

    def __init__(self, kind: _Kind, data: bytes) -> None:
        numbers = np.frombuffer(data, kind.dtype)
        if kind.name == BFLOAT16:  # the upper half of a float
            numbers = (numbers.astype(np.uint32) << 16).view(np.float32)
        self.numbers = numbers


def _tensor(storage: Any, offset: Any, shape: Any, stride: Any, *_: Any) -> Array:
    """Return the tensor that lies in a storage; it has to lie there whole."""
    plain = all(
        isinstance(x, tuple) and len(x) <= MOST_DIMS and all(type(n) is int and n >= 0 for n in x)
        for x in (shape, stride)
    )
    if not isinstance(storage, _Storage) or not plain or len(shape) != len(stride):
        raise pickle.UnpicklingError("it has an invalid tensor")
    have = storage.numbers.size
    last = sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if 0 not in shape else -1
    if type(offset) is not int or offset < 0 or offset + last >= have or math.prod(shape) > have:
        raise pickle.UnpicklingError(f"a tensor of shape {shape} exceeds its storage of {have}")
    step = storage.numbers.itemsize
    found = np.lib.stride_tricks.as_strided(
        storage.numbers[offset:], shape, [s * step for s in stride]
    )
    return np.array(found)


def _parameter(data: Any, *_: Any) -> Any:
    return data


class TensorUnpickler(pickle.Unpickler):
    """Builds tensors (as arrays), numbers, text and containers, and stand-ins for all else."""

    def __init__(self, stream: Any, read: Callable[[str], bytes]) -> None:
        super().__init__(stream)
        self.read_storage = read
        self.storages: dict[str, _Storage] = {}

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if module_name == "torch._utils" and global_name in (
            "_rebuild_tensor_v2",
            "_rebuild_tensor",
        ):
            return Call(_tensor)
        if (module_name, global_name) == ("torch._utils", "_rebuild_parameter"):
            return Call(_parameter)
        if module_name in ("torch", "torch.storage") and global_name in STORAGES:
            return _Kind(global_name)
        if (module_name, global_name) == ("collections", "OrderedDict"):
            return Call(lambda *pairs: dict(*pairs))
        if module_name == "builtins" and global_name in PLAIN:
            return PLAIN[global_name]
        return type("StandIn", (StandIn,), {})

    def persistent_load(self, pid: Any, /) -> Any:
        if not isinstance(pid, tuple) or len(pid) != 5 or not isinstance(pid[1], _Kind):
            raise pickle.UnpicklingError("it refers to something that is not a tensor storage")
        key = pid[2]
        if not isinstance(key, str):
            raise pickle.UnpicklingError("it refers to something that is not a tensor storage")
        if key not in self.storages:
            self.storages[key] = _Storage(pid[1], self.read_storage(key))
        return self.storages[key]


def read_tensors(file: Path) -> Any:
    """Return what a torch checkpoint holds, its tensors as arrays; nothing in it is executed."""
    try:
        with zipfile.ZipFile(file) as data:
            return _read(data)
    except BROKEN as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise CheckpointError(f"import: {file} cannot be read: {reason}") from None


def _read(data: zipfile.ZipFile) -> Any:
    names = [n for n in data.namelist() if n == "data.pkl" or n.endswith("/data.pkl")]
    if len(names) != 1:
        raise ValueError("it is not a torch checkpoint")
    need, free = sum(i.file_size for i in data.infolist()), memory_available()
    if need > free:
        raise MemoryError(f"it unpacks to {need:,} bytes, but only {free:,} are free")
    folder = names[0].removesuffix("data.pkl")
    content = data.read(names[0])
    check_memo(io.BytesIO(content))
    return TensorUnpickler(io.BytesIO(content), lambda key: data.read(f"{folder}data/{key}")).load()
