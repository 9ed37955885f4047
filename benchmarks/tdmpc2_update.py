"""Milliseconds per update and per planned decision of TD-MPC2, for any size and device.

    python benchmarks/tdmpc2_update.py [--sizes 5m] [--precisions bf16 fp32] [--record]
    python benchmarks/tdmpc2_update.py --device cpu --sizes 1m 5m --compile false true

One whole update (targets, both losses, both optimizers, target critics) on random data already on
the device: batch 256, horizon 3, observations of 24 numbers, actions of 6. A decision is planned
as published (6 iterations of 512 plans, 24 of them the policy's) for each number of environments,
from arrays on the host to actions on the host. Each row runs in a process of its own, so that
`first` is what a user waits: from importing to the end of the first update. `--check` first takes
updates from the same start as the code is written and in the fast form, in float32, then compares
the parts of a decision in bfloat16 (`plan_kernels.py --check`), and fails where they differ. The
original's figures are those of its compiled code on one H200, size 5m.
"""

from __future__ import annotations

import time

START = time.perf_counter()

import argparse  # noqa: E402
import json  # noqa: E402
import platform  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
from contextlib import nullcontext  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from timing import WARM_S, beside, median, rounds_of, warmed  # noqa: E402

ORIGINAL = {"ms": 11.0, "decision_ms_1": 2.8, "first_s": 123.0}
BATCH, HORIZON = 256, 3
CHECKED = [1, 16]
"""Environments for which decisions are checked."""
RESULTS = Path(__file__).parent / "results"
INTRO = (
    "One whole update on random data already on the device (batch 256, horizon 3), and one "
    "decision planned with 6 x 512 candidates, from the host and back. "
    "`python benchmarks/tdmpc2_update.py --record` makes this table. The original, compiled, on "
    "one H200: 11.0 ms per update, 2.8 ms per decision of one environment, 123 s before the first "
    "update (size 5m)."
)
TOLERANCE = 1e-3
"""Largest difference of a loss, relative to its size, between the two forms in float32."""


def make(size: str, device: str, precision: str, compiled: bool) -> Any:
    """Return a workflow as a run would have it, and the context that it computes in."""
    import torch

    from dreamlab.accel.compile import compile_methods
    from dreamlab.core.config import load
    from dreamlab.core.types import ArraySpec, Spec
    from dreamlab.core.workflow import marked
    from dreamlab.engine import accelerate
    from dreamlab.workflows.tdmpc2 import TDMPC2, TDMPC2Config

    torch.manual_seed(0)
    spec = Spec({"state": ArraySpec((24,))}, ArraySpec((6,), low=-1.0, high=1.0), 500)
    workflow = TDMPC2(load(TDMPC2Config, {"size": size}, "workflow"), spec).to(device)
    on_gpu = device == "cuda"
    asked = compiled if on_gpu else None
    compute = accelerate.ComputeConfig(device=device, precision=precision, compile=asked)  # type: ignore[arg-type]
    accelerate.set_up(compute, workflow, BATCH * (HORIZON + 1))
    if compiled and not on_gpu:  # a run would not: what it gains here is what this tells
        compile_methods(workflow, except_for=marked(TDMPC2, "capturable"))
    return workflow, lambda: accelerate.autocast(compute, workflow.device)


def random_batch(workflow: Any, seed: int) -> Any:
    """Return windows of random steps."""
    import torch

    from dreamlab.core.types import Batch

    g = torch.Generator().manual_seed(seed)
    rand = lambda *s: torch.rand(BATCH, HORIZON + 1, *s, generator=g)  # noqa: E731
    no = torch.zeros(BATCH, HORIZON + 1, dtype=torch.bool)
    obs, action = {"state": rand(24) * 4 - 2}, rand(6) * 2 - 1
    return Batch(obs, action, rand() * 2 - 1, no, no, no).to(workflow.device)


def check(size: str, device: str) -> float:
    """Return the largest relative difference of a loss between the reference and the fast form."""
    import torch

    from dreamlab.accel.dispatch import reference_kernels

    losses: list[dict[str, float]] = []
    for fast in (False, True):
        workflow, _ = make(size, device, "fp32", fast)
        batch = random_batch(workflow, 1)
        with nullcontext() if fast else reference_kernels():
            for i in range(4):  # the fourth is a replay
                torch.manual_seed(i)
                metrics = workflow.update(batch)
        losses.append({k: float(v) for k, v in metrics.items() if k.startswith("loss")})
    wrong = {k: abs(a - losses[1][k]) / max(abs(a), 1e-2) for k, a in losses[0].items()}
    worst = max(wrong, key=lambda k: wrong[k])
    print(f"check {size}: worst {worst} {losses[0][worst]:.6f} {losses[1][worst]:.6f}")
    return wrong[worst]


