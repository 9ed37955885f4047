"""Arrays of other programs, from pickles and zip files that anybody may have made.

Nothing in a file is called, and nothing is allocated because a file says so: every number of bytes
is compared with what is really there.
"""

from __future__ import annotations

import math
import os
import pickle
import pickletools
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from dreamlab.core.errors import CheckpointError
from dreamlab.core.types import Array
from dreamlab.engine.watch import memory_available

CODES = re.compile(r"b1|[iu][1248]|f[248]")
MOST_DIMS = 8
MOST_LEVELS = 200
"""Levels of tuples in a pickle."""
BROKEN = (
    OSError, EOFError, AttributeError, ImportError, LookupError, TypeError, ValueError,
    ArithmeticError, MemoryError, RecursionError, NotImplementedError, RuntimeError, struct.error,
    zlib.error, zipfile.BadZipFile, pickle.UnpicklingError,
)  # fmt: skip


def read_arrays(file: Path) -> Any:
    """Return what an `.npz` or a pickle holds: arrays, numbers, text and containers of them."""
    try:
        return _read_npz(file) if file.suffix == ".npz" else _read_pickle(file)
    except BROKEN as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise CheckpointError(f"import: {file} cannot be read: {reason}") from None


def array_of(data: Any, dtype: Any, shape: Any, order: Any = "C") -> Array:
    """Return an array from its bytes; they have to be exactly as many as its shape needs."""
    if not isinstance(dtype, _Dtype) or not isinstance(data, bytes | bytearray):
        raise pickle.UnpicklingError("it is not a numeric array")
    plain = isinstance(shape, tuple) and len(shape) <= MOST_DIMS
    if not plain or not all(isinstance(n, int) and n > 0 for n in shape):
        raise pickle.UnpicklingError(f"it has an array of shape {shape!r}")
    if math.prod(shape) * dtype.numpy.itemsize != len(data):
        raise pickle.UnpicklingError(f"an array of shape {shape} is not {len(data)} bytes")
    return np.frombuffer(data, dtype.numpy).reshape(shape, order="F" if order == "F" else "C")


# -- pickles --------------------------------------------------------------------------------------


class _Dtype:
    """A type of numbers by its code; numpy's own would believe whatever state it is given."""

    def __init__(self, code: Any, *_: Any) -> None:
        if not isinstance(code, str) or not CODES.fullmatch(code):
            raise pickle.UnpicklingError(f"it is not a numeric array: {code!r}")
        self.numpy = np.dtype(code)

    def __setstate__(self, state: Any) -> None:
        if state[1] not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError("it is not a numeric array")
        self.numpy = self.numpy.newbyteorder(state[1])


class _Array:
    """An array that is made empty first and filled afterwards, as pickles do."""

    value: Array | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        self.value = array_of(data, dtype, shape, "F" if fortran else "C")


class Call:
    """A function of ours that a pickle may call, and not change."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("it tries to modify its reader")


def _number(dtype: Any, data: Any) -> Any:
    """Return a number of numpy's from its bytes."""
    return array_of(data, dtype, ())[()]


def _allowed() -> dict[tuple[str, str], Any]:
    """Return everything a pickle may name; both spellings are of numpy 1 and numpy 2."""
    found: dict[tuple[str, str], Any] = {
        ("numpy", "ndarray"): Call(lambda *_: _Array()),
        ("numpy", "dtype"): Call(_Dtype),
    }
    for home in ("numpy.core", "numpy._core"):
        found[f"{home}.multiarray", "_reconstruct"] = Call(lambda *_: _Array())
        found[f"{home}.multiarray", "scalar"] = Call(_number)
        found[f"{home}.numeric", "_frombuffer"] = Call(array_of)
    for kind in (dict, list, tuple, int, float, str):
        found["builtins", kind.__name__] = kind
    return found


class ArrayUnpickler(pickle.Unpickler):
    """Builds arrays, numbers, text and containers; whatever else a file names is refused."""

    allowed = _allowed()

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        try:
            return self.allowed[module_name, global_name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it names {module_name}.{global_name}, but a checkpoint may contain only arrays"
            ) from None


