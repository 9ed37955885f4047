"""Weights in shared memory: one writer, any number of readers, lock-free."""

from __future__ import annotations

import shutil
import struct
import zlib
from math import ceil
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

from dreamlab.core.errors import LabError

HEADER = struct.Struct("<qq")  # newest version, whether to stop
SLOT = struct.Struct("<qqq")  # version, bytes, checksum
FIRST = 128
"""Offset of the first slot, after the headers."""
ROOM = 1.25
"""Capacity factor: counts and statistics may grow a little."""
SHARED = Path("/dev/shm")
"""Where Linux has shared memory."""


class Board:
    """Two slots written in turn, so that a reader of the newest is seldom overtaken.

    There is no lock, which a killed process could never release: a reader compares the checksum
    instead, and retries at its next tick if it was overtaken; at once if it has no weights yet.
    """

    def __init__(self, memory: SharedMemory, capacity: int) -> None:
        self.memory, self.capacity = memory, capacity
        buffer = memory.buf
        assert buffer is not None, "it is open"
        self.buffer: memoryview = buffer

    @classmethod
    def create(cls, payload: bytes) -> Board:
        """Allocate a board for payloads of this size."""
        capacity = int(len(payload) * ROOM) + 65_536
        size = FIRST + 2 * capacity
        _check_free(size)
        board = cls(SharedMemory(create=True, size=size), capacity)
        HEADER.pack_into(board.buffer, 0, -1, 0)
        return board

    @classmethod
    def attach(cls, name: str, capacity: int) -> Board:
        """Open the board of another process."""
        return cls(SharedMemory(name=name), capacity)

    def write(self, version: int, payload: bytes) -> None:
        """Publish newer weights."""
        assert len(payload) <= self.capacity, "weights do not grow"
        slot, buffer = version % 2, self.buffer
        place, begin = HEADER.size + slot * SLOT.size, FIRST + slot * self.capacity
        SLOT.pack_into(buffer, place, -1, 0, 0)
        buffer[begin : begin + len(payload)] = payload
        SLOT.pack_into(buffer, place, version, len(payload), zlib.adler32(payload))
        struct.pack_into("<q", buffer, 0, version)

    def read(self, have: int) -> bytes | None:
        """Return the newest weights unless their version is `have`."""
        newest, _ = HEADER.unpack_from(self.buffer, 0)
        if newest < 0 or newest == have:
            return None
        slot, buffer = newest % 2, self.buffer
        version, size, checksum = SLOT.unpack_from(buffer, HEADER.size + slot * SLOT.size)
        begin = FIRST + slot * self.capacity
        if version != newest or size > self.capacity:
            return None
        payload = bytes(buffer[begin : begin + size])
        return payload if zlib.adler32(payload) == checksum else None

    def stop(self) -> None:
        """Signal every reader to stop."""
        struct.pack_into("<q", self.buffer, 8, 1)

    @property
    def stopped(self) -> bool:
        return bool(struct.unpack_from("<q", self.buffer, 8)[0])

    def close(self, remove: bool = False) -> None:
        self.buffer.release()
        self.memory.close()
        if remove:
            self.memory.unlink()


def _check_free(size: int) -> None:
    """Raise if shared memory has less room: the first write would kill the process."""
    if not SHARED.is_dir():
        return
    total, _, free = shutil.disk_usage(SHARED)
    if total and size > free:  # without a limit it says 0
        mb, whole = 1 << 20, ceil((total + size) / (1 << 30))
        raise LabError(
            f"actors: their weights need {ceil(size / mb)} MB of shared memory, but {SHARED} has "
            f"{free // mb} of {total // mb} MB free. In a container: docker run "
            f"--shm-size={whole}g; elsewhere: mount -o remount,size={whole}g {SHARED}"
        )
