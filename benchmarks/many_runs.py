"""Several runs on one GPU: taking turns, under NVIDIA's MPS, or in one process on streams.

    python benchmarks/many_runs.py [--kinds dreamer tdmpc2] [--ways processes mps streams]
        [--counts 1 2 4] [--seconds 1.5] [--warm] [--record]
    python benchmarks/many_runs.py --device cpu --tiny --counts 1 2 --seconds 0.1

Updates only, on random data already on the GPU: DreamerV3 12m with vectors (16 x 64, dreams of 15
steps) and TD-MPC2 5m (batch 256, horizon 3), in bfloat16, captured. `processes`: so many processes
that take turns on the GPU. `mps`: the same under NVIDIA's MPS, if it is installed. `streams`: so
many workflows in one process, each with its own captured update, GPU stream and random numbers.
First one process of each kind fills the compiler's caches (not with `--warm`), then everything
starts at once and waits; each combination is timed alone, for so many seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

RESULTS = Path(__file__).parent / "results"
SIZES = {"dreamer": ("DreamerV3", "12m"), "tdmpc2": ("TD-MPC2", "5m")}
WAYS = ("processes", "mps", "streams")
AHEAD = 3
"""Updates that the host may be ahead of the GPU: without a bound it would queue hundreds."""
UNTIL_CAPTURED = 4
SOON_S = 0.2
"""From telling processes to begin until they do."""
LEAD_S = 1.0
"""Of updates that are not counted: an idle GPU lowers its clock."""
ONE_COMPILER = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
"""For processes that find everything in the caches: they start no pool of compilers."""
MARK = "@"
"""Before each line that is for the command."""
FORMS = 1024
"""Forms of one function that the compiler may keep: every workflow of a process adds its own."""


# -- one process with one workflow or several -----------------------------------------------------


class Seed:
    """One workflow with its batches, its GPU stream and its random numbers."""

    def __init__(self, args: argparse.Namespace, kind: str, seed: int, check: bool) -> None:
        import torch

        self.cuda = args.device == "cuda"
        self.stream: Any = torch.cuda.Stream() if self.cuda else None
        self.chance: Any = None
        if self.cuda:
            self.chance = torch.Generator("cuda").manual_seed(seed).graphsafe_get_state()
        self.done: deque[Any] = deque()
        with self.active():
            self.workflow, self.autocast, self.batches = build(args, kind)
            torch.manual_seed(seed)
            if not check and self.cuda:
                self.workflow.update.check = None  # that of the first workflow is enough
            if self.cuda:
                torch.cuda.synchronize()
            for _ in range(UNTIL_CAPTURED):
                self.launch(0)
            self.wait()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Compute on this stream with these random numbers inside the block.

        A graph keeps the generator state that it was captured with, and every replay writes its
        position to the GPU: with one state for all, replays on two streams would overwrite it.
        """
        if not self.cuda:
            yield
            return
        import torch

        torch.cuda.init()  # before it there are no generators
        default = torch.cuda.default_generators[torch.cuda.current_device()]
        outside = default.graphsafe_get_state()
        default.graphsafe_set_state(self.chance)
        try:
            with torch.cuda.stream(self.stream):
                yield
        finally:
            default.graphsafe_set_state(outside)

    def launch(self, i: int) -> Any:
        """Launch an update."""
        with self.active(), self.autocast():
            metrics = self.workflow.update(self.batches[i % len(self.batches)])
        return metrics[0] if isinstance(metrics, tuple) else metrics

    def update(self, i: int) -> None:
        """Launch an update; wait if the GPU is too far behind."""
        self.launch(i)
        if self.cuda:
            self.done.append(self.stream.record_event())
            if len(self.done) > AHEAD:
                self.done.popleft().synchronize()

    def wait(self) -> None:
        """Wait for all updates."""
        self.done.clear()
        if self.cuda:
            self.stream.synchronize()


def build(args: argparse.Namespace, kind: str) -> tuple[Any, Any, list[Any]]:
    """Return a workflow as a run would have it, the context it computes in, and batches."""
    import torch._dynamo.config as dynamo

    dynamo.recompile_limit = dynamo.accumulated_recompile_limit = FORMS
    size = "1m" if args.tiny else SIZES[kind][1]
    precision, compiled = ("bf16", True) if args.device == "cuda" else ("fp32", False)
    if kind == "tdmpc2":
        import tdmpc2_update as of

        workflow, autocast = of.make(size, args.device, precision, compiled)
    else:
        import dreamer_update as of

        workflow, autocast = of.make(of.asked(size, "vectors", args.device), precision, compiled)
    return workflow, autocast, [of.random_batch(workflow, i) for i in range(4)]


