"""Opens data sets with the lerobot package, in a Python of its own: ours are compared with it.

    PEER scripts/lerobot_peer.py dump ROOT OUT.npz 0,5,19 '{"action": [0, 0.1]}'
    PEER scripts/lerobot_peer.py speed ROOT BATCHES BATCH

Where torchvision is missing, the few names that lerobot takes from it stand in: its reader of
videos is PyAV then, as torchvision's own `pyav` backend is.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
import types
from collections.abc import Iterator
from typing import Any

import av
import numpy as np
import torch


class VideoReader:
    """Decodes frames from a keyframe on, as torchvision's reader with the backend `pyav` does."""

    def __init__(self, path: str, stream: str) -> None:
        self.container: Any = av.open(path)
        self.stream = self.container.streams.video[0]

    def seek(self, seconds: float, keyframes_only: bool = False) -> None:
        self.container.seek(int(seconds / self.stream.time_base), stream=self.stream)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for frame in self.container.decode(self.stream):
            picture = torch.from_numpy(frame.to_ndarray(format="rgb24")).permute(2, 0, 1)
            yield {"data": picture, "pts": frame.time}


class ToTensor:
    """A picture as numbers in [0, 1], channels first."""

    def __call__(self, picture: Any) -> torch.Tensor:
        return torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255


def stand_in() -> None:
    """Put the names of torchvision in place that lerobot imports."""

    def module(name: str, **names: Any) -> types.ModuleType:
        made = types.ModuleType(name)
        made.__dict__.update(names)
        made.__spec__ = importlib.util.spec_from_loader(name, None)
        sys.modules[name] = made
        return made

    nothing = type("Nothing", (torch.nn.Module,), {})
    v2 = module("torchvision.transforms.v2", Transform=nothing, functional=types.SimpleNamespace())
    v2.__getattr__ = lambda name: nothing  # type: ignore[method-assign]
    module("torchvision.transforms.v2.functional")
    transforms = module("torchvision.transforms", ToTensor=ToTensor, v2=v2)
    reader = module("torchvision.io", VideoReader=VideoReader)
    module(
        "torchvision", transforms=transforms, io=reader, set_video_backend=lambda name: None,
        __version__="0",
    )  # fmt: skip


def open_set(root: str, deltas: dict[str, list[float]] | None = None) -> Any:
    if importlib.util.find_spec("torchvision") is None:
        stand_in()
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    return LeRobotDataset("local/set", root=root, delta_timestamps=deltas, video_backend="pyav")


def dump(root: str, out: str, indices: str, deltas: str = "") -> None:
    """Write frames as lerobot gives them, by number and feature."""
    data = open_set(root, json.loads(deltas) if deltas else None)
    arrays: dict[str, Any] = {"count": np.array([data.num_frames, data.num_episodes, data.fps])}
    for index in map(int, indices.split(",")):
        for name, value in data[index].items():
            arrays[f"{index}/{name}"] = np.asarray(value)
    np.savez(out, **arrays)


def speed(root: str, batches: str, batch: str) -> None:
    """Print how many frames a second a shuffled loader gives, in one process."""
    loader = torch.utils.data.DataLoader(open_set(root), int(batch), shuffle=True)
    batched = iter(loader)
    next(batched)
    start, frames = time.perf_counter(), 0
    for _ in range(int(batches)):
        frames += len(next(batched)["index"])
    print(json.dumps({"frames_per_s": frames / (time.perf_counter() - start)}))


if __name__ == "__main__":
    {"dump": dump, "speed": speed}[sys.argv[1]](*sys.argv[2:])
