"""HDF5 files of demonstrations, of the styles of D4RL and of robomimic."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dreamlab.core.errors import require
from dreamlab.core.types import Array
from dreamlab.data.datasets.gathered import (
    FPS,
    Origin,
    Recorded,
    gather,
    is_picture,
    observation_name,
)
from dreamlab.data.datasets.table import (
    ACTION,
    COUNTERS,
    DONE,
    REWARD,
    SUCCESS,
    TRUNCATED,
    Broken,
    DataError,
    Dataset,
    fingerprint,
)

SUFFIXES = (".hdf5", ".h5")
STATE, INFOS = "observation.state", "infos."
SAME = 1e-6
"""Tolerance within which an observation equals the stored next observation."""
DEMO = re.compile(r"demo_(\d+)")
ARRAYS = {
    ACTION: "actions", REWARD: "rewards", DONE: "dones", TRUNCATED: "truncated",
    SUCCESS: "success",
}  # fmt: skip
"""Names in robomimic's style of what is not observed."""
FLAGS = (DONE, TRUNCATED, SUCCESS)


def is_hdf5(place: Path) -> bool:
    """Return whether a file is HDF5 by its name."""
    return place.suffix in SUFFIXES and place.is_file()


def read_hdf5(path: Path) -> Dataset:
    """Return the dataset of a file, whichever of the styles it has."""
    h5py = require("h5py", "data")
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise DataError(f"{path} is corrupted: {' '.join(str(error).split())}") from None
    if "data" in file and isinstance(file["data"], h5py.Group):
        return _read_robomimic(path, file)
    if {"observations", "actions", "rewards"} <= set(file):
        return _read_d4rl(path, file)
    raise DataError(
        f"{path}: expected data/demo_N/actions (robomimic) or observations, actions and rewards "
        f"(D4RL), found {', '.join(sorted(file)) or 'nothing'}"
    )


def _origin(path: Path, file: Any, kind: str) -> Origin:
    return Origin(path, kind, fingerprint(path, [path]), float(file.attrs.get("fps", FPS)))


# -- robomimic ------------------------------------------------------------------------------------


def _read_robomimic(path: Path, file: Any) -> Dataset:
    """Read `data/demo_N/{actions, rewards, dones, truncated, obs/KEY, next_obs/KEY}`."""
    found = {int(m[1]): m[0] for m in map(DEMO.fullmatch, file["data"]) if m}
    if not found:
        raise DataError(f"{path}: data has no demo_N")
    broken: Broken = {}
    episodes: list[Recorded] = []
    for index, name in sorted(found.items()):
        try:
            episodes.append(_demo(index, file["data"][name]))
        except (DataError, OSError, RuntimeError) as error:  # h5py raises builtin errors
            broken[index] = f"data/{name}: {error}"
    return gather(_origin(path, file, "robomimic hdf5"), episodes, broken)


def _demo(index: int, demo: Any) -> Recorded:
    for name in ("actions", "obs"):
        if name not in demo:
            raise DataError(f"{name!r} is missing")
    columns: dict[str, Any] = {}
    finals: dict[str, Any] = {}
    for key in demo["obs"]:
        values = demo["obs"][key]
        picture = is_picture(values.dtype, values.shape[1:])
        name = observation_name(key, picture)
        columns[name] = values if picture else values[:]
        if "next_obs" in demo and key in demo["next_obs"] and len(demo["next_obs"][key]):
            finals[name] = demo["next_obs"][key][-1]
    columns[ACTION] = demo["actions"][:]
    if "rewards" in demo:
        columns[REWARD] = demo["rewards"][:].astype(np.float32)
    columns |= {k: demo[ARRAYS[k]][:].astype(bool) for k in FLAGS if ARRAYS[k] in demo}
    return Recorded(index, columns, finals, str(demo.attrs.get("task", "")))


def write_robomimic(data: Dataset, path: Path) -> list[str]:
    """Write a dataset in robomimic's style, images as arrays; return a note of what is lost."""
    h5py = require("h5py", "data")
    with h5py.File(path, "w") as file:
        file.attrs["fps"] = data.fps
        group = file.create_group("data")
        group.attrs["total"] = data.num_frames
        for place, episode in enumerate(data.episodes):
            demo = group.create_group(f"demo_{place}")
            demo.attrs["num_samples"] = episode.length
            demo.attrs["task"] = data.task(episode.first)
            rows = slice(episode.first, episode.end)
            for name, target in ARRAYS.items():
                if name in data.columns:
                    values = data.columns[name][rows]
                    demo[target] = values if name != DONE else values.astype(np.int64)
            for name in filter(_is_observed, data.features):
                if name in data.cameras or not _is_text(data, name):
                    _write_observation(demo, data, name, episode.index, np.r_[rows])
    lost = [n for n in data.features if not _is_observed(n) and n not in ARRAYS]
    return _left_out(data, "robomimic", lost)


def _is_observed(name: str) -> bool:
    return name.startswith("observation.")


def _is_text(data: Dataset, name: str) -> bool:
    return name in data.columns and data.columns[name].dtype == object


def _left_out(data: Dataset, style: str, lost: list[str]) -> list[str]:
    """Return a note that names what a style of HDF5 has no place for."""
    text = [n for n in data.features if _is_observed(n) and _is_text(data, n)]
    names = [n for n in (*text, *lost) if n not in COUNTERS]
    if not names:
        return []
    return [f"{data.place}: {style} HDF5 has no place for {', '.join(names)}: left out"]


