"""Looks into a short run: modules, gradients, inputs, actions and time, for `dreamlab debug`."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dreamlab.core.findings import Finding
from dreamlab.core.tree import tree_leaves
from dreamlab.core.types import Array, ArraySpec, Batch, Metrics, Step
from dreamlab.engine.observer import Observer
from dreamlab.engine.orchestrator import Orchestrator

EXPLODING = 1e4
"""Activations beyond this are reported."""
MIN_ROWS = 64
"""Minimum number of rows before a constant unit is reported as dead."""
ACTIVATIONS = (nn.ReLU, nn.Tanh, nn.SiLU, nn.ELU, nn.GELU, nn.LeakyReLU, nn.Sigmoid)


@dataclass
class Outputs:
    """What a module gave out over all calls."""

    largest: float = 0.0
    rows: int = 0
    low: Tensor | None = None
    high: Tensor | None = None

    def add(self, y: Tensor, units: bool) -> None:
        """Take in one output; `units` keeps the range of each unit, the last dimension."""
        y = y.detach().float()
        self.largest = max(self.largest, float(y.abs().amax()) if y.numel() else 0.0)
        if not units:
            return
        flat = y.reshape(-1, y.shape[-1])
        self.rows += len(flat)
        low, high = flat.amin(0), flat.amax(0)
        same = self.low is not None and self.low.shape == low.shape
        self.low = torch.minimum(self.low, low) if same and self.low is not None else low
        self.high = torch.maximum(self.high, high) if same and self.high is not None else high

    @property
    def dead(self) -> int:
        """Return how many units gave the same number for everything they saw."""
        if self.low is None or self.high is None or self.rows < MIN_ROWS:
            return 0
        return int((self.low == self.high).sum())


@dataclass
class Seen:
    """The range of one input or action, and how much of it was out of bounds."""

    entries: int = 0
    outside: int = 0
    low: float = np.inf
    high: float = -np.inf
    wrong: str | None = None

    def add(self, value: Array, spec: ArraySpec, bounded: bool) -> None:
        """Take in the values of one tick [n, ...]."""
        if value.shape[1:] != spec.shape:
            self.wrong = self.wrong or f"has shape {value.shape[1:]}, the spec says {spec.shape}"
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            self.wrong = self.wrong or "is not finite"
        self.low = min(self.low, float(value.min()))
        self.high = max(self.high, float(value.max()))
        self.entries += value.size
        low, high = _bounds(spec)
        if bounded and low is not None and high is not None:
            self.outside += int(np.count_nonzero((value < low - 1e-6) | (value > high + 1e-6)))


def _bounds(spec: ArraySpec) -> tuple[Any, Any]:
    if spec.classes is None:
        return spec.low, spec.high
    return 0, np.asarray(spec.classes) - 1


@dataclass
class Inspector(Observer):
    """Attached to a loop before it runs; `findings` says afterwards what was noticed."""

    loop: Orchestrator
    normalized: bool
    first_bad: str | None = None
    outputs: dict[str, Outputs] = field(default_factory=dict)
    gradients: dict[str, list[float]] = field(default_factory=dict)
    obs: dict[str, Seen] = field(default_factory=dict)
    action: Seen = field(default_factory=Seen)

    def attach(self) -> None:
        """Look at every module, every update and every tick from now on."""
        loop = self.loop
        for name, module in loop.workflow.named_modules():
            if hasattr(module, "fusible"):  # computed in one go, its layers are never called
                object.__setattr__(module, "fusible", False)
            if name:
                module.register_forward_hook(self._hook(name))
        loop.observers.add(self)

    def _hook(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def look(module: nn.Module, inputs: Any, output: Any) -> None:
            found = [y for _, y in tree_leaves(output) if _is_float(y)]
            if self.first_bad is None and not all(_finite(y) for y in found):
                clean = all(_finite(x) for _, x in tree_leaves(inputs) if _is_float(x))
                cause = "its inputs were finite" if clean else "its inputs were not finite either"
                counters = self.loop.counters
                self.first_bad = (
                    f"module {name!r} ({type(module).__name__}) was the first with a non-finite "
                    f"output, at env frame {counters.env_frames}, update "
                    f"{counters.updates}; {cause}"
                )
            acts = isinstance(module, ACTIVATIONS) or hasattr(module, "act")
            for y in found:
                units = acts and y.ndim in (2, 3)
                self.outputs.setdefault(name, Outputs()).add(y, units)

        return look

    def updated(self, batch: Batch, metrics: Metrics) -> None:
        """Take note of the gradients of an update, by module; they were clipped already."""
        squares: dict[str, float] = {}
        for name, parameter in self.loop.workflow.named_parameters():
            if parameter.requires_grad:
                grad = parameter.grad
                group = ".".join(name.split(".")[:-1][:2]) or name
                square = 0.0 if grad is None else float(grad.float().square().sum())
                squares[group] = squares.get(group, 0.0) + square
        for group, square in squares.items():
            self.gradients.setdefault(group, []).append(square**0.5)

    def ticked(self, step: Step, action: Array, ended: int) -> None:
        """Compare a tick with the spec."""
        spec = self.loop.workflow.spec
        for name, value in step.obs.items():
            bounded = not (self.normalized and spec.obs[name].dtype == "float32")
            self.obs.setdefault(name, Seen()).add(value, spec.obs[name], bounded)
        self.action.add(action, spec.action, True)

    def findings(self) -> list[Finding]:
        """Return everything that was noticed, errors first."""
        out = [Finding("error", self.first_bad)] if self.first_bad else []
        out += [*self._about_data(), *self._about_gradients(), *self._about_modules()]
        if not self.loop.counters.updates:
            out.append(Finding("warning", "no update happened: increase --frames"))
        return sorted(out, key=lambda f: f.level)

    def _about_data(self) -> list[Finding]:
        out: list[Finding] = []
        spec = self.loop.workflow.spec
        for name, seen in self.obs.items():
            if seen.wrong:
                out.append(Finding("error", f"observation {name!r} {seen.wrong}"))
            if seen.outside:
                low, high = _bounds(spec.obs[name])
                out.append(
                    Finding("error", f"observation {name!r}: {_share(seen)} outside the spec's "
                            f"[{low}, {high}]; observed [{seen.low:.4g}, {seen.high:.4g}]")
                )  # fmt: skip
        if self.action.wrong:
            out.append(Finding("error", f"the action {self.action.wrong}"))
        if self.action.outside:
            level = "error" if spec.action.is_discrete else "warning"
            end = "" if spec.action.is_discrete else "; the environment clips them"
            text = f"actions: {_share(self.action)} outside the action space{end}"
            out.append(Finding(level, text))
        return out

    def _about_gradients(self) -> list[Finding]:
        out: list[Finding] = []
        for name, norms in self.gradients.items():
            if not all(np.isfinite(norms)):
                out.append(Finding("error", f"the gradient of {name!r} is not finite"))
            elif max(norms) == 0:
                out.append(Finding("warning", f"{name!r} never received a gradient"))
        return out

    def _about_modules(self) -> list[Finding]:
        out: list[Finding] = []
        for name, seen in self.outputs.items():
            if seen.dead and seen.low is not None:
                text = f"{name!r}: {seen.dead} of {len(seen.low)} units are dead (never changed)"
                out.append(Finding("warning", text))
            if EXPLODING < seen.largest < np.inf:
                text = f"{name!r}: activations as large as {seen.largest:.3g}"
                out.append(Finding("warning", text))
        return out

    def gradient_rows(self) -> list[tuple[str, float, float, float]]:
        """Return module, and its gradient's first, median and largest norm."""
        return [(k, v[0], statistics.median(v), max(v)) for k, v in self.gradients.items()]


def _share(seen: Seen) -> str:
    return f"{seen.outside / seen.entries:.1%} of the entries are"


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _finite(value: Tensor) -> bool:
    return bool(torch.isfinite(value).all())
