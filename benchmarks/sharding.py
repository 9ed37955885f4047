"""Memory of each process that trains a large model, with whole and with sharded weights.

    python benchmarks/sharding.py                        # every model, whole by one and sharded by two processes
    python benchmarks/sharding.py --only tdmpc2_317m --record

Each measurement is in processes of its own, connected by gloo on this machine: how much memory each
holds once the workflow is built, at most while it is built, and at most during two updates of a
small batch. What the process held before (the libraries) is subtracted.
"""  # noqa: E501

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from dreamlab.runs.git_state import git_state
from dreamlab.runs.run import hardware

RESULTS = Path(__file__).parent / "results" / "sharding"
ABOUT = "about"
"""Beside the numbers of processes: commit and machine, empty where they were not recorded."""
BATCH, LENGTH, UPDATES = 2, 8, 2
GIB = 2**30
UNET = (
    "workflow.policy={_target_: diffusion, obs_steps: 2, horizon: 8, execute: 4,"
    " net: {_target_: unet1d, widths: [512, 1024, 2048], time_dim: 128}}"
)
MODELS = {
    "dreamer_v3_400m": ("dreamer_dmc_proprio", "workflow.size=400m"),
    "tdmpc2_317m": ("tdmpc2_pendulum", "workflow.size=317m"),
    "unet_248m": ("imitation_pendulum", UNET),
}
SMALL = {
    "dreamer_v3_400m": ("dreamer_cartpole", "workflow.size=1m"),
    "tdmpc2_317m": ("tdmpc2_pendulum", "workflow.size=1m"),
    "unet_248m": ("imitation_pendulum", UNET.replace("[512, 1024, 2048]", "[64, 128]")),
}
"""The same code in seconds: `--small`."""


def random_batch(workflow: Any, seed: int) -> Any:
    """Return windows of random steps, with the latents that some workflows keep beside them."""
    import torch

    from dreamlab.core.types import Batch

    g, shape, spec = torch.Generator().manual_seed(seed), (BATCH, LENGTH + 1), workflow.spec
    rand = lambda *s: torch.rand(*shape, *s, generator=g)  # noqa: E731
    obs = {k: rand(*s.shape) * 2 - 1 for k, s in spec.obs.items()}
    classes = spec.action.classes
    action = (rand() * classes).long() if classes else rand(*spec.action.shape) * 2 - 1
    no, extras = torch.zeros(shape, dtype=torch.bool), {}
    if hasattr(workflow, "compress_latent"):
        rows = workflow.model.rssm.initial(BATCH * (LENGTH + 1), "cpu")
        found = workflow.compress_latent(rows)
        extras = {k: v.unflatten(0, shape) for k, v in found.items()}
    return Batch(obs, action, rand() * 2 - 1, no, no, no, extras)


def measure(words: list[str], rank: int, size: int) -> dict[str, Any]:
    """Build and update a workflow in this process; return what it took."""
    import torch

    from dreamlab import build
    from dreamlab.config import compose, load_config
    from dreamlab.core import sharding
    from dreamlab.engine.system import peak_rss, reset_peak, rss

    torch.set_num_threads(1)
    several = [f"distributed.processes={size}", "distributed.shard=true"] if size > 1 else []
    config = load_config(compose([*words, "device=cpu", "accel=off", *several]))
    spec = build.find_spec(config, {})
    before = rss()
    reset_peak()
    began = time.monotonic()
    workflow = build.build_workflow(config, spec)
    out: dict[str, Any] = {
        "parameters": sum(p.numel() for p in workflow.parameters()),
        "held": sum(p.numel() for p in sharding.parts(list(workflow.parameters()))),
        "build_s": time.monotonic() - began,
        "build_peak_gib": (peak_rss() - before) / GIB,
        "built_gib": (rss() - before) / GIB,
    }  # fmt: skip
    reset_peak()
    began, phase = time.monotonic(), config.training.phases[-1]
    for i in range(UPDATES):
        for hook in phase.update_hooks:
            result = getattr(workflow, hook)(random_batch(workflow, size * i + rank), phase=phase)
    found = result[0] if isinstance(result, tuple) else result
    return {
        **out,
        "update_s": (time.monotonic() - began) / UPDATES,
        "update_peak_gib": (peak_rss() - before) / GIB,
        "after_gib": (rss() - before) / GIB,
        "loss": float(found["loss"]),
    }


