"""What a run takes of its machine: memory, cores and GPU, read once per record."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import torch

from dreamlab.engine.observer import Observer
from dreamlab.engine.watch import memory_used_share

if TYPE_CHECKING:
    from dreamlab.engine.orchestrator import Orchestrator

GPU = {
    "gpu_bytes": "allocated_bytes.all.current",
    "gpu_peak_bytes": "allocated_bytes.all.peak",
    "gpu_reserved_bytes": "reserved_bytes.all.current",
}


class System(Observer):
    """Adds `system/...` to every record.

    Memory and cores are those of this process: environments in their own processes are only in
    `memory_share`, which is the whole machine's.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.mark = (time.monotonic(), time.process_time())
        self.has_utilization = device.type == "cuda" and _has_utilization(device)

    def started(self, loop: Orchestrator) -> None:
        self.mark = (time.monotonic(), time.process_time())

    def flushing(self, record: dict[str, float]) -> None:
        then, cpu_then = self.mark
        self.mark = now, cpu = time.monotonic(), time.process_time()
        record["system/rss_bytes"] = float(rss())
        record["system/cpu_cores"] = (cpu - cpu_then) / max(now - then, 1e-9)
        record["system/memory_share"] = memory_used_share()
        if self.device.type == "cuda":
            record |= self._gpu()

    def _gpu(self) -> dict[str, float]:
        """Return the allocator's counters, none of which waits for the GPU."""
        stats = torch.cuda.memory_stats(self.device)
        out = {f"system/{name}": float(stats.get(key, 0)) for name, key in GPU.items()}
        if self.has_utilization:
            out["system/gpu_share"] = torch.cuda.utilization(self.device) / 100
        return out


def _has_utilization(device: torch.device) -> bool:
    """Return whether the driver's library is there to say how busy the GPU is."""
    try:
        torch.cuda.utilization(device)
    except (ImportError, RuntimeError):  # no `nvidia-ml-py`, or a machine that does not tell
        return False
    return True


def rss() -> int:
    """Return the bytes this process has in memory."""
    return int(psutil.Process().memory_info().rss)


def peak_rss() -> int:
    """Return the most bytes this process had in memory since `reset_peak`, or since it started."""
    try:  # psutil does not know this figure on Linux, and only here can it start over
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024
    except (OSError, StopIteration):
        return _peak_elsewhere()


def _peak_elsewhere() -> int:
    """Return the peak since the process started, as macOS and Windows count it."""
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def reset_peak() -> bool:
    """Let `peak_rss` start over; return whether the system allows it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True
