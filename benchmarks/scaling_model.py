"""Predicts how DreamerV3 scales to 8 and 64 GPUs. A model, not a measurement.

    python benchmarks/scaling_model.py

Measured: the time of an update on one H200 (results/dreamer_update.json). Counted: parameters.
Assumed: the bandwidths and latencies below. 400m was not measured: its time is that of 200m and
50m, drawn on in a line over the parameters. An update reduces every gradient once, in float32, in
one bucket after the backward pass, so nothing overlaps. A ring sends 2 (n - 1) / n of the bytes
over the slowest link, with a latency per hop; the SMALL reductions of a few numbers (statistics,
counters) go up and down a tree.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import torch
from dreamer_update import spec_of

from dreamlab.core.config import load
from dreamlab.workflows.dreamer_v3 import DreamerV3

matplotlib.use("Agg")
import matplotlib.pyplot as plt

RESULTS = Path(__file__).parent / "results"
SIZES = ("12m", "200m", "400m")
GPUS = (1, 2, 4, 8, 16, 32, 64)
PER_NODE = 8
TREE = 1e5  # bytes below which latency counts, not bandwidth
SMALL = 4
"""Reductions of a few numbers per update: the range of returns, the agreement of the loop."""


@dataclass(frozen=True)
class Link:
    """What lies between GPUs: bytes per second that reach a process, seconds per hop."""

    name: str
    inside: float
    between: float
    latency_s: float


LINKS = (
    Link("NVLink, 400 Gbit/s per GPU between machines", 350e9, 40e9, 8e-6),
    Link("NVLink, 100 Gbit/s per machine between machines", 350e9, 10e9 / PER_NODE, 15e-6),
)


def reduce_s(link: Link, gpus: int, num_bytes: float) -> float:
    """Return the seconds of a ring reduction."""
    if gpus == 1:
        return 0.0
    bandwidth = link.inside if gpus <= PER_NODE else min(link.inside, link.between * PER_NODE)
    hops = min(2 * (gpus - 1), 2 * math.ceil(math.log2(gpus))) if num_bytes < TREE else 2 * gpus - 2
    return 2 * (gpus - 1) / gpus * num_bytes / bandwidth + hops * link.latency_s


def predict(row: dict[str, float], link: Link, gpus: int) -> dict[str, float]:
    """Return an update's times, and how much of N GPUs is used, for N times the batch."""
    update = row["ms"] / 1e3
    gradients = reduce_s(link, gpus, 4.0 * row["parameters"])
    small = SMALL * reduce_s(link, gpus, 8.0)
    total = update + gradients + small
    return {
        "update_ms": 1e3 * update, "gradients_ms": 1e3 * gradients, "small_ms": 1e3 * small,
        "efficiency": update / total, "speedup": gpus * update / total,
    }  # fmt: skip


def rows() -> dict[str, dict[str, float]]:
    """Return the updates on images, by size; the largest is extrapolated."""
    found = json.loads((RESULTS / "dreamer_update.json").read_text())
    usual = {r["size"]: r for r in found if r["kind"] == "images" and r["form"] == "default"}
    small, large, parameters = usual["50m"], usual["200m"], count("400m")
    slope = (large["ms"] - small["ms"]) / (large["parameters"] - small["parameters"])
    ms = large["ms"] + slope * (parameters - large["parameters"])
    drawn_on = {"400m": {"ms": ms, "parameters": parameters}}
    return {size: {**usual, **drawn_on}[size] for size in SIZES}


def count(size: str) -> int:
    """Return the parameters of a size, without any memory for them."""
    config = load(DreamerV3.Config, {"size": size}, "workflow")
    with torch.device("meta"):
        return sum(p.numel() for p in DreamerV3(config, spec_of("images")).parameters())


def table(measured: dict[str, dict[str, float]]) -> str:
    """Return the prediction as a page."""
    lines = [
        "# A model of 8 and 64 GPUs",
        "",
        "This is a model, not a measurement: several GPUs never trained a run. Update times are"
        " those of captured updates of one process on one NVIDIA H200, without anything to reduce"
        " (`dreamer_update.json`, images; that of 400m is extrapolated from 50m and 200m), links"
        " are assumed. A batch is N times as large on N GPUs."
        " `python benchmarks/scaling_model.py` writes this page and the figure.",
        "",
        "![predicted speedup](scaling_model.png)",
        "",
        "| size | MB reduced | link | GPUs | update ms | gradients ms | agreement ms | efficiency |"
        " speedup |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for size, row in measured.items():
        for link in LINKS:
            for gpus in (8, 64):
                p = predict(row, link, gpus)
                lines.append(
                    f"| {size} | {4e-6 * row['parameters']:.0f} | {link.name} | {gpus} "
                    f"| {p['update_ms']:.1f} | {p['gradients_ms']:.2f} | {p['small_ms']:.2f} "
                    f"| {p['efficiency']:.0%} | {p['speedup']:.1f} |"
                )
    assumed = [
        f"- {k.name}: {k.inside / 1e9:.0f} GB/s inside a machine, "
        f"{k.between * PER_NODE / 1e9:.0f} GB/s out of it, {1e6 * k.latency_s:.0f} us per hop"
        for k in LINKS
    ]
    left_out = "Left out: environments, evaluation by rank 0, processes that wait for the slowest."
    return "\n".join([*lines, "", "Assumed:", "", *assumed, "", left_out, ""])


def draw(measured: dict[str, dict[str, float]]) -> None:
    """Draw the predicted speedups."""
    figure, axes = plt.subplots(1, len(LINKS), figsize=(9, 3.6), sharey=True)
    for axis, link in zip(axes, LINKS, strict=True):
        axis.plot(GPUS, GPUS, ":", color="gray", label="linear")
        for size, row in measured.items():
            axis.plot(GPUS, [predict(row, link, n)["speedup"] for n in GPUS], "o-", label=size)
        axis.set(title=link.name, xlabel="GPUs", xscale="log", yscale="log")
        axis.title.set_fontsize(8)
        axis.set_xticks(GPUS, [str(n) for n in GPUS])
    axes[0].set_ylabel("steps learnt from per second, of one GPU")
    axes[0].legend()
    figure.suptitle("DreamerV3, data parallel: a MODEL from one measured H200", fontsize=10)
    figure.tight_layout()
    figure.savefig(RESULTS / "scaling_model.png", dpi=120)


def main() -> None:
    measured = rows()
    (RESULTS / "scaling_model.md").write_text(table(measured))
    draw(measured)


if __name__ == "__main__":
    main()
