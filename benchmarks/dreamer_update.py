"""Milliseconds per DreamerV3 update, for any size and device.

    python benchmarks/dreamer_update.py [--sizes 1m 12m] [--kinds images vectors] [--device cuda]
        [--compile true|false] [--forms default dynamics adam]
        [--dreams default always never] [--together] [--check] [--profile] [--trace FOLDER]
        [--record]

One whole update (losses, gradients, clipping, optimizer, slow critic) on random data already on the
device: batch 16 x 64, dreams of 15 steps, bfloat16 on a GPU. `images` are 64 x 64 with 6 discrete
actions, `vectors` have 24 numbers with 6 continuous actions. Each size runs in a process of its
own, so that `first` is what a user waits: from importing to the end of the first update.
`--check` first takes an update from the same start as the code is written, step by step and in
float32, and once in the fast form, also in float32; it fails where they differ.
`--together` lets all sizes compile side by side and then times one after the other: for a GPU that
is lent by the minute; `first` is left out then. `dynamics` is the gradient through the dream with
an Adam for each part, `adam` the default with Adam for everything. `--dreams never` imagines step
by step, `always` with the kernels of accel/dream.py even for wide layers and in float32.
`--record` keeps the rows that it has not measured. `ms_soon` in the numbers is the time right after
the capture, `ms` that after two seconds of updates (`timing.py`).
The official figures are those of jax 0.11 on one H200, size 12m.
"""

from __future__ import annotations

import time

START = time.perf_counter()

import argparse  # noqa: E402
import json  # noqa: E402
import platform  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from contextlib import nullcontext  # noqa: E402
from functools import partial  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from recorded import with_earlier  # noqa: E402
from timing import WARM_S, beside, median, rounds_of, warmed  # noqa: E402

OFFICIAL = {("12m", "images"): 35.1, ("12m", "vectors"): 23.2}
OFFICIAL_POLICY = 5.2
BATCH, LENGTH, ENVS = 16, 64, 16
RESULTS = Path(__file__).parent / "results"
INTRO = (
    "One whole update on random data already on the device: batch 16 x 64, dreams of 15 steps. "
    "`python benchmarks/dreamer_update.py --record` makes this table; the official figures are "
    "those of jax 0.11 on one H200. `first update` is from starting Python, with empty caches; it "
    "is left out where sizes were compiled side by side (`--together`)."
)
FORMS: dict[str, dict[str, Any]] = {
    "default": {},
    "adam": {"optimizer": "adam"},
    "2023": {
        "rssm": {"norm": "layer"},
        "actor_grad": "dynamics",
        **dict.fromkeys(("optimizer", "actor_optimizer", "critic_optimizer"), "adam"),
    },
    "dynamics": {
        "actor_grad": "dynamics",
        **dict.fromkeys(("optimizer", "actor_optimizer", "critic_optimizer"), "adam"),
    },
}
DREAMS = ("default", "always", "never")
TOLERANCE = 1e-3
"""Largest difference of a loss, relative to its size, between the two forms in float32."""


def spec_of(kind: str) -> Any:
    from dreamlab.core.types import ArraySpec, Spec

    if kind == "images":
        return Spec({"image": ArraySpec((64, 64, 3), "uint8")}, ArraySpec((), "int64", classes=6))
    return Spec({"state": ArraySpec((24,))}, ArraySpec((6,), low=-1.0, high=1.0))


def asked(size: str, kind: str, device: str) -> argparse.Namespace:
    """Return the options of an update as a run computes it."""
    usual = {"forms": ["default"], "dreams": ["default"]}
    return argparse.Namespace(sizes=[size], kinds=[kind], device=device, **usual)


def make(args: argparse.Namespace, precision: str, compiled: bool) -> Any:
    """Return a workflow as a run would have it, and the precision that its updates run in."""
    import torch

    from dreamlab.accel.dream import Use
    from dreamlab.core.config import load
    from dreamlab.engine import accelerate
    from dreamlab.workflows.dreamer_v3 import DreamerV3, DreamerV3Config

    Use.when = args.dreams[0]
    torch.manual_seed(0)
    options = {"size": args.sizes[0], **FORMS[args.forms[0]]}
    config = load(DreamerV3Config, options, "workflow")
    workflow = DreamerV3(config, spec_of(args.kinds[0])).to(args.device)
    compute = accelerate.ComputeConfig(device=args.device, precision=precision, compile=compiled)  # type: ignore[arg-type]
    accelerate.set_up(compute, workflow, BATCH * LENGTH)
    return workflow, lambda: accelerate.autocast(compute, workflow.device)