def check_decision(size: str, device: str) -> float:
    """Return how far the second replay of a decision is from the first run, at most.

    For the numbers of environments in `CHECKED`: plans of one are scored in tiles, those of many by
    the library's products. On a GPU the parts are compared with the reference as well: infinite if
    one is wrong.
    """
    import torch
    from plan_kernels import check as check_parts

    from dreamlab.core.types import Mode

    parts = argparse.Namespace(size=size, device=device, envs=CHECKED)
    if device == "cuda" and check_parts(parts):
        return float("inf")
    workflow, autocast = make(size, device, "bf16", True)
    torch.nn.init.normal_(workflow.model.reward.out.weight, 0.0, 0.05)
    worst = 0.0
    for num in CHECKED:
        state, no = workflow.initial_state(num), torch.zeros(num, dtype=torch.bool, device=device)
        obs = {"state": torch.linspace(-1, 1, 24 * num, device=device).view(num, 24)}
        with autocast(), torch.no_grad():
            found = [workflow.decide(obs, no, state, Mode.FIXED).action for _ in range(4)]
        off = float((found[0] - found[-1]).abs().max())
        print(f"check {size}: a decision for {num}, replayed, differs by {off:.2e}")
        worst = max(worst, off) if off == off else float("inf")
    return worst


def measure(args: argparse.Namespace, size: str, precision: str, compiled: bool) -> dict[str, Any]:
    import torch

    from dreamlab.runs.run import git_state

    workflow, autocast = make(size, args.device, precision, compiled)
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
    print(f"{size}: first after {first:.0f} s, ready {ready:.0f} s", file=sys.stderr, flush=True)
    soon = rounds_of(update, wait, 1, args.updates)
    warmed(update, wait, args.warm)
    times = rounds_of(update, wait, args.rounds, args.updates)
    out = {"size": size, "precision": precision, "compiled": compiled}
    out |= {"ms": 1e3 * median(times), "first_s": first, "ready_s": ready}
    out |= {"ms_soon": 1e3 * soon[0], "ms_rounds": [1e3 * t for t in times]}
    out["loss"] = float(update(0)["loss"])
    for num in args.envs:
        took = decision_times(workflow, autocast, num, args)
        out[f"decision_ms_{num}"] = 1e3 * median(took)
        out[f"decision_rounds_{num}"] = [1e3 * t for t in took]
        print(json.dumps(out), file=sys.stderr, flush=True)  # in case the time ends
    out["parameters"] = sum(p.numel() for p in workflow.parameters() if p.requires_grad)
    if args.device == "cuda":
        out["gib"] = torch.cuda.max_memory_allocated() / 2**30
        out["gpu"] = torch.cuda.get_device_name()
    else:
        out["cpu"] = f"{torch.get_num_threads()} threads of {platform.processor() or 'a CPU'}"
    out["commit"] = git_state().get("commit", "")[:10]
    if args.profile:
        profile(lambda: update(0))
        with autocast(), torch.no_grad():
            profile(lambda: decide_once(workflow, 1))
    return out


def decide_once(workflow: Any, num: int, state: Any = None) -> Any:
    """Return a decision for environments that all show zeros."""
    import numpy as np

    from dreamlab.core.types import Mode, Step

    no = np.zeros(num, bool)
    step = Step({"state": np.zeros((num, 24), np.float32)}, no.astype(np.float32), no, no, no)
    state = workflow.initial_state(num) if state is None else state
    decision = workflow.act(step, state, Mode.TRAIN)
    decision.action.cpu().numpy()
    return decision


def decision_times(workflow: Any, autocast: Any, num: int, args: argparse.Namespace) -> list[float]:
    """Return seconds per planned decision of this many environments, in several rounds."""
    state = None

    def decide(i: int) -> None:
        nonlocal state
        state = decide_once(workflow, num, state).state

    wait = lambda: None  # noqa: E731 (a decision ends on the host)
    with autocast():
        rounds_of(decide, wait, 1, 4)  # a graph is captured at the third
        warmed(decide, wait, args.warm / 4)
        return rounds_of(decide, wait, args.rounds, args.decisions)