def timed(seeds: Sequence[Seed], begin: float, seconds: float) -> list[float]:
    """Return the updates per second of each of these, taken in turn from a moment on.

    Those of all processes end their lead at the same time, and compute until the others end too.
    """
    time.sleep(max(begin - time.time(), 0.0))
    lead = LEAD_S if seeds[0].cuda else 0.0
    in_turn(seeds, lead)
    began = time.perf_counter()
    rounds = in_turn(seeds, seconds)
    rate = rounds / (time.perf_counter() - began)
    in_turn(seeds, lead / 4)  # beside those that are not done yet
    return [rate] * len(seeds)


def in_turn(seeds: Sequence[Seed], seconds: float) -> int:
    """Update each in turn for so long, at least once; return how often."""
    until, rounds = time.perf_counter() + seconds, 0
    while time.perf_counter() < until or not rounds:
        for seed in seeds:
            seed.update(rounds)
        rounds += 1
    for seed in seeds:
        seed.wait()
    return rounds


def serve(args: argparse.Namespace) -> None:
    """Build what is asked for, say so, and time as often as a line asks for it."""
    import torch

    kind, number, began = args.kinds[0], args.counts[0], time.perf_counter()
    seeds: list[Seed] = []
    failed = ""
    for i in range(number):
        try:
            seeds.append(Seed(args, kind, i, check=i == 0))
        except Exception as error:
            if not seeds:
                raise
            failed = f"{type(error).__name__}: {error}"[:300]  # the others can be timed
            break
    launched = [s.launch(0)["loss"] for s in seeds]
    for s in seeds:
        s.wait()  # each computes on a stream of its own, where nothing else reads
    loss = [float(x) for x in launched]
    gib = torch.cuda.max_memory_allocated() / 2**30 if args.device == "cuda" else 0.0
    where = torch.cuda.get_device_name() if args.device == "cuda" else "a CPU"
    ready = {"ready": len(seeds), "failed": failed, "gib": gib, "loss": loss}
    ready |= {"ready_s": time.perf_counter() - began, "place": where, "torch": torch.__version__}
    tell(ready)
    for line in sys.stdin:
        count, begin, seconds = json.loads(line)
        tell(timed(seeds[:count], begin, seconds))


def tell(what: Any) -> None:
    """Say something to the process that started this one."""
    print(MARK + json.dumps(what), flush=True)


# -- the command ----------------------------------------------------------------------------------


@dataclass
class Child:
    """A process that waits to be timed."""

    process: subprocess.Popen[str]
    lines: queue.Queue[str]
    ready: dict[str, Any]

    def ask(self, *what: Any) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it ended: `hear` says so
            self.process.stdin.write(json.dumps(what) + "\n")
            self.process.stdin.flush()

    def hear(self, until: float) -> Any:
        """Return the next thing it says; None if it ends or says nothing in time."""
        try:
            line = self.lines.get(timeout=max(until - time.monotonic(), 0.01))
        except queue.Empty:
            return None
        return json.loads(line) if line else None


def start(args: argparse.Namespace, kind: str, number: int, more: dict[str, str]) -> Child:
    """Start a process with so many workflows."""
    words = ["--device", args.device, "--kinds", kind, "--counts", str(number)]
    words += ["--tiny"] if args.tiny else []
    process = subprocess.Popen(
        [sys.executable, __file__, "--serve", *words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **more},
    )  # fmt: skip
    lines: queue.Queue[str] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(MARK):
                lines.put(line.removeprefix(MARK))
        lines.put("")

    threading.Thread(target=read, daemon=True).start()
    return Child(process, lines, {})


def get_ready(children: Sequence[Child], until: float, say: str) -> list[Child]:
    """Return those that became ready in time; end the others."""
    found: list[Child] = []
    for child in children:
        child.ready = child.hear(until) or {}
        if child.ready:
            print(f"{say}: ready in {child.ready['ready_s']:.0f} s", flush=True)
            found.append(child)
        else:
            print(f"FAILED {say}: a process is not ready", flush=True)
            child.process.kill()
        if child.ready.get("failed"):
            print(f"{say}: {child.ready['ready']} workflows, then {child.ready['failed']}")
    return found


def end(children: Sequence[Child]) -> None:
    """End processes that wait."""
    for child in children:
        assert child.process.stdin is not None
        with suppress(BrokenPipeError):
            child.process.stdin.close()
    for child in children:
        try:
            child.process.wait(20)
        except subprocess.TimeoutExpired:
            child.process.kill()


def fill_caches(args: argparse.Namespace, until: float) -> None:
    """Let one process of each kind compile everything."""
    print("filling the compiler's caches", flush=True)
    children = [start(args, kind, 1, {}) for kind in args.kinds]
    end(get_ready(children, until, "caches"))