def random_batch(workflow: Any, seed: int) -> Any:
    """Return windows of random steps; an episode begins here and there."""
    import torch

    from dreamlab.core.types import Batch

    g = torch.Generator().manual_seed(seed)
    shape, spec = (BATCH, LENGTH + 1), workflow.spec
    rand = lambda *s: torch.rand(*shape, *s, generator=g)  # noqa: E731
    obs = {
        k: (rand(*s.shape) * 256).to(torch.uint8) if s.is_image else rand(*s.shape) * 4 - 2
        for k, s in spec.obs.items()
    }
    classes = spec.action.classes
    action = (rand() * classes).long() if classes else rand(*spec.action.shape) * 2 - 1
    first = rand() < 0.02
    c = workflow.model.rssm.config
    extras = {
        "deter": (rand(c.deter) * 2 - 1).to(torch.bfloat16),
        "stoch": (rand(c.stoch) * c.classes).to(torch.uint8),
    }
    batch = Batch(obs, action, rand() * 2 - 1, first, torch.zeros_like(first),
                  rand() < 0.01, extras)  # fmt: skip
    return batch.to(workflow.device)


def check(args: argparse.Namespace) -> float:
    """Return the largest relative difference of a loss between the reference and the fast form."""
    import torch

    from dreamlab.accel.dispatch import reference_kernels

    losses: list[dict[str, float]] = []
    for fast in (False, True):
        workflow, _ = make(args, "fp32", fast)
        batch = random_batch(workflow, 1)
        with nullcontext() if fast else reference_kernels():
            for i in range(4):  # the fourth is a replay
                torch.manual_seed(i)
                metrics, _ = workflow.update(batch)
        losses.append({k: float(v) for k, v in metrics.items()})
    wrong = {
        k: abs(a - b) / max(abs(a), 1e-2)
        for (k, a), b in zip(losses[0].items(), losses[1].values(), strict=True)
    }
    worst = max(wrong, key=lambda k: wrong[k])
    print(f"check {name_of(args)}: worst {worst} {losses[0][worst]:.6f} {losses[1][worst]:.6f}")
    return wrong[worst]


def name_of(args: argparse.Namespace) -> str:
    return f"{args.sizes[0]}-{args.kinds[0]}-{form_of(args)}".replace(", ", "-").replace(" ", "-")


def form_of(args: argparse.Namespace) -> str:
    """Return the form, and how it dreams if not by default."""
    dreams = args.dreams[0]
    return args.forms[0] if dreams == "default" else f"{args.forms[0]}, dreams {dreams}"


def measure(args: argparse.Namespace) -> dict[str, Any]:
    import torch

    from dreamlab.runs.run import git_state

    compiled = args.compile == "true"
    precision = "bf16" if args.device == "cuda" else "fp32"
    workflow, autocast = make(args, precision, compiled)
    batches = [random_batch(workflow, i) for i in range(4)]
    wait = torch.cuda.synchronize if args.device == "cuda" else (lambda: None)

    def update(i: int) -> Any:
        with autocast():
            return workflow.update(batches[i % 4])

    update(0)
    wait()
    first = time.perf_counter() - START
    for i in range(3):
        update(i)
    wait()
    ready = time.perf_counter() - START
    out: dict[str, Any] = {"size": args.sizes[0], "kind": args.kinds[0], "form": form_of(args)}
    if args.together:  # what the first update took beside the others tells little
        print(f"{name_of(args)}: first after {first:.0f} s, ready {ready:.0f} s", file=sys.stderr)
        print("ready", flush=True)
        input()
    else:
        out |= {"first_s": first, "ready_s": ready}
    soon = rounds_of(update, wait, 1, args.updates)
    warmed(update, wait, args.warm)
    times = rounds_of(update, wait, args.rounds, args.updates)
    metrics, _ = update(0)
    out |= {"ms": 1e3 * median(times), "loss": float(metrics["loss"])}
    out |= {"ms_soon": 1e3 * soon[0], "ms_rounds": [1e3 * t for t in times]}
    out["policy_ms"] = 1e3 * policy_time(workflow, autocast, wait)
    out["parameters"] = sum(p.numel() for p in workflow.parameters() if p.requires_grad)
    if args.device == "cuda":
        out["gib"] = torch.cuda.max_memory_allocated() / 2**30
        out["gpu"] = torch.cuda.get_device_name()
    else:
        out["cpu"] = f"{torch.get_num_threads()} threads of {platform.processor() or 'a CPU'}"
    out["commit"] = git_state().get("commit", "")[:10]
    if args.profile:
        profile(update, args.trace and Path(args.trace) / f"{name_of(args)}.json.gz")
    return out


def policy_time(workflow: Any, autocast: Any, wait: Any) -> float:
    """Return seconds per decision for 16 environments, actions on the host."""
    import numpy as np

    from dreamlab.core.types import Mode, Step

    obs = {k: np.zeros((ENVS, *s.shape), s.dtype) for k, s in workflow.spec.obs.items()}
    no = np.zeros(ENVS, bool)
    step = Step(obs, np.zeros(ENVS, np.float32), no, no, no)
    state = workflow.initial_state(ENVS)

    def decide(i: int) -> None:
        nonlocal state
        decision = workflow.act(step, state, Mode.TRAIN)
        decision.action.cpu().numpy()
        state = decision.state

    with autocast():
        rounds_of(decide, wait, 1, 10)
        return median(rounds_of(decide, wait, 5, 100))