def _write_observation(demo: Any, data: Dataset, name: str, index: int, rows: Array) -> None:
    key = name.removeprefix("observation.images.").removeprefix("observation.")
    values = data.cameras[name].read(rows) if name in data.cameras else data.columns[name][rows]
    demo[f"obs/{key}"] = values
    if index in data.finals.get(name, {}):
        final = data.finals[name][index]
        demo[f"next_obs/{key}"] = np.concatenate([values[1:], final[None].astype(values.dtype)])


# -- D4RL -----------------------------------------------------------------------------------------


def _read_d4rl(path: Path, file: Any) -> Dataset:
    """Read flat arrays: an episode ends with a terminal or a timeout, or where another starts."""
    arrays = {k: file[k][:] for k in ("observations", "actions", "rewards")}
    num = len(arrays["actions"])
    for name in ("terminals", "timeouts", "next_observations"):
        if name in file:
            arrays[name] = file[name][:]
    if odd := [k for k, v in arrays.items() if len(v) != num]:
        raise DataError(f"{path}: {odd[0]!r} has {len(arrays[odd[0]])} rows, 'actions' {num}")
    infos = file.get("infos", {})
    for name in infos:
        if getattr(infos[name], "shape", (0,))[:1] == (num,):
            arrays[f"{INFOS}{name}"] = infos[name][:]
    return gather(_origin(path, file, "d4rl hdf5"), _d4rl_episodes(arrays))


def _d4rl_episodes(arrays: dict[str, Array]) -> Iterator[Recorded]:
    num = len(arrays["actions"])
    terminal = arrays.get("terminals", np.zeros(num)).astype(bool)
    ends = terminal | _timeouts(arrays, num)
    ends[-1] = True
    first, index = 0, 0
    for last in np.flatnonzero(ends):
        episode = _d4rl_episode(arrays, index, first, int(last), bool(terminal[last]))
        first = int(last) + 1
        if episode is not None:
            yield episode
            index += 1


def _timeouts(arrays: dict[str, Array], num: int) -> Array:
    if "timeouts" in arrays:
        return arrays["timeouts"].astype(bool)
    jumps = np.zeros(num, bool)
    if "next_observations" in arrays:
        gap = arrays["observations"][1:] - arrays["next_observations"][:-1]
        jumps[:-1] = np.linalg.norm(gap.reshape(num - 1, -1), axis=1) > SAME
    return jumps


def _d4rl_episode(
    arrays: dict[str, Array], index: int, first: int, last: int, terminal: bool
) -> Recorded | None:
    """Return an episode. What follows a timeout is not recorded without `next_observations`: its
    last observation is then only the one that the episode ended with."""
    finals: dict[str, Any] = {}
    end = last + 1
    if "next_observations" in arrays:
        finals[STATE] = arrays["next_observations"][last]
    elif not terminal:
        finals[STATE], end = arrays["observations"][last], last
    if end == first:
        return None
    rows = slice(first, end)
    inside = np.arange(first, end) == end - 1
    columns: dict[str, Any] = {
        STATE: arrays["observations"][rows],
        ACTION: arrays["actions"][rows],
        REWARD: arrays["rewards"][rows].astype(np.float32),
        DONE: inside,
        TRUNCATED: inside & (not terminal),
    }
    columns |= {k: v[rows] for k, v in arrays.items() if k.startswith(INFOS)}
    return Recorded(index, columns, finals)


def write_d4rl(data: Dataset, path: Path) -> list[str]:
    """Write a dataset of one vector as D4RL's flat arrays; return a note of what is lost."""
    h5py = require("h5py", "data")
    names = [n for n in data.features if _is_observed(n)]
    if len(names) != 1 or names[0] in data.cameras:
        raise DataError(f"{data.place}: the D4RL format has one observation vector, not {names}")
    infos = [n for n in data.features if n.startswith(INFOS) and not _is_text(data, n)]
    rows = np.concatenate([np.arange(e.first, e.end) for e in data.episodes])
    last = np.concatenate([np.arange(e.first, e.end) == e.end - 1 for e in data.episodes])
    none = np.zeros(data.num_rows, bool)
    over = data.columns.get(DONE, none) & ~data.columns.get(TRUNCATED, none)
    terminal = over.reshape(data.num_rows)[rows]
    state = data.columns[names[0]][rows]
    with h5py.File(path, "w") as file:
        file.attrs["fps"] = data.fps
        file["observations"], file["actions"] = state, data.columns[ACTION][rows]
        zeros = np.zeros(data.num_rows, np.float32)
        file["rewards"] = data.columns.get(REWARD, zeros).reshape(data.num_rows)[rows]
        file["terminals"], file["timeouts"] = terminal, last & ~terminal
        if names[0] in data.finals:
            after = np.concatenate([state[1:], state[-1:]])
            finals = data.finals[names[0]]
            after[last] = [finals.get(e.index, state[last][i]) for i, e in enumerate(data.episodes)]
            file["next_observations"] = after
        for name in infos:
            file[f"infos/{name.removeprefix(INFOS)}"] = data.columns[name][rows]
    held = {*names, *infos, ACTION, REWARD, DONE, TRUNCATED}
    lost = [n for n in data.features if n not in held]
    return _left_out(data, "D4RL", [*lost, *(["the tasks"] if data.tasks else [])])
