"""A GPU that is not there: kernels are built for it, and how much memory they need is known."""

from __future__ import annotations

from triton.backends.compiler import GPUTarget

SHARED = 227 * 1024
"""Bytes of shared memory that a kernel may have on an H100 or H200."""


class Nowhere:
    """A driver for one GPU of compute capability 9.0 that takes kernels and runs none."""

    def __init__(self) -> None:
        self.utils, self.launcher_cls = self, lambda src, meta: lambda *args: None
        self.shared: dict[str, int] = {}

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": SHARED, "multiprocessor_count": 132, "warpSize": 32}

    def load_binary(
        self, name: str, binary: bytes, shared: int, device: int
    ) -> tuple[None, int, int, int, int]:
        self.shared[name] = max(shared, self.shared.get(name, 0))
        return None, 1, 32, 0, 1024