def profile(update: Any, trace: Path | None) -> None:
    """Print the kernels of one update; write down when each ran."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as prof:
        update(0)
        torch.cuda.synchronize()
    if trace:
        prof.export_chrome_trace(str(trace))
    print(torch._dynamo.utils.compile_times())
    rows = prof.key_averages()
    total = sum(r.self_device_time_total for r in rows)
    print(f"kernels {sum(r.count for r in rows)}, busy {total / 1e3:.2f} ms")
    for r in sorted(rows, key=lambda r: -r.self_device_time_total)[:45]:
        print(f"{r.self_device_time_total / 1e3:8.3f} ms x{r.count:4d}  {r.key[:110]}")


def table(rows: list[dict[str, Any]]) -> str:
    names = ("size", "input", "form", "parameters", "ms per update", "official JAX", "ratio",
             "policy, ms", "first update, s", "commit")  # fmt: skip
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for r in rows:
        same = "gpu" in r and r["form"] == "default"
        theirs = OFFICIAL.get((r["size"], r["kind"])) if same else None
        first = f"{r['first_s']:.0f}" if "first_s" in r else ""
        ratio = f"{theirs / r['ms']:.2f}" if theirs else ""
        cells = (
            r["size"], r["kind"], r["form"], f"{r['parameters'] / 1e6:.1f} M", f"{r['ms']:.2f}",
            theirs or "", ratio, f"{r['policy_ms']:.2f}", first, r["commit"],
        )  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def children(args: argparse.Namespace) -> list[list[str]]:
    """Return the commands that measure one size each."""
    flags = [f"--{f}" for f in ("check", "profile", "together") if getattr(args, f)]
    trace = ["--trace", args.trace] if args.trace else []
    rest = ["--device", args.device, "--compile", args.compile, "--updates", str(args.updates)]
    rest += ["--rounds", str(args.rounds), "--warm", str(args.warm), *flags, *trace]
    words = [sys.executable, __file__, "--one"]
    return [
        [*words, "--sizes", s, "--kinds", k, "--forms", f, "--dreams", d, *rest]
        for s in args.sizes
        for k in args.kinds
        for f in args.forms
        for d in args.dreams
    ]


def run_all(args: argparse.Namespace) -> Iterator[str]:
    """Yield what each child says, the first one's words first."""
    start = partial(subprocess.Popen, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    commands = children(args)
    if not args.together:
        for command in commands:
            yield start(command).communicate()[0]
        return
    started = [start(command) for command in commands]
    for child in started:  # each says that it is ready, or nothing if it failed
        assert child.stdout is not None
        child.stdout.readline()
    if args.hold:
        input()
    for child in started:
        yield child.communicate("\n")[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", default=["1m", "12m", "50m", "200m"])
    parser.add_argument("--kinds", nargs="+", default=["vectors", "images"])
    parser.add_argument("--forms", nargs="+", default=["default"], choices=FORMS)
    parser.add_argument("--dreams", nargs="+", default=["default"], choices=DREAMS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", default="true")
    parser.add_argument("--updates", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--beside", type=int, default=0, help="idle processes on the GPU, not to be recorded"
    )
    parser.add_argument("--warm", type=float, default=WARM_S, help="seconds of updates before")
    parser.add_argument("--together", action="store_true")
    parser.add_argument("--hold", action="store_true", help="time when a line comes in")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--trace", default="")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.record and args.beside:
        parser.error("--record tells times of a process alone, or of --together")
    if args.one:
        if args.check:
            wrong = check(args)
            print(json.dumps({"name": name_of(args), "difference": wrong}))
            return int(not wrong < TOLERANCE)
        print(json.dumps(measure(args)))
        return 0
    rows: list[dict[str, Any]] = []
    failed = 0
    with beside(args.beside):
        for said in run_all(args):
            print(said, flush=True)
            lines = said.splitlines()
            if lines and lines[-1].startswith("{"):
                rows.append(json.loads(lines[-1]))
            else:
                failed += 1
    if args.check:
        return failed + sum(not r["difference"] < TOLERANCE for r in rows)
    if args.record:
        name = "dreamer_update" if args.device == "cuda" else "dreamer_update_cpu"
        path = RESULTS / f"{name}.json"
        kept = with_earlier(path, rows, ("size", "kind", "form"))
        path.write_text(json.dumps(kept, indent=1) + "\n")
        write_table(RESULTS / f"{name}.json")
    print(table(rows))
    return failed


def write_table(path: Path) -> None:
    """Write the table beside recorded rows."""
    rows = json.loads(path.read_text())
    place = rows[0].get("gpu") or rows[0].get("cpu", "")
    text = f"# DreamerV3: time of an update\n\n{place}. {INTRO}\n\n{table(rows)}\n"
    path.with_suffix(".md").write_text(text)


if __name__ == "__main__":
    raise SystemExit(main())
