"""Where and how numbers are computed: device, precision, threads, determinism."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Literal

import torch
from threadpoolctl import ThreadpoolController

from dreamlab.accel import dispatch
from dreamlab.accel.compile import compile_methods, compile_updates
from dreamlab.accel.cuda_graphs import graph_methods
from dreamlab.core import world
from dreamlab.core.errors import ConfigError
from dreamlab.core.limits import PositiveInt, Range
from dreamlab.core.workflow import Workflow, marked

# Parameters times rows of a batch that keep one thread busy. A convolution uses each of its weights
# at many places. A second thread pays much earlier than further ones: 512 rows through a layer of
# 256 take half the time on two idle cores. Beside other work it mostly waits for the first
# (benchmarks/threads.py): give `threads`, or OMP_NUM_THREADS, where several runs share a machine.
WORK_PER_THREAD = 500_000_000
WORK_FOR_TWO = 4_000_000
IMAGE_WORK = 4

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h

DEVICES = ("auto", "cpu", "cuda", "mps")
Precision = Literal["fp32", "bf16"]
Threads = Annotated[int, Range(0, 1_024)]


@dataclass(frozen=True)
class ComputeConfig:
    """One place for everything that changes speed or the last digit."""

    device: str = "auto"
    """auto, cpu, cuda, cuda:1 (that GPU) or mps; with several processes `cuda` is a GPU each."""
    devices: PositiveInt = 1
    """So many GPUs of this machine, with a process each: `distributed.processes` by another name,
    for GPUs."""
    precision: Precision = "fp32"
    deterministic: bool = False
    """Use only deterministic kernels (slower on a GPU)."""
    compile: bool | None = None
    """Compile updates with torch.compile, on a GPU as CUDA graphs: faster after a minute of
    compilation, or seconds with a warm cache. None: on a GPU, if the workflow can be captured."""
    accel: Literal["auto", "off"] = "auto"
    """`off` disables custom kernels, CUDA graphs, compiled and fused code. Results are the same up
    to rounding."""
    threads: Threads = 0
    """CPU threads of torch; 0: as many as an update can use, at most the cores available to the
    process (affinity, OMP_NUM_THREADS)."""

    def __post_init__(self) -> None:
        if self.device not in DEVICES and not re.fullmatch(r"cuda:\d{1,3}", self.device):
            raise ConfigError(_no_device(self.device))
        if self.devices > 1 and self.device not in ("auto", "cuda"):
            raise ConfigError(f"devices: has no effect with device={self.device}")
        if self.accel == "off" and self.compile:
            raise ConfigError("accel=off disables compilation; remove it, or compile=true")


def _no_device(name: str) -> str:
    """Return the message for a device that does not exist; a GPU is called cuda here."""
    near = ["cuda"] if "gpu" in name.lower() else get_close_matches(name, DEVICES, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"device: there is no device {name!r}.{hint}\n  known: {', '.join(DEVICES)}, cuda:N"


def _available() -> dict[str, bool]:
    mps = torch.backends.mps.is_available()
    return {"cpu": True, "cuda": torch.cuda.is_available(), "mps": mps}


def found_device(name: str) -> str:
    """Return the name of a device; of `auto`, what it means on this machine."""
    there = _available()
    return next(d for d in ("cuda", "mps", "cpu") if there[d]) if name == "auto" else name


def check_several(name: str, processes: int) -> None:
    """Raise if so many processes cannot use this device; they share no GPU."""
    if processes > 1 and name not in ("auto", "cuda", "cpu"):
        raise ConfigError(
            f"device: {name} for {processes} processes: use device=cuda for a GPU each, device=cpu,"
            " or one process"
        )


def pick_device(name: str) -> torch.device:
    """Return the device requested, or raise saying what there is.

    With several processes on a machine with GPUs each takes its own.
    """
    name = found_device(name)
    kind, _, number = name.partition(":")
    available = _available()
    if not available[kind]:
        found = [d for d, there in available.items() if there]
        raise ConfigError(f"device: {name} is not available; available: {', '.join(found)}")
    if world.size() > 1 and kind != "cpu":
        return _own_gpu(name)
    if number and int(number) >= torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        raise ConfigError(f"device: {name} is not there; the last GPU here is cuda:{last}")
    return torch.device(name)


def take_device(name: str) -> torch.device:
    """Return the device requested, and make a GPU this process's current one.

    New streams, captured graphs and the counted memory are those of the current GPU.
    """
    device = pick_device(name)
    if device.type == "cuda" and device != torch.device("cuda"):  # it has a number
        torch.cuda.set_device(device)
    return device


def _own_gpu(name: str) -> torch.device:
    """Return the GPU of this process; two on one would only wait for each other."""
    check_several(name, world.size())
    there, number = torch.cuda.device_count(), world.local_rank()
    if number >= there:
        raise ConfigError(
            f"device: {there} GPUs here, but there is a process {number + 1}: each needs its own. "
            "Lower distributed.processes, or use device=cpu"
        )
    return torch.device("cuda", number)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: several threads sum in another order and change the last digits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def set_up(config: ComputeConfig, workflow: Workflow[Any], rows: int) -> None:
    """Set threads and determinism for a run whose batches have this many rows."""
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    keep_memory(not workflow.sharded)
    # numpy only multiplies small matrices here; a second pool of threads would fight torch's
    ThreadpoolController().select(internal_api="openblas").limit(limits=1)
    threads = config.threads or _threads(workflow, rows)
    torch.set_num_threads(threads)
    plain = (
        config.accel == "off" or workflow.sharded
    )  # kernels and graphs read weights by themselves
    dispatch.set_reference(plain)
    if not plain and config.compile is not False:
        speed_up(config, workflow)


def speed_up(config: ComputeConfig, workflow: Workflow[Any]) -> None:
    """Compile what is marked for it, and on a GPU capture what is marked for that."""
    captured = marked(type(workflow), "capturable") if workflow.device.type == "cuda" else []
    if any(opt.accumulate > 1 for opt in workflow.optimizers.values()):
        if config.compile:
            raise ConfigError("compile cannot be combined with training.accumulate")
        return
    if captured:
        compiled = compile_methods(workflow, except_for=captured)
        graph_methods(config.precision == "bf16", workflow, captured, compiled)
        torch.backends.cudnn.benchmark = not config.deterministic
    elif config.compile:
        compile_updates(workflow)


def keep_memory(keep: bool) -> None:
    """Let the C library keep what is freed for the next update, or give it back at once.

    By default glibc gives every array of more than 128 KiB back to the system at once, and getting
    fresh pages for the next one costs more than computing with it. It starts to keep larger ones
    when some are freed, which gathered weights would fragment. Elsewhere nothing happens.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    sizes = (32 << 20, 512 << 20) if keep else (128 << 10, 128 << 10)
    for option, value in zip((M_MMAP_THRESHOLD, M_TRIM_THRESHOLD), sizes, strict=True):
        mallopt(ctypes.c_int(option), ctypes.c_int(value))


def _threads(workflow: Workflow[Any], rows: int) -> int:
    work = rows * sum(p.numel() for p in workflow.parameters())
    if any(s.is_image for s in workflow.spec.obs.values()):
        work *= IMAGE_WORK
    wanted = max(1 + (work >= WORK_FOR_TWO), work // WORK_PER_THREAD)
    return min(cores(), wanted)


def cores() -> int:
    """Return how many cores this process may use: fewer than there are, if its owner says so."""
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    try:
        there = len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        there = os.cpu_count() or 1
    return min(there, int(given)) if given.isdigit() and int(given) else there


@contextmanager
def autocast(config: ComputeConfig, device: torch.device) -> Iterator[None]:
    """Compute matrix products in bfloat16 inside the block, if so configured."""
    if config.precision == "fp32":
        yield
        return
    with torch.autocast(device.type, dtype=torch.bfloat16):
        yield
