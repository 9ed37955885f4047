"""Where the time to the first update of DreamerV3 12m goes, on a GPU.

    python benchmarks/first_update.py [vectors] [images] [--stages] [--warm-only] [--keep FOLDER]
        [--set OPTION=VALUE ...] [--samples 40] [--updates 50] [--size 12m] [--record]

Each kind of input starts twice, in a process of its own: `cold` with empty caches of the compiler
and of Triton, `warm` with what the first one left there. `--stages` adds stopwatches, which import
the compiler early and so take seconds themselves: it is for finding out where time goes. The table
has seconds; what is indented is part of what is above it. `--set triton.autotune_pointwise=False`
changes the settings of `torch._inductor.config`, to learn what they cost here and in milliseconds
per update.
`--samples 40` lists the functions that the process was in most often, asked every 10 ms.
`--warm-only` needs `--keep` with the folder of an earlier start. `--record` writes all tables into
benchmarks/results, and keeps those of starts that were not made again.
"""

from __future__ import annotations

import time

START = time.perf_counter()

import argparse  # noqa: E402
import ast  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
import threading  # noqa: E402
from collections import Counter, defaultdict  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from contextlib import contextmanager, suppress  # noqa: E402
from functools import partial, wraps  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))

from recorded import place, with_earlier  # noqa: E402
from timing import WARM_S, median, rounds_of, warmed  # noqa: E402

COMPILER = {
    "Dynamo, until AOT": "bytecode_tracing",
    "AOT, joint graph": "aot_trace_joint_graph",
    "Inductor, forward and backward": "compile_fx_inner",
    "  lowering and code": "fx_codegen_and_compile",
    "  load code": "PyCodeCache.load_by_key_path",
    "  wait for Triton": "async_compile.wait",
    "  Triton in this process": "async_compile.precompile",
    "choose among configurations": "CachingAutotuner.benchmark_all_configs",
    "caches: load": "AOTAutogradCache.inductor_load",
    "keys of caches": "inductor_codecache_torch_key",
    "import Inductor": "inductor_import",
    "guards": "build_guards",
}
"""Names of torch's own stopwatches, which count all threads."""


IDLE = ("wait", "_worker", "_recv", "_recv_msg", "select", "poll", "_wait_for_tstate_lock")
"""Functions in which threads wait; sampled only where others wait in them too."""
RESULTS = Path(__file__).parent / "results"
SHORTEST_S = 0.05
TOTAL, RATE = "until the end of the first update", "ms per update"


class Spans:
    """Seconds spent in functions, by name; in recursion only the outermost call counts."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: Counter[str] = Counter()
        self.inside: set[tuple[int, str]] = set()

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        inside = (threading.get_ident(), name)
        if inside in self.inside:
            yield
            return
        self.inside.add(inside)
        began = time.perf_counter()
        try:
            yield
        finally:
            self.inside.discard(inside)
            self.seconds[name] += time.perf_counter() - began
            self.calls[name] += 1

    def wrap(self, owner: Any, method: str, name: str | Callable[..., str]) -> None:
        """Time every call of a method; leave out what this version does not have."""
        original = getattr(owner, method, None)
        if original is None:
            print(f"(no {method} here)", file=sys.stderr)
            return

        @wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.timed(name if isinstance(name, str) else name(*args)):
                return original(*args, **kwargs)

        setattr(owner, method, timed)


class Sampler(threading.Thread):
    """Notes every 10 ms which functions are being called, in all threads but its own."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.counts: Counter[str] = Counter()
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.01):
            for thread, frame in sys._current_frames().items():
                if thread != self.ident and frame.f_code.co_name not in IDLE:
                    self.counts.update(set(_names(frame)))


def _names(frame: Any) -> Iterator[str]:
    while frame is not None:
        code = frame.f_code
        yield f"{'/'.join(code.co_filename.split('/')[-3:])}:{code.co_name}"
        frame = frame.f_back


