"""Makes a configuration so small that everything happens within seconds, but for what was typed."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

from dreamlab.core.config import Part, defaults
from dreamlab.core.locate import locate
from dreamlab.core.workflow import Workflow
from dreamlab.envs.suites import SUITES
from dreamlab.envs.vector import EnvConfig

KeyPath = tuple[str, ...]
SMALL_BUFFER = {"capacity": 2_000, "batch": 8, "length": 16, "min_steps": 64}


def shrink(node: dict[str, Any], typed: Sequence[KeyPath] = ()) -> dict[str, Any]:
    """Return a configuration that reaches every phase within seconds on a laptop.

    Networks become what the workflow calls tiny; buffers and batches shrink; every phase but the
    last is cut to a few steps. Windows keep their length where the algorithm needs it (2, n + 1),
    and values at `typed` paths stay.
    """
    workflow = dict(node["workflow"])
    cls = Part(str(workflow.get("_target_", "")), None, "", Workflow).cls("workflow._target_")
    buffers = {
        name: {**b, **{k: min(b[k], most) for k, most in SMALL_BUFFER.items() if b.get(k)}}
        for name, b in node.get("buffers", {}).items()
    }
    tiny = _without_presets(cls, workflow, typed)
    small = {**node, "workflow": _merge(workflow, tiny, defaults(cls.Config)), "buffers": buffers}
    small = restore(small, node, typed)  # the phases depend on the sizes
    training = dict(node.get("training", {}))
    phases = training.get("phases", [])
    training["phases"] = [_shrink_phase(i, phases, node, small) for i in range(len(phases))]
    if not any("collect" in p.get("workflow_hooks", ()) for p in phases):
        _without_frames(training, small)
    _reach_last(training)
    return restore({**small, "training": training}, node, typed)


def _without_frames(training: dict[str, Any], small: dict[str, Any]) -> None:
    """Count a training that collects nothing by its updates."""
    training.pop("total_frames", None)
    small["log"] = {"every_updates": 4, **small.get("log", {})}


def _reach_last(training: dict[str, Any]) -> None:
    """Lengthen a training that would end before its last phase: many environments fill slowly."""
    total, phases = training.get("total_frames"), training["phases"]
    before = sum(p.get("duration_steps") or 0 for p in phases[:-1])
    if isinstance(total, int) and total <= before:
        training["total_frames"] = 2 * before


def _shrink_phase(
    number: int, phases: Sequence[dict[str, Any]], before: dict[str, Any], after: dict[str, Any]
) -> dict[str, Any]:
    """Return a phase with fewer ticks, as many updates per decision, and a short duration."""
    phase = phases[number]
    name = phase.get("buffer", "replay")
    earlier = [p for p in phases[:number] if p.get("duration_steps")]
    filled = any(p.get("buffer", "replay") == name for p in earlier)
    big, small = (n.get("buffers", {}).get(name, {}) for n in (before, after))
    most = {"collect_ticks": 16, "duration_updates": 40}  # frames are cut by the whole
    if number < len(phases) - 1:
        fill = 0 if filled else _frames_to_fill(small, after.get("env", {}))
        fill *= _actors(after)
        steps = max(144, fill)
        most |= {"duration_steps": steps, "duration_updates": 8, "duration_cycles": 4}
    out = {**phase, **{k: min(phase[k], n) for k, n in most.items() if phase.get(k) is not None}}
    if phase.get("train_ratio") is not None:
        sizes = [b.get("batch", 1) * (b.get("length") or 1) for b in (big, small)]
        out["train_ratio"] = float(phase["train_ratio"]) * (sizes[1] / sizes[0])
    return out


def _frames_to_fill(buffer: dict[str, Any], env: dict[str, Any]) -> int:
    """Return the frames after which a buffer has a batch, if one is drawn next."""
    num_envs = env.get("num_envs", EnvConfig.num_envs)
    ticks = max((buffer.get("length") or 1) + 2, -(-(buffer.get("min_steps") or 0) // num_envs))
    return _frames_per_decision(env) * num_envs * ticks


def _actors(node: dict[str, Any]) -> int:
    """Return how many actors fill a buffer: each has its own environments."""
    given = node.get("actors", 0)
    num = given.get("num", 0) if isinstance(given, Mapping) else given
    return max(1, num) if isinstance(num, int) else 1  # what is none is refused later


def _frames_per_decision(env: dict[str, Any]) -> int:
    """Return the frames of one decision of one environment."""
    options, suite = env.get("options") or {}, env.get("suite", EnvConfig.suite)
    own = options.get("repeat", options.get("frame_skip", 1))
    if suite in SUITES and "repeat" not in options:  # some suites repeat actions by themselves
        parameters = inspect.signature(locate(SUITES[suite], "env.suite")).parameters
        own = parameters["repeat"].default if "repeat" in parameters else own
    own = own if isinstance(own, int) else 1  # the suite itself will refuse it
    return own * env.get("repeat", EnvConfig.repeat)


def _without_presets(cls: Any, workflow: dict[str, Any], typed: Sequence[KeyPath]) -> Any:
    """Return what a workflow calls tiny, less the options of a preset that was typed."""
    out = getattr(cls, "tiny", {})
    for name, table in getattr(cls.Config, "presets", {}).items():
        chosen = workflow.get(name)
        if ("workflow", name) in typed and isinstance(chosen, str):
            out = _without(out, table.get(chosen, {}))
    return out


def _without(node: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return a tree less the leaves that another one has."""
    both = {k: _without(v, other[k]) for k, v in node.items() if isinstance(other.get(k), dict)}
    return {k: v for k, v in node.items() if k not in other} | both