def profile(run: Any) -> None:
    """Print the kernels of one call."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as prof:
        run()
        torch.cuda.synchronize()
    rows = prof.key_averages()
    total = sum(r.self_device_time_total for r in rows)
    print(f"kernels {sum(r.count for r in rows)}, busy {total / 1e3:.2f} ms")
    for r in sorted(rows, key=lambda r: -r.self_device_time_total)[:30]:
        print(f"{r.self_device_time_total / 1e3:8.3f} ms x{r.count:4d}  {r.key[:110]}")


def table(rows: list[dict[str, Any]]) -> str:
    made = "decision_ms_"
    envs = sorted({int(k.removeprefix(made)) for r in rows for k in r if k.startswith(made)})
    names = ["size", "precision", "compiled", "parameters", "ms per update", "updates/s"]
    names += [f"ms per decision, {n} envs" for n in envs] + ["first update, s", "commit"]
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for r in rows:
        cells = [r["size"], r["precision"], "yes" if r["compiled"] else "no"]
        cells += [f"{r['parameters'] / 1e6:.1f} M", f"{r['ms']:.2f}", f"{1e3 / r['ms']:.0f}"]
        cells += [f"{r[f'decision_ms_{n}']:.2f}" for n in envs]
        cells += [f"{r['first_s']:.0f}", r["commit"]]
        lines.append(f"| {' | '.join(cells)} |")
    if any("gpu" in r and r["size"] == "5m" for r in rows):
        theirs = [f"{ORIGINAL[f'decision_ms_{n}']}" if n == 1 else "" for n in envs]
        cells = ["5m", "the original", "yes", "", f"{ORIGINAL['ms']}", "91", *theirs]
        cells += [f"{ORIGINAL['first_s']:.0f}", ""]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", default=["1m", "5m"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precisions", nargs="+", default=None)
    parser.add_argument("--compile", nargs="+", default=["true"])
    parser.add_argument("--envs", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--updates", type=int, default=50)
    parser.add_argument("--decisions", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--beside", type=int, default=0, help="idle processes on the GPU, not to be recorded"
    )
    parser.add_argument("--warm", type=float, default=WARM_S, help="seconds of updates before")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.record and args.beside:
        parser.error("--record tells times of a process alone")
    return args


def rows_of(args: argparse.Namespace) -> list[tuple[str, str, str]]:
    precisions = args.precisions or (["bf16", "fp32"] if args.device == "cuda" else ["fp32"])
    return [(s, p, c) for s in args.sizes for p in precisions for c in args.compile]


def main() -> int:
    args = parse()
    if args.one:
        size, precision, compiled = rows_of(args)[0]
        if args.check:
            wrong = max(check(size, args.device), check_decision(size, args.device))
            print(json.dumps({"size": size, "difference": wrong}))
            return int(not wrong < TOLERANCE)
        print(json.dumps(measure(args, size, precision, compiled == "true")))
        return 0
    rows: list[dict[str, Any]] = []
    numbers = {"updates": args.updates, "decisions": args.decisions, "rounds": args.rounds}
    numbers |= {"warm": args.warm}
    for size, precision, compiled in rows_of(args):
        command = [
            sys.executable, __file__, "--one", "--sizes", size, "--precisions", precision,
            "--compile", compiled, "--device", args.device, "--envs", *map(str, args.envs),
            *(x for k, v in numbers.items() for x in (f"--{k}", str(v))),
            *(f"--{f}" for f in ("check", "profile") if getattr(args, f)),
        ]  # fmt: skip
        with beside(args.beside):
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        print(done.stdout, flush=True)
        if done.returncode:
            return done.returncode
        rows.append(json.loads(done.stdout.splitlines()[-1]))
    if args.check:
        return 0
    if args.record:
        name = "tdmpc2_update" if args.device == "cuda" else "tdmpc2_update_cpu"
        (RESULTS / f"{name}.json").write_text(json.dumps(rows, indent=1) + "\n")
        place = rows[0].get("gpu") or rows[0].get("cpu", "")
        text = (
            f"# TD-MPC2: time of an update and of a decision\n\n{place}. {INTRO}\n\n{table(rows)}\n"
        )
        (RESULTS / f"{name}.md").write_text(text)
    print(table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