def worker(words: list[str], rank: int, size: int, folder: Path) -> None:
    """Be one of the processes and leave what was measured in the folder."""
    import torch.distributed as dist

    from dreamlab.core import world

    store = dist.FileStore(str(folder / "store"), size) if size > 1 else None
    with world.joined(world.World(rank, size, rank, size), store=store):
        (folder / f"{rank}.json").write_text(json.dumps(measure(words, rank, size)))


def started(words: tuple[str, ...], size: int) -> list[dict[str, Any]]:
    """Return what each of `size` processes has measured."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        commands = [
            [sys.executable, __file__, "--worker", str(rank), str(size), name, *words]
            for rank in range(size)
        ]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        running = [subprocess.Popen(c, env=env) for c in commands]
        codes = [p.wait() for p in running]
        if any(codes):
            sys.exit("a process has failed")
        return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]


def about() -> dict[str, str]:
    """Return what is measured, and where."""
    machine = hardware()
    place = f"{machine.get('cpu')}, {machine.get('cpus')} cores"
    return {"commit": str(git_state().get("commit"))[:10], "machine": place}


def _made(rows: dict[str, Any]) -> str:
    """Return where the rows come from; older ones do not say."""
    made: dict[str, list[str]] = {}
    for model, sizes in rows.items():
        of = sizes[ABOUT]
        told = f"at {of['commit']}, {of['machine']}" if of["commit"] else "not written down"
        made.setdefault(told, []).append(model)
    return "Commit and machine: " + "; ".join(f"{', '.join(m)}: {k}" for k, m in made.items()) + "."


def table(rows: dict[str, dict[str, Any]]) -> str:
    """Return the table of what was measured."""
    lines = [
        "# Memory of a process, whole and sharded", "",
        f"`python benchmarks/sharding.py --record`: float32 on CPU, {BATCH} windows of {LENGTH} "
        f"steps, {UPDATES} updates, gloo. GiB of the",
        "process that needs most, beyond what it held before. Numbers: weights that it holds, "
        f"frozen copies included. {_made(rows)}", "",
        "| model | processes | numbers | of | built | at most while building "
        "| at most in updates | s/update |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for model, sizes in rows.items():
        for size, ranks in ((k, v) for k, v in sizes.items() if k != ABOUT):
            most = {k: max(r[k] for r in ranks) for k in ranks[0]}
            lines.append(
                f"| {model} | {size} | {most['held'] / 1e6:.1f} M "
                f"| {most['parameters'] / 1e6:.1f} M | {most['built_gib']:.2f} "
                f"| {most['build_peak_gib']:.2f} | {most['update_peak_gib']:.2f} "
                f"| {most['update_s']:.1f} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=MODELS, help="measure one model")
    parser.add_argument("--small", action="store_true", help="small sizes, to try the script")
    parser.add_argument("--record", action="store_true", help="write benchmarks/results/sharding.*")
    if sys.argv[1:2] == ["--worker"]:
        rank, size, folder, *words = sys.argv[2:]
        worker(words, int(rank), int(size), Path(folder))
        return
    args = parser.parse_args()
    file = RESULTS.with_suffix(".json")
    rows: dict[str, Any] = json.loads(file.read_text()) if args.record and file.exists() else {}
    for model, words in (SMALL if args.small else MODELS).items():
        if args.only in (None, model):
            measured = {str(size): started(words, size) for size in (1, 2)}
            rows[model] = {ABOUT: about(), **measured}
            print(json.dumps({model: rows[model]}, indent=1), flush=True)
    rows = {k: rows[k] for k in MODELS if k in rows}
    print(table(rows))
    if args.record and not args.small:
        file.write_text(json.dumps(rows, indent=1) + "\n")
        RESULTS.with_suffix(".md").write_text(table(rows))


if __name__ == "__main__":
    main()