def watch(spans: Spans) -> None:
    """Time what a first update does."""
    from dreamlab.accel import ahead, cuda_graphs, first_update
    from dreamlab.accel.compile import CompiledMethod

    spans.wrap(CompiledMethod, "__call__", lambda m, *_: f"piece {m.method.__name__}, {m.enabled}")
    spans.wrap(cuda_graphs, "compare_with_reference", "comparison with the reference")
    turns = iter(("  reference update", "  fast update"))
    spans.wrap(first_update, "attempt", lambda *_: next(turns, "  more updates"))
    spans.wrap(first_update, "as_the_rule_says", "  optimizer alone")
    spans.wrap(cuda_graphs.GraphedMethod, "_rehearse", "rehearsal of own kernels")
    spans.wrap(ahead, "build", "wait for own kernels")
    spans.wrap(cuda_graphs.GraphedMethod, "_warm_up", "fast updates, uncaptured")
    spans.wrap(cuda_graphs.GraphedMethod, "_capture", "capture")
    with suppress(ImportError):
        from triton.compiler.compiler import CompiledKernel
        from triton.runtime.jit import JITFunction

        spans.wrap(JITFunction, "_do_compile", lambda k, *_: f"own kernel {k.fn.__name__}")
        spans.wrap(CompiledKernel, "_init_handles", "Triton's launchers and loading")
    with suppress(ImportError):
        from torch._inductor.runtime.triton_heuristics import CachingAutotuner

        spans.wrap(CachingAutotuner, "precompile", "Inductor's kernels: load")
        spans.wrap(CachingAutotuner, "benchmark_all_configs", "Inductor's kernels: choose")


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Return the rows of a start, and milliseconds per update afterwards."""
    sampler = Sampler()
    if args.samples:
        sampler.start()
    rows: dict[str, float] = {}
    lap = Laps(rows)
    import torch

    lap("import torch")
    import dreamer_update as bench

    from dreamlab.engine import accelerate  # noqa: F401
    from dreamlab.workflows import dreamer_v3  # noqa: F401

    lap("import dreamlab")
    spans = Spans()
    if args.stages:
        watch(spans)
        lap("import the compiler, for this table")
    if args.set:
        configure(args.set)
    gpu = args.device == "cuda"
    wait = torch.cuda.synchronize if gpu else (lambda: None)
    asked = bench.asked(args.size, args.kinds[0], args.device)
    workflow, autocast = bench.make(asked, "bf16" if gpu else "fp32", True)
    wait()
    lap("build")
    batch = bench.random_batch(workflow, 0)

    def update(i: int) -> None:
        with autocast():
            workflow.update(batch)

    for i, name in enumerate(("first update", "second update", "third update, captured")):
        update(i)
        wait()
        lap(name)
    rows[TOTAL] = sum(list(rows.values())[:-2])
    sampler.done.set()
    rows |= details(spans) if args.stages else {}
    warmed(update, wait, args.warm)
    rows[RATE] = 1e3 * median(rounds_of(update, wait, 3, args.updates))
    found = {"rows": rows, "samples": sampler.counts.most_common(args.samples), **counted()}
    return found | place(args.device)


class Laps:
    """Writes down how long each stage took, from the start of Python on."""

    def __init__(self, rows: dict[str, float]) -> None:
        self.rows, self.last = rows, START

    def __call__(self, name: str) -> None:
        now = time.perf_counter()
        self.rows[name], self.last = now - self.last, now


def configure(settings: list[str]) -> None:
    """Change settings of the compiler, which must exist."""
    import torch._inductor.config as inductor

    for setting in settings:
        path, _, value = setting.partition("=")
        *owners, name = path.split(".")
        owner: Any = inductor
        for part in owners:
            owner = getattr(owner, part)
        assert hasattr(owner, name), setting
        setattr(owner, name, ast.literal_eval(value))


def details(spans: Spans) -> dict[str, float]:
    """Return rows of stopwatches: ours, then torch's."""
    own = {k: v for k, v in spans.seconds.items() if k.startswith("own kernel ")}
    rows = {k: v for k, v in spans.seconds.items() if k not in own}
    calls = sum(spans.calls[k] for k in own)
    rows[f"own kernels, in all threads: {len(own)}, compiled {calls}"] = sum(own.values())
    rows |= {f"  {k}, x{spans.calls[k]}": v for k, v in own.items()}
    with suppress(ImportError):
        from torch._dynamo.utils import compilation_time_metrics

        for name, key in COMPILER.items():
            found = compilation_time_metrics.get(key, [])
            rows[f"{name} (x{len(found)})"] = sum(found)
    return rows


