"""Frames of a dataset in the step convention: a reward comes with the observation after it.

frame       0        1        2 = T-1
observation o0       o1       o2            (o3 where the format records it)
action      a0       a1       a2
next.*      r1       r2       r3, done

step        0        1        2        3 = T, the last one
obs         o0       o1       o2       o3, else o2 again
action      a0       a1       a2       a2 again, unused
reward      0        r1       r2       r3
is_last     0        0        0        1
is_terminal 0        0        0        1 if done and not truncated
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dreamlab.core.errors import unknown
from dreamlab.core.types import Array, ArraySpec, Spec, TaskSpec
from dreamlab.data.datasets.table import (
    ACTION,
    DONE,
    REWARD,
    SUCCESS,
    TRUNCATED,
    DataError,
    Dataset,
    Feature,
)
from dreamlab.data.returns_to_go import endless, is_reward

OBSERVATION, IMAGES = "observation.", "observation.images."
TASK = "task"


def short_name(feature: str) -> str:
    """Return what an observation is called here: what follows the prefix, without dots."""
    return feature.removeprefix(IMAGES).removeprefix(OBSERVATION).replace(".", "_")


def observations(data: Dataset, keys: Mapping[str, str]) -> dict[str, str]:
    """Return the feature of each observation by its name here: those requested, or all."""
    if keys:
        for feature in keys.values():
            data.feature(feature)
        return dict(keys)
    found: dict[str, str] = {}
    for feature, about in data.features.items():
        if not feature.startswith(OBSERVATION) or about.dtype == "string":
            continue
        if (name := short_name(feature)) in found:
            raise DataError(
                f"{data.place}: {found[name]!r} and {feature!r} would both be named {name!r}: "
                "rename observations with keys: {NAME: FEATURE}"
            )
        found[name] = feature
    if not found:
        raise DataError(f"{data.place}: no feature starts with {OBSERVATION!r}: set keys")
    return found


def spec_of(data: Dataset, obs: Mapping[str, str], task: bool = False) -> Spec:
    """Return what steps of a dataset look like."""
    specs = {name: _array_spec(data, feature) for name, feature in obs.items()}
    action, length = action_spec(data), max(e.length for e in data.episodes)
    tasks: tuple[TaskSpec, ...] = ()
    if task:
        if not data.tasks:
            raise DataError(f"{data.place}: task: true requires tasks, and it has none")
        specs[TASK] = ArraySpec((), "int64", classes=len(data.tasks))
        tasks = tuple(TaskSpec(name, action.size, length) for name in data.tasks)
    return Spec(specs, action, length, tasks)


def _array_spec(data: Dataset, name: str) -> ArraySpec:
    feature = data.feature(name)
    if feature.is_image:
        return ArraySpec(data.camera(name).shape, "uint8", low=0.0, high=255.0)
    if feature.dtype == "string":
        raise DataError(f"{data.place}: {name!r} is text: it cannot be an observation")
    return ArraySpec(feature.shape, low=_least(feature.low), high=_most(feature.high))


def action_spec(data: Dataset) -> ArraySpec:
    """Return what actions look like; whole numbers are choices."""
    if ACTION not in data.features:
        raise DataError(unknown("feature", ACTION, data.features, str(data.place)))
    feature = data.features[ACTION]
    if not feature.dtype.startswith(("int", "uint")):
        return ArraySpec(feature.shape, low=_least(feature.low), high=_most(feature.high))
    if not feature.is_scalar:
        raise DataError(f"{data.place}: MultiDiscrete actions are not supported")
    return ArraySpec((), "int64", classes=_classes(data, feature))


def _classes(data: Dataset, feature: Feature) -> int:
    return feature.classes or int(data.columns[ACTION].max()) + 1


def _least(low: float | tuple[float, ...] | None) -> float | None:
    return None if low is None else float(np.min(low))


def _most(high: float | tuple[float, ...] | None) -> float | None:
    return None if high is None else float(np.max(high))


@dataclass(frozen=True)
class Steps:
    """All steps of a dataset, one episode after the other, without its images."""

    arrays: dict[str, Array]
    row: Array
    """The frame of each step; for an episode's last step, its last frame."""
    first: Array
    """For each step, the first step of its episode."""
    last: Array
    """For each step, the last step of its episode, whose action is unused."""
    episode: Array
    """For each step, the position of its episode in the dataset."""

    def __len__(self) -> int:
        return len(self.row)


