"""Milliseconds of a planned decision of TD-MPC2 by how the layers of its plans are computed.

    python benchmarks/plan_forms.py [--envs 1 16] [--forms rows tiles whole]
    python benchmarks/plan_forms.py --device cpu --size 1m   # a rehearsal: nothing is timed

`rows`, `tiles` and `whole` are `dreamlab.accel.plan_ops.FORMS`; with `-combo` the compiler puts
independent kernels into one. Each form and number of environments is built in a process of its own,
all at the same time, and compared with plain torch; then they are timed one after the other. A
decision's time is from arrays on the host to actions on the host, `graph` that of the captured
kernels alone. What fails says why, and the others go on.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import threading
import time
import traceback
from typing import Any

FORMS = {
    1: ["tiles", "rows", "rows-combo"],
    16: ["tiles", "whole", "whole-combo"],
}
KERNELS = 25


def choose(form: str, compiler: bool = True) -> None:
    """Compute plans in this form from now on."""
    from dreamlab.accel import plan_ops

    name, *how = form.split("-")
    plan_ops.CHOSEN = dict.fromkeys(plan_ops.CHOSEN, name)
    if name == "whole":  # the policy's own plans are few
        plan_ops.CHOSEN["few"] = "rows"
    if compiler and "combo" in how:
        import torch._inductor.config as inductor

        inductor.combo_kernels = True


def ready(args: argparse.Namespace) -> Any:
    """Check a form, and return a workflow whose decision is captured, and its context."""
    import torch
    from plan_kernels import check
    from tdmpc2_update import decide_once, make

    choose(args.forms[0])
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            wrong = check(argparse.Namespace(size=args.size, device=args.device, envs=args.envs))
        fault = said.getvalue().strip() if wrong else ""
    except Exception:
        fault = "check: " + traceback.format_exc(limit=-3)
    workflow, autocast = make(args.size, args.device, "bf16", args.device == "cuda")
    torch.nn.init.normal_(workflow.model.reward.out.weight, 0.0, 0.05)
    state = None
    with autocast():
        for _ in range(4):  # a graph is captured at the third
            state = decide_once(workflow, args.envs[0], state).state
    return workflow, autocast, state, fault


def graph_time(workflow: Any, rounds: int) -> float:
    """Return the seconds of a replay of a decision's graph."""
    import torch

    (captured,) = (c for c in workflow.decide.graphs.values() if c.graph is not None)
    times: list[float] = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        captured.graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1e-3 * start.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def kernels_of(decide: Any) -> list[str]:
    """Return the kernels of a decision, as lines."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as prof:
        for _ in range(3):
            decide()
        torch.cuda.synchronize()
    rows = sorted(prof.key_averages(), key=lambda r: -r.self_device_time_total)
    total, count = sum(r.self_device_time_total for r in rows) / 3, sum(r.count for r in rows) // 3
    lines = [f"    {count} kernels and copies, busy {total:.0f} us"]
    for r in rows[:KERNELS]:
        time_of, count = r.self_device_time_total, r.count / 3
        each = time_of / r.count
        lines.append(f"    {time_of / 3:7.1f} us = {count:5.1f} x {each:5.2f}  {r.key[:80]}")
    return lines


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Build a form; measure it when a line comes in."""
    try:
        workflow, autocast, state, fault = ready(args)
    except Exception:
        print("ready", flush=True)
        return {"fault": traceback.format_exc(limit=-4)}
    print("ready", flush=True)
    input()
    if args.device != "cuda":
        return {"fault": fault}
    from tdmpc2_update import decide_once

    times: list[float] = []
    with autocast():
        for _ in range(args.decisions):
            began = time.perf_counter()
            state = decide_once(workflow, args.envs[0], state).state
            times.append(time.perf_counter() - began)
        found: dict[str, Any] = {
            "ms": 1e3 * sorted(times)[len(times) // 2],
            "mean_ms": 1e3 * sum(times) / len(times),
            "graph_ms": 1e3 * graph_time(workflow, 50),
            "fault": fault,
        }
        try:
            found["kernels"] = kernels_of(lambda: decide_once(workflow, args.envs[0], state))
        except Exception as error:
            found["kernels"] = [f"    no profile: {error}"]
    return found


def started(args: argparse.Namespace, envs: int, form: str) -> subprocess.Popen[str]:
    """Start building a form."""
    words = [sys.executable, __file__, "--one", "--size", args.size, "--device", args.device]
    words += ["--envs", str(envs), "--forms", form, "--decisions", str(args.decisions)]
    env = {"TORCHINDUCTOR_COMPILE_THREADS": "1", **os.environ}
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    child = subprocess.Popen(words, **pipes, text=True, env=env)
    timer = threading.Timer(args.limit, child.kill)  # a graph that hangs must not hold the others
    timer.daemon = True
    timer.start()
    return child


def report(envs: int, form: str, said: str) -> None:
    """Print what a process found."""
    try:
        found = json.loads(said.splitlines()[-1])
    except (IndexError, ValueError):
        print(f"{envs} envs, {form}: the process ended without a result: {said[-500:]}")
        return
    if "ms" in found:
        words = f"{found['ms']:.3f} ms (mean {found['mean_ms']:.3f}), graph {found['graph_ms']:.3f}"
        print(f"{envs} envs, {form}: {words}")
    if found["fault"]:
        print(f"{envs} envs, {form}: {found['fault']}")
    print("\n".join(found.get("kernels", [])), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="5m")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--envs", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--forms", nargs="+", default=None)
    parser.add_argument("--decisions", type=int, default=200)
    parser.add_argument("--limit", type=float, default=240.0, help="seconds for each process")
    parser.add_argument("--hold", action="store_true", help="time when a line comes in")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args)))
        return 0
    work = [(n, f) for n in args.envs for f in args.forms or FORMS.get(n, FORMS[16])]
    children = [(n, f, started(args, n, f)) for n, f in work]
    for _, _, child in children:
        assert child.stdout is not None
        child.stdout.readline()
    if args.hold:
        input()
    for envs, form, child in children:
        try:
            report(envs, form, child.communicate("\n", timeout=60)[0])
        except (subprocess.TimeoutExpired, BrokenPipeError) as error:
            child.kill()
            print(f"{envs} envs, {form}: {error}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