def counted() -> dict[str, Any]:
    """Return what torch counted: cache hits, misses, bypasses."""
    from torch._dynamo.utils import counters

    named = ("stats", "aot_autograd", "inductor", "autograd_cache_bypass", "graph_break")
    return {"counts": {k: dict(v) for k, v in counters.items() if k in named}}


def child(args: argparse.Namespace, kind: str, folder: Path) -> dict[str, Any]:
    """Start once in a process of its own, with the caches in this folder."""
    command = [sys.executable, __file__, kind, "--one", "--samples", str(args.samples)]
    command += ["--updates", str(args.updates), "--size", args.size]
    command += ["--device", args.device, "--warm", str(args.warm)]
    command += ["--stages"] if args.stages else []
    command += [word for setting in args.set for word in ("--set", setting)]
    places = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
    env = os.environ | {k: str(folder / v) for k, v in places.items()}
    began = time.perf_counter()
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=False)
    took = time.perf_counter() - began
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        print(f"{kind}: failed after {took:.0f} s\n{done.stdout}", flush=True)
        return {"rows": {}}
    return {"took_s": took, **json.loads(lines[-1])}


def stages(found: dict[str, Any]) -> list[str]:
    """Return a line for each piece of a start that took a while."""
    return [f"{s:8.2f}  {name}" for name, s in found["rows"].items() if abs(s) >= SHORTEST_S]


def tell(kind: str, state: str, found: dict[str, Any]) -> None:
    """Print the table of a start."""
    print(f"\n{kind}, {state}")
    for line in stages(found):
        print(f"  {line}")
    print("  ", json.dumps(found.get("counts", {})))
    for name, count in found.get("samples", []):
        print(f"  {count / 100:8.2f}  {name}")
    sys.stdout.flush()


def record(starts: list[dict[str, Any]], size: str) -> None:
    """Write the tables and the numbers where the pages link."""
    path = RESULTS / "first_update.json"
    starts = with_earlier(path, starts, ("kind", "state", "stages"))
    path.write_text(json.dumps(starts, indent=1) + "\n")
    first = starts[-1]
    lines = [
        "# DreamerV3: the time to the first update\n",
        f"{first['place']}, torch {first['torch']}, size {size}. From starting Python to the end "
        "of the first update, which compiles everything and is compared with the reference. "
        "`cold`: with empty caches of the compiler and of Triton. "
        "`python benchmarks/first_update.py --record` makes this.\n",
        "| input | caches | seconds | ms per update afterwards | commit |",
        "|---|---|---|---|---|",
    ]
    for s in (s for s in starts if not s["stages"]):
        total, rate = s["rows"][TOTAL], s["rows"][RATE]
        cells = (s["kind"], s["state"], f"{total:.1f}", f"{rate:.2f}", s["commit"])
        lines.append(f"| {' | '.join(cells)} |")
    for s in (s for s in starts if s["stages"]):
        head = (
            f"\n{s['kind']}, {s['state']}, with stopwatches (`--stages`), commit {s['commit']}:\n"
        )
        lines += [head, "```", *stages(s), "```"]
    (RESULTS / "first_update.md").write_text("\n".join(lines) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", default=["vectors", "images"])
    parser.add_argument("--size", default="12m")
    parser.add_argument("--device", default="cuda", help="cpu: to try this script")
    parser.add_argument("--warm-only", action="store_true")
    parser.add_argument("--keep", help="folder of the caches")
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE")
    parser.add_argument("--samples", type=int, default=0)
    parser.add_argument("--updates", type=int, default=50)
    parser.add_argument("--stages", action="store_true", help="what takes how long, in detail")
    parser.add_argument("--warm", type=float, default=WARM_S, help="seconds of updates before")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args)))
        return 0
    failed, starts = 0, []
    start = partial(child, args)
    with tempfile.TemporaryDirectory() as made:
        for kind in args.kinds:
            folder = Path(args.keep or made, kind)
            for state in ("warm",) if args.warm_only else ("cold", "warm"):
                found = start(kind, folder)
                failed += not found["rows"]
                tell(kind, state, found)
                if found["rows"]:
                    starts.append({"kind": kind, "state": state, "stages": args.stages, **found})
    if starts and args.record:
        record(starts, args.size)
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