class _Bounded:
    """A file from which no more bytes are requested than it has left."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream, self.size = stream, os.fstat(stream.fileno()).st_size

    def read(self, size: int = -1) -> bytes:
        if size > self.size - self.stream.tell():
            raise EOFError("it is truncated")
        return self.stream.read(size)

    def readline(self) -> bytes:
        return self.stream.readline()

    def tell(self) -> int:
        return self.stream.tell()


def _read_pickle(file: Path) -> Any:
    with file.open("rb") as stream:
        bounded: Any = _Bounded(stream)
        check_pickle(bounded)
        stream.seek(0)
        return _filled(ArrayUnpickler(bounded).load())


def check_pickle(stream: Any) -> None:
    """Raise if reading a pickle would take more than it has.

    It may number its objects higher than it can have any: a list of that length would be made. Its
    tuples may nest so deeply that the hash of one overflows the stack: the process would crash.
    """
    levels = _Levels()
    for count, (code, number, _) in enumerate(pickletools.genops(stream)):
        if code.name.endswith("PUT") and int(number or 0) > count:
            raise pickle.UnpicklingError("it refers to objects that it does not contain")
        if levels.follow(code, number) > MOST_LEVELS:
            raise pickle.UnpicklingError(f"it is nested deeper than {MOST_LEVELS} levels")


class _Levels:
    """How deeply the tuples of a pickle nest, at most: its stack, with levels as objects."""

    def __init__(self) -> None:
        self.stack: list[int | None] = []  # None is a mark
        self.memo: dict[Any, int] = {}

    def follow(self, code: pickletools.OpcodeInfo, number: Any) -> int:
        """Do what an opcode does; return the levels of what it leaves on the stack."""
        name = code.name
        if name == "MARK":
            self.stack.append(None)
            return 0
        if name == "MEMOIZE" or name.endswith("PUT"):
            number = len(self.memo) if name == "MEMOIZE" else int(number)
            self.memo[number] = (self.stack[-1] if self.stack else 0) or 0
            return 0
        made = self.memo.get(int(number), 0) if name.endswith("GET") else self._take(code)
        made += "TUPLE" in name or name == "FROZENSET"
        self.stack += [made] * len(code.stack_after)
        return made

    def _take(self, code: pickletools.OpcodeInfo) -> int:
        """Take from the stack what an opcode takes; return the most levels among it."""
        count, most = len(code.stack_before), 0
        if pickletools.markobject in code.stack_before:
            count = code.stack_before.index(pickletools.markobject)
            while self.stack and (level := self.stack.pop()) is not None:
                most = max(most, level)
        for _ in range(min(count, len(self.stack))):
            most = max(most, self.stack.pop() or 0)
        return most


def _filled(tree: Any) -> Any:
    """Return the arrays of a dictionary of dictionaries in their places."""
    if isinstance(tree, dict):
        return {k: _filled(v) for k, v in tree.items()}
    return tree.value if isinstance(tree, _Array) else tree


# -- zip files ------------------------------------------------------------------------------------


def check_zip(data: zipfile.ZipFile) -> None:
    """Raise if a zip file unpacks to more than there is room for, or by a rare method."""
    need, free = sum(i.file_size for i in data.infolist()), memory_available()
    if need > free:
        raise MemoryError(f"it unpacks to {need:,} bytes, but only {free:,} are free")
    if any(
        i.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for i in data.infolist()
    ):
        raise NotImplementedError("it is compressed by a method that is not read here")


def _read_npz(file: Path) -> dict[str, Array]:
    with zipfile.ZipFile(file) as data:
        check_zip(data)
        return {i.filename.removesuffix(".npy"): _read_npy(data, i) for i in data.infolist()}


def _read_npy(data: zipfile.ZipFile, info: zipfile.ZipInfo) -> Array:
    """Return one array of a zip file; numpy would make room for it before it looks."""
    with data.open(info) as stream:
        version = npy.read_magic(stream)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read(stream)
        content = stream.read()
    code = f"{dtype.kind}{dtype.itemsize}"
    kind = _Dtype(code)
    kind.numpy = dtype
    return array_of(content, kind, shape, "F" if fortran else "C")
