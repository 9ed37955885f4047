"""Keeps an eye on a run: values that are not finite, returns that stall, memory that runs out."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psutil
import torch
from torch import Tensor, nn

from dreamlab.core.errors import DivergedError
from dreamlab.core.limits import Natural, NonNegative, SomeShare
from dreamlab.core.tree import tree_leaves
from dreamlab.core.types import Batch
from dreamlab.core.workflow import Workflow

Alert = Callable[[str, str], None]
Floor = Callable[[int], float | None]
"""Return the published lower bound at a number of env frames; None if unknown."""
RECENT = 5
"""Records over which returns are averaged before comparing with published ones."""


@dataclass(frozen=True)
class WatchConfig:
    """What is looked for; alerts go to the terminal, to events.jsonl and to every place named."""

    on_nan: Literal["stop", "warn", "off"] = "stop"
    """On a non-finite value: stop, continue with an alert, or continue silently. Non-finite weights
    are never saved: the last finite checkpoint is kept."""
    stall_frames: Natural = 0
    """Warn if the return has not improved for this many env frames; 0: never."""
    memory_share: SomeShare = 0.9
    """Warn if memory usage exceeds this fraction."""
    disk_gib: NonNegative = 1.0
    """Warn if less disk space than this is free; 0: never."""
    published: bool = False
    """Warn if the return falls more than one standard deviation below the task's published
    curve."""
    command: str | None = None
    """Shell command run for each alert, with ALERT_KIND, ALERT_TEXT and ALERT_RUN set."""
    file: str | None = None
    """File that alerts are appended to; several runs may share it."""
    webhook: str | None = None
    """Webhook URL that receives a POST with JSON: `text` (as chat services read it), `kind`,
    `run`."""
    check_every_update: bool = False
    """Check weights and gradients after every update (slow), and name the failing module."""
    profile_updates: Natural = 0
    """Record a torch.profiler trace of this many updates into `report/trace.json`."""


class Watch:
    """Raises or reports what has gone wrong, once per cause."""

    def __init__(self, config: WatchConfig, alert: Alert, folder: Path, floor: Floor) -> None:
        self.config, self.alert = config, alert
        self.folder, self.floor = folder, floor
        self.best, self.best_frames = -math.inf, 0
        self.recent: list[float] = []
        self.said: set[str] = set()

    def prepare(self, workflow: Workflow[Any]) -> None:
        """Install the checks that look inside the modules."""
        if self.config.check_every_update:
            for name, module in workflow.named_modules():
                module.register_forward_hook(_output_check(name))

    def updated(self, workflow: Workflow[Any], batch: Batch) -> None:
        """Look at everything after an update, if so configured."""
        if self.config.check_every_update and self.config.on_nan != "off":
            bad = first_bad(workflow, batch)
            if bad is not None:
                self._diverged(bad)

    def may_save(self, bad: str | None, names: list[str], say: Callable[[str], None]) -> bool:
        """Return whether a state may be saved: `bad` names non-finite values in it.

        Otherwise the run stops, or it is said once which of the checkpoints `names` stays.
        """
        if bad is None:
            self.said.discard("unsaved")
            return True
        kept = f"the latest checkpoint is {names[0]}" if names else "there is no checkpoint yet"
        text = f"{bad}: this state is not saved; {kept}"
        if self.config.on_nan == "stop":
            self._diverged(text)
        if "unsaved" not in self.said:
            self.said.add("unsaved")
            say(text)
        return False

    def flushed(
        self, record: dict[str, float], workflow: Workflow[Any], batch: Batch | None
    ) -> None:
        """Look at a record of metrics."""
        wrong = [k for k, v in record.items() if not math.isfinite(v)]
        if not wrong:
            self.said.discard("nan")
        if wrong and self.config.on_nan != "off":
            where = first_bad(workflow, batch)
            self._diverged(
                f"metric {wrong[0]!r} is {record[wrong[0]]}; {where or 'all weights are finite'}"
            )
        self._check_stall(record)
        self._check_published(record)
        self._check_memory()
        self._check_disk()

    def _diverged(self, text: str) -> None:
        if "nan" not in self.said:
            self.said.add("nan")
            self.alert("nan", text)
        if self.config.on_nan == "stop":
            raise DivergedError(f"training diverged: {text}")

    def _check_stall(self, record: dict[str, float]) -> None:
        value, frames = record.get("episode/return"), int(record["env_frames"])
        if value is None or not self.config.stall_frames:
            return
        if value > self.best:
            self.best, self.best_frames = value, frames
            self.said.discard("stall")
        elif frames - self.best_frames >= self.config.stall_frames and "stall" not in self.said:
            self.said.add("stall")
            self.alert(
                "stall",
                f"the return has not improved on {self.best:.4g} since frame {self.best_frames:,}",
            )

    def _check_published(self, record: dict[str, float]) -> None:
        """Compare the mean of the last returns: single episodes scatter."""
        if not self.config.published or (value := record.get("episode/return")) is None:
            return
        self.recent = [*self.recent[1 - RECENT :], value]
        frames, mean = int(record["env_frames"]), sum(self.recent) / len(self.recent)
        floor = self.floor(frames)
        if floor is None or mean >= floor:
            self.said.discard("published")
        elif "published" not in self.said and len(self.recent) == RECENT:
            self.said.add("published")
            self.alert(
                "published",
                f"the return is {mean:.4g} at frame {frames:,}, published: above {floor:.4g}",
            )

    def _check_disk(self) -> None:
        free = disk_free(self.folder) / 2**30
        if free >= self.config.disk_gib:
            self.said.discard("disk")
        elif "disk" not in self.said:
            self.said.add("disk")
            self.alert("disk", f"only {free:.1f} GiB of disk space left for {self.folder}")

    def _check_memory(self) -> None:
        used = memory_used_share()
        if used > self.config.memory_share and "memory" not in self.said:
            self.said.add("memory")
            self.alert("memory", f"{used:.0%} of memory in use")

    def get_state(self) -> dict[str, Any]:
        return {
            "best": self.best, "best_frames": self.best_frames, "said": sorted(self.said),
            "recent": self.recent,
        }  # fmt: skip

    def set_state(self, state: dict[str, Any]) -> None:
        self.best, self.best_frames = state["best"], state["best_frames"]
        self.said = set(state["said"])
        self.recent = list(state.get("recent", ()))


def first_bad(workflow: Workflow[Any], batch: Batch | None) -> str | None:
    """Name the first tensor that is not finite: in the batch, the weights or the gradients."""
    groups: list[tuple[str, list[tuple[str, Any]]]] = [
        (
            "batch",
            list(tree_leaves({"obs": batch.obs, "reward": batch.reward, "action": batch.action}))
            if batch
            else [],
        ),
        ("weight", list(workflow.named_parameters())),
        ("buffer", list(workflow.named_buffers())),
        ("gradient", [(n, p.grad) for n, p in workflow.named_parameters() if p.grad is not None]),
    ]
    for kind, tensors in groups:
        for name, tensor in tensors:
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                return f"the first non-finite tensor is {kind} {name!r} {tuple(tensor.shape)}"
    return None


@torch.no_grad()
def not_finite(workflow: Workflow[Any], state: dict[str, Any], *more: Any) -> str | None:
    """Name the first tensor of a workflow's `state` that no training recovers from.

    Parameters and what optimizers hold must be finite; buffers and the trees in `more` may be
    infinite, but not NaN. A device is asked once, whatever the number of tensors.
    """
    buffers = {name for name, _ in workflow.named_buffers()}
    named = [(k, v, k in buffers) for k, v in tree_leaves(state)]
    named += [(k, v, True) for tree in more for k, v in tree_leaves(tree)]
    groups: dict[Any, list[tuple[str, Tensor, bool]]] = {}
    for name, value, lenient in named:
        tensor = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        if isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.numel():
            groups.setdefault((tensor.device, tensor.dtype), []).append((name, tensor, lenient))
    for group in groups.values():
        largest = torch.stack(torch._foreach_norm([t for _, t, _ in group], ord=math.inf)).tolist()
        for (name, _, lenient), size in zip(group, largest, strict=True):
            if math.isnan(size) or (math.isinf(size) and not lenient):
                return f"{name!r} is {size}"
    return None


def private(collector: dict[str, Any]) -> dict[str, Any]:
    """Return what a policy acts on beside its weights, from the state of a collector."""
    if not collector:  # a run without environments
        return {}
    return {"normalizer": collector["envs"]["normalizer"], "memory": collector["state"]}


def _output_check(name: str) -> Callable[[nn.Module, Any, Any], None]:
    def check(module: nn.Module, inputs: Any, output: Any) -> None:
        for _, leaf in tree_leaves(output):
            if (
                isinstance(leaf, Tensor)
                and leaf.is_floating_point()
                and not bool(torch.isfinite(leaf).all())
            ):
                raise DivergedError(
                    f"training diverged: the output of module {name or 'workflow'!r} is not finite"
                )

    return check


def memory_limit() -> int:
    """Return the memory this process may use: the machine's, or its container's if that is less."""
    total = int(psutil.virtual_memory().total)
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            total = min(total, int((Path("/sys/fs/cgroup") / name).read_text()))
        except (OSError, ValueError):
            continue
    return total


def memory_available() -> int:
    """Return the bytes that can still be allocated."""
    return min(int(psutil.virtual_memory().available), memory_limit())


def memory_used_share() -> float:
    """Return how much of memory in use, 0 to 1."""
    return 1.0 - memory_available() / memory_limit()


def disk_free(path: Path) -> int:
    """Return the bytes free where `path` is or will be."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free