def measure(
    args: argparse.Namespace, way: str, kind: str, children: Sequence[Child]
) -> list[dict[str, Any]]:
    """Return the rates of each number of runs."""
    rows: list[dict[str, Any]] = []
    for count in args.counts:
        there = children[0].ready["ready"] if way == "streams" else len(children)
        if count > there:
            print(f"{way} {kind}: {there} of {count} are there", flush=True)
            continue
        asked = children[:1] if way == "streams" else children[:count]
        each = count if way == "streams" else 1
        begin = time.time() + SOON_S
        for child in asked:
            child.ask(each, begin, args.seconds)
        until = time.monotonic() + 10 * args.seconds + 60
        found = [child.hear(until) for child in asked]
        rates = [rate for one in found if one for rate in one]
        if len(rates) < count:
            print(f"FAILED {way} {kind}: {len(rates)} of {count} answered", flush=True)
            break
        ready = children[0].ready
        row = {"kind": kind, "size": "1m" if args.tiny else SIZES[kind][1], "way": way}
        row |= {"runs": count, "total": sum(rates), "each": sum(rates) / count, "rates": rates}
        row |= {"process_gib": ready["gib"], "place": ready["place"], "torch": ready["torch"]}
        rows.append(row)
        print(f"{way} {kind} {count}: {row['total']:.1f} updates/s", flush=True)
    return rows


def measure_all(args: argparse.Namespace, variables: dict[str, str]) -> list[dict[str, Any]]:
    """Start everything, then time one combination after another."""
    if not args.warm:
        fill_caches(args, time.monotonic() + args.patience)
    until = time.monotonic() + args.patience  # what filling took is not theirs
    most, rows = max(args.counts), []
    crews: list[tuple[str, str, list[Child]]] = []
    for way in args.ways:
        if way == "mps" and not variables:
            continue
        one = way == "streams"
        for kind in args.kinds:
            number = 1 if one else most
            more = ONE_COMPILER | (variables if way == "mps" else {})
            crews.append(
                (way, kind, [start(args, kind, most if one else 1, more) for _ in range(number)])
            )
    for i, (way, kind, children) in enumerate(crews):
        crews[i] = (way, kind, get_ready(children, until, f"{way} {kind}"))
    print("everything waits", flush=True)
    for way, kind, children in crews:
        if children:
            rows += measure(args, way, kind, children)
    end([child for _, _, children in crews for child in children])
    return rows


@contextmanager
def environment(args: argparse.Namespace) -> Iterator[dict[str, str]]:
    """Give all processes one cache and a share of the cores; yield the variables of MPS."""
    from dreamlab.sweeps.gpu_sharing import Mps, cores_each

    say: Callable[[str], None] = lambda text: print(text, flush=True)  # noqa: E731
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="many_")))
        os.environ["OMP_NUM_THREADS"] = str(cores_each(max(args.counts)))
        variables: dict[str, str] = {}
        if "mps" in args.ways and args.device == "cuda":
            daemon = Mps(folder, say)
            stack.callback(daemon.stop)
            variables = daemon.start()
        yield variables


def table(rows: list[dict[str, Any]]) -> str:
    """Return a line for each combination, and what it gives over one run."""
    names = ("algorithm", "size", "runs", "how", "updates/s each", "total", "of one run")
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for r in sorted(rows, key=lambda r: (r["kind"], r["runs"], WAYS.index(r["way"]))):
        alone = [x["total"] for x in rows if x["runs"] == 1 and x["kind"] == r["kind"]]
        gain = f"{r['total'] / alone[0]:.2f}" if alone else ""
        cells = (SIZES[r["kind"]][0], r["size"], r["runs"], r["way"], f"{r['each']:.1f}",
                 f"{r['total']:.1f}", gain)  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def record(rows: list[dict[str, Any]], device: str) -> None:
    """Write the table and the numbers where the pages link."""
    from dreamlab.runs.run import git_state

    name = "many_runs" if device == "cuda" else "many_runs_cpu"
    commit = git_state().get("commit", "")[:10]
    (RESULTS / f"{name}.json").write_text(json.dumps({"commit": commit, "rows": rows}) + "\n")
    intro = (
        f"{rows[0]['place']}, torch {rows[0]['torch']}, commit {commit}. Updates only, on random "
        "data. `processes` take turns, `mps`: under NVIDIA's MPS, `streams`: so many workflows in "
        "one process. `python benchmarks/many_runs.py --record` makes this."
    )
    text = f"# Many runs on one GPU\n\n{intro}\n\n{table(rows)}\n"
    (RESULTS / f"{name}.md").write_text(text)


def main() -> int:
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    parser.add_argument("--kinds", nargs="+", default=list(SIZES), choices=SIZES)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--counts", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--seconds", type=float, default=1.5, help="of each timing")
    parser.add_argument("--patience", type=float, default=240.0, help="seconds to be ready in")
    parser.add_argument("--warm", action="store_true", help="the compiler's caches are filled")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tiny", action="store_true", help="size 1m, for trying it out")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args)
        return 0
    with environment(args) as variables:
        rows = measure_all(args, variables)
    if not rows:
        return 1
    print(table(rows))
    if args.record:
        record(rows, args.device)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