def make_steps(data: Dataset, obs: Mapping[str, str], task: bool, ends: str) -> Steps:
    """Return the steps of every episode that is used."""
    lengths = np.array([e.length for e in data.episodes])
    starts = np.concatenate([[0], np.cumsum(lengths + 1)])
    rows = [np.append(np.arange(e.first, e.end), e.end - 1) for e in data.episodes]
    row = np.concatenate(rows)
    first, last = (np.repeat(x, lengths + 1) for x in (starts[:-1], starts[1:] - 1))
    episode = np.repeat(np.arange(len(lengths)), lengths + 1)
    at = np.arange(len(row))
    steps = Steps({}, row, first, last, episode)
    arrays = steps.arrays
    for name, feature in obs.items():
        if not data.features[feature].is_image:
            arrays[f"obs/{name}"] = _with_finals(data, feature, steps)
    if task:
        arrays[f"obs/{TASK}"] = data.columns["task_index"][row]
    arrays["action"] = _actions(data)[row]
    arrays["reward"] = _after(_reward(data), steps)
    arrays["is_first"], arrays["is_last"] = at == first, at == last
    arrays["is_terminal"] = _after(_terminal(data, ends), steps)
    return steps


def _with_finals(data: Dataset, feature: str, steps: Steps) -> Array:
    values = data.columns[feature][steps.row].astype(np.float32)
    ends, finals = np.unique(steps.last), data.finals.get(feature, {})
    for end, episode in zip(ends, data.episodes, strict=True):
        if episode.index in finals:
            values[end] = finals[episode.index]
    return values


def _actions(data: Dataset) -> Array:
    values = data.columns[ACTION]
    if action_spec(data).is_discrete:
        return values.reshape(len(values)).astype(np.int64)
    return values.astype(np.float32)


def _reward(data: Dataset) -> Array:
    if REWARD not in data.columns:
        return np.zeros(data.num_rows, np.float32)
    return data.columns[REWARD].reshape(data.num_rows).astype(np.float32)


def _terminal(data: Dataset, ends: str) -> Array:
    """Return after which frames the task terminated, by the configured rule."""
    rows, none = data.num_rows, np.zeros(data.num_rows, bool)
    if ends == "success":
        if SUCCESS not in data.columns:
            raise DataError(f"{data.place}: ends: success: it has no feature {SUCCESS!r}")
        return data.columns[SUCCESS].reshape(rows).astype(bool)
    if ends == "never" or DONE not in data.columns:
        return none
    done = data.columns[DONE].reshape(rows).astype(bool)
    return done & ~data.columns.get(TRUNCATED, none).reshape(rows).astype(bool)


def _after(values: Array, steps: Steps) -> Array:
    """Return what came after each frame, at the step where it is seen; nothing at a first step."""
    out = np.zeros(len(steps), values.dtype)
    later = np.flatnonzero(np.arange(len(steps)) > steps.first)
    out[later] = values[steps.row[later - 1]]
    return out


def returns_to_go(steps: Steps, gamma: float, failure: float | None = None) -> Array:
    """Return the discounted sum of the rewards after each step until its episode ends.

    With a `failure` reward, an episode of nothing but that counts as if it went on forever.
    """
    reward, out = steps.arrays["reward"].astype(np.float64), np.zeros(len(steps))
    if failure is not None:
        fits = is_reward(reward, failure) | steps.arrays["is_first"]  # nothing came with that
        failed = np.logical_and.reduceat(fits, np.unique(steps.first))
        out[np.unique(steps.last)[failed]] = endless(failure, gamma)
    for i in range(len(steps) - 2, -1, -1):
        if i != steps.last[i]:
            out[i] = reward[i + 1] + gamma * out[i + 1]
    return out.astype(np.float32)