def _merge(base: dict[str, Any], over: dict[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """Return `over` on top of `base`; a part that is not the usual one is left as it was written.

    `usual` are the defaults, of which the parts matter.
    """
    out = dict(base)
    for key, value in over.items():
        old, default = base.get(key), usual.get(key)
        if not isinstance(value, dict):
            out[key] = value
            continue
        old = {"_target_": old} if isinstance(old, str) else dict(old or {})
        target = default.target if isinstance(default, Part) else None
        if old.get("_target_", target) == target:
            out[key] = _merge(old, value, _options_of(default))
    return out


def _options_of(default: Any) -> Mapping[str, Any]:
    """Return the options of a part or of a nested config."""
    options = default.config if isinstance(default, Part) else default
    return vars(options) if is_dataclass(options) else options or {}


# -- what was typed -------------------------------------------------------------------------------


def leaves(value: Any, path: KeyPath) -> list[KeyPath]:
    """Return the paths of the single values that a typed value gives."""
    if not isinstance(value, dict) or not value:
        return [path]
    return [leaf for k, v in value.items() for leaf in leaves(v, (*path, str(k)))]


def restore(node: dict[str, Any], source: Any, paths: Iterable[KeyPath]) -> dict[str, Any]:
    """Return `node` with what `source` has at these paths, if it has it."""
    for path in paths:
        try:
            node = _put(node, path, _get(source, path))
        except (KeyError, IndexError, TypeError, ValueError):
            continue  # typed and taken away again, or Hydra's own
    return node


def _get(node: Any, path: KeyPath) -> Any:
    for key in path:
        node = node[int(key) if isinstance(node, list) else key]
    return node


def _put(node: Any, path: KeyPath, value: Any) -> Any:
    """Return a tree with another value at a path."""
    if not path:
        return value
    if isinstance(node, list):
        at = int(path[0])
        return [*node[:at], _put(node[at], path[1:], value), *node[at + 1 :]]
    node = node if isinstance(node, dict) else {}
    return {**node, path[0]: _put(node.get(path[0]), path[1:], value)}


__all__ = ["KeyPath", "leaves", "restore", "shrink"]
