"""Where and how numbers are computed: device, precision, threads, determinism."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from threadpoolctl import ThreadpoolController

from dreamlab.core.errors import ConfigError
from dreamlab.core.workflow import Workflow, marked

SMALL_WORK = (
    4_000_000  # parameters times rows of a batch, below which threads cost more than they give
)

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h


@dataclass(frozen=True)
class ComputeConfig:
    """One place for everything that changes speed or the last digit."""

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    precision: Literal["fp32", "bf16"] = "fp32"
    deterministic: bool = False
    """Only kernels whose result does not depend on scheduling (slower on a GPU)."""
    compile: bool | None = None
    """Compile updates with torch.compile, on a GPU record them as CUDA graphs: faster after half a
    minute, or seconds the next time. None: on a GPU, where the workflow can be recorded."""
    threads: int = 0
    """CPU threads of torch; 0: one where an update is small (faster there), else all cores that
    the process was given (its affinity, OMP_NUM_THREADS)."""


def pick_device(name: str) -> torch.device:
    """Return the device asked for, or raise saying what there is."""
    available = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    if name == "auto":
        return torch.device(next(d for d in ("cuda", "mps", "cpu") if available[d]))
    if not available[name]:
        found = [d for d, there in available.items() if there]
        raise ConfigError(f"device: {name} is not available here; there is {', '.join(found)}")
    return torch.device(name)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: several add up in another order, and give other last digits."""
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
    keep_memory()
    # numpy only multiplies small matrices here; a second pool of threads would fight torch's
    ThreadpoolController().select(internal_api="openblas").limit(limits=1)
    threads = config.threads or _threads(workflow, rows)
    torch.set_num_threads(threads)
    if config.compile is not False:
        speed_up(config, workflow)


def speed_up(config: ComputeConfig, workflow: Workflow[Any]) -> None:
    """Compile what is marked for it, and on a GPU record what is marked for that."""
    recorded = marked(type(workflow), "capturable") if workflow.device.type == "cuda" else []
    if any(opt.accumulate > 1 for opt in workflow.optimizers.values()):
        if config.compile:
            raise ConfigError("compile: does not go together with training.accumulate")
        return
    if recorded:
        from dreamlab.engine.capture import record_methods

        pieces = compile_pieces(workflow, except_for=recorded)
        record_methods(config.precision == "bf16", workflow, recorded, pieces)
        torch.backends.cudnn.benchmark = not config.deterministic
    elif config.compile:
        compile_updates(workflow)


def compile_updates(workflow: Workflow[Any]) -> None:
    """Replace what is marked `@compilable`, optimizer steps included, by compiled functions."""
    import torch._dynamo.config as dynamo

    if not hasattr(dynamo, "trace_autograd_ops"):
        raise ConfigError("compile: needs torch 2.13 or newer, whose compiler follows gradients")
    dynamo.trace_autograd_ops = True  # the backward pass and the optimizer's step as well
    name = type(workflow).__name__
    if marked(type(workflow), "capturable"):
        raise ConfigError(f"compile: {name} gains by it on a GPU only; leave the option out")
    if not compile_pieces(workflow):
        raise ConfigError(f"compile: {name} marks no method as compilable; leave the option out")
    for opt in workflow.optimizers.values():
        opt.allocate()


def compile_pieces(workflow: Workflow[Any], except_for: Sequence[str] = ()) -> list[Piece]:
    """Replace the `@compilable` methods of a workflow and its modules, and return them."""
    import torch._inductor.config as inductor

    inductor.fallback_random = True  # the same random numbers as without the compiler
    pieces: list[Piece] = []
    for module in workflow.modules():
        for name in marked(type(module), "compilable"):
            if module is workflow and name in except_for:
                continue
            pieces.append(Piece(getattr(module, name)))
            object.__setattr__(module, name, pieces[-1])
    return pieces


class Piece:
    """A compiled method; while it is not `awake` it runs as it was written."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self.method, self.awake = method, True
        self.compiled = torch.compile(method, fullgraph=True, dynamic=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return (self.compiled if self.awake else self.method)(*args, **kwargs)


def keep_memory() -> None:
    """Let the C library keep what is freed for the next update.

    By default glibc gives every array of more than 128 KiB back to the system at once, and getting
    fresh pages for the next one costs more than computing with it. Elsewhere nothing happens.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    for option, value in ((M_MMAP_THRESHOLD, 32 << 20), (M_TRIM_THRESHOLD, 512 << 20)):
        mallopt(ctypes.c_int(option), ctypes.c_int(value))


def _threads(workflow: Workflow[Any], rows: int) -> int:
    has_images = any(s.is_image for s in workflow.spec.obs.values())
    small = rows * sum(p.numel() for p in workflow.parameters()) < SMALL_WORK
    return 1 if small and not has_images else cores()


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
