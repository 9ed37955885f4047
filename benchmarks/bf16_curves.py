"""bfloat16 in its fast form beside float32 as it is written: every loss, over many updates.

    python benchmarks/bf16_curves.py [--device cuda] [--size 12m] [--kinds vectors images]
        [--updates 200] [--record]

Both start from one state and see one fixed stream of batches and random numbers; on a GPU the fast
form is what a run computes there (graphs, kernels, compiled code), on a CPU plain autocast. The
data is random, and the learning rate does not warm up, so that 200 updates change something.
`--size tiny` is for trying it out. `--record` writes the figure, a table and the numbers to
benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from dreamlab.accel.dispatch import reference_kernels
from dreamlab.core.config import load
from dreamlab.engine import accelerate
from dreamlab.runs.run import git_state
from dreamlab.workflows.dreamer_v3 import DreamerV3, DreamerV3Config

sys.path.insert(0, str(Path(__file__).parent))
import dreamer_update

RESULTS = Path(__file__).parent / "results"
BATCHES = 16
"""Different batches in the stream, over and over."""
COLUMNS = 5
Curves = dict[str, list[float]]


def make(size: str, kind: str, device: str) -> DreamerV3:
    """Return a workflow; every call returns the same weights."""
    torch.manual_seed(0)
    options = DreamerV3.tiny if size == "tiny" else {"size": size}
    config = load(DreamerV3Config, {**options, "optimizer": {"warmup_steps": 0}}, "workflow")
    return DreamerV3(config, dreamer_update.spec_of(kind)).to(device)


def follow(
    workflow: DreamerV3, updates: int, around: AbstractContextManager[None], cast: Any
) -> Curves:
    """Return every loss of this many updates, and the norm of the gradient."""
    batches = [dreamer_update.random_batch(workflow, i) for i in range(min(BATCHES, updates))]
    rows: list[dict[str, Any]] = []
    with around:
        for i in range(updates):
            torch.manual_seed(i)
            with cast():
                metrics, _ = workflow.update(batches[i % BATCHES])
            rows.append({k: v for k, v in metrics.items() if "loss" in k or k == "grad_norm"})
    return {k: [float(row[k]) for row in rows] for k in sorted(rows[0])}


def measure(args: argparse.Namespace, kind: str) -> dict[str, Any]:
    """Return the curves of both forms."""
    plain = make(args.size, kind, args.device)
    reference = follow(plain, args.updates, reference_kernels(), nullcontext)
    del plain
    workflow = make(args.size, kind, args.device)
    compute = accelerate.ComputeConfig(device=args.device, precision="bf16")
    accelerate.set_up(compute, workflow, dreamer_update.BATCH * dreamer_update.LENGTH)
    cast = lambda: accelerate.autocast(compute, workflow.device)  # noqa: E731
    fast = follow(workflow, args.updates, nullcontext(), cast)
    place = torch.cuda.get_device_name() if args.device == "cuda" else "a CPU"
    return {
        "kind": kind, "size": args.size, "updates": args.updates, "place": place,
        "commit": git_state().get("commit", "")[:10], "reference": reference, "fast": fast,
    }  # fmt: skip


def differences(row: dict[str, Any], name: str) -> tuple[float, float, float]:
    """Return the size of a loss, the largest difference and the mean one as shares of it."""
    a, b = torch.tensor(row["fast"][name]), torch.tensor(row["reference"][name])
    size = float(b.abs().max())
    scale = max(size, 1e-12)
    return size, float((a - b).abs().max()) / scale, float((a - b).mean()) / scale


def table(rows: list[dict[str, Any]]) -> str:
    """Return how far both forms are apart."""
    lines = [
        "| input | loss | size | largest difference | mean difference |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        for name in row["reference"]:
            size, largest, mean = differences(row, name)
            lines.append(f"| {row['kind']} | `{name}` | {size:.3g} | {largest:.2%} | {mean:+.2%} |")
    return "\n".join(lines)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw every loss of both forms in a panel of its own."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    panels = [(row, name) for row in rows for name in row["reference"]]
    lines = -(-len(panels) // COLUMNS)
    figure, axes = plt.subplots(lines, COLUMNS, figsize=(13, 2.2 * lines), squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for (row, name), axis in zip(panels, axes.flat, strict=False):
        axis.plot(row["reference"][name], color="0.2", lw=1.6, label="float32, reference")
        axis.plot(row["fast"][name], color="tab:orange", lw=0.9, label="bfloat16, fast")
        axis.set_title(f"{row['kind']}: {name}", fontsize=8)
        axis.tick_params(labelsize=6)
    axes[0][0].legend(fontsize=6)
    figure.supxlabel("updates", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def write(rows: list[dict[str, Any]], name: str) -> None:
    """Write the figure, the table and the numbers."""
    (RESULTS / f"{name}.json").write_text(json.dumps(rows) + "\n")
    draw(rows, RESULTS / f"{name}.png")
    first = rows[0]
    intro = (
        f"{first['place']}, size {first['size']}, {first['updates']} updates of DreamerV3 from one "
        "state on one stream of batches; shares are of the largest value in float32. "
        f"`python benchmarks/bf16_curves.py --record` makes this, here at {first['commit']}."
    )
    text = f"# bfloat16 beside float32\n\n{intro}\n\n![losses]({name}.png)\n\n{table(rows)}\n"
    (RESULTS / f"{name}.md").write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--size", default="12m")
    parser.add_argument("--kinds", nargs="+", default=["vectors", "images"])
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--record", action="store_true")
    args = parser.parse_args()
    rows = [measure(args, kind) for kind in args.kinds]
    if args.record:
        write(rows, "bf16_curves" if args.device == "cuda" else "bf16_curves_cpu")
    print(table(rows))


if __name__ == "__main__":
    main()
