"""A chain of digests: what a run saw, did and learned, so that a second run can be compared.

chain.jsonl   one line per record of metrics.jsonl; each names the line before it by its `link`
transitions   checksum of every observation, action, reward and ending since the run started
losses        checksum of the `train/` averages of this record
weights       checksum of parameters and buffers at this moment
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dreamlab.core import sharding, world
from dreamlab.core.clock import CLOCK
from dreamlab.core.types import Array, Step
from dreamlab.core.workflow import Workflow
from dreamlab.engine.logger import Jsonl, Record
from dreamlab.engine.observer import Observer

LARGE = 16_384  # bytes
LANES = 251  # words: no multiple of an image's row, so that what moves in it changes the sums
crc32: Callable[..., int] = zlib.crc32  # it takes arrays, though its type does not say so
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Chain(Observer):
    """Takes part in a run as one more sink of its metrics, and observes what is collected.

    Checksums are CRC-32: unlike those of a cryptographic hash, the state of one in the middle of an
    interval is a number, which a checkpoint can hold.
    """

    def __init__(self, path: Path, workflow: Workflow[Any]) -> None:
        self.file, self.workflow = Jsonl(path), workflow
        self.crc, self.decisions, self.link = 0, 0, ""

    def ticked(self, step: Step, action: Array, ended: int) -> None:
        """Take in one tick: what was shown, what was done, and how many episodes ended there."""
        crc = self.crc
        for value in step.obs.values():
            crc = checksum(value, crc)
        crc = crc32(np.ascontiguousarray(action), crc)
        crc = crc32(step.reward, crc)
        if ended:
            crc = crc32(step.is_last, crc32(step.is_terminal, crc))
        self.crc = crc
        self.decisions += len(action)

    def write(self, record: Record) -> None:
        """Append a link for this record of metrics."""
        names = ("env_frames", "decisions", "updates", *((CLOCK,) if CLOCK in record else ()))
        link: dict[str, Any] = {k: int(record[k]) for k in names}
        # decisions that were not recorded: 0 unless the chain was enabled in the middle of a run
        # of several processes each makes as many, and rank 0 watches its own
        link["missed"] = link["decisions"] // world.size() - self.decisions
        link["transitions"] = f"{self.crc:08x}"
        link["losses"] = digest_of_losses(record)
        link["weights"] = digest_of_weights(self.workflow)
        self.link = hashlib.sha256(f"{self.link}{sorted(link.items())}".encode()).hexdigest()[:16]
        self.file.append({**link, "link": self.link})

    def get_state(self) -> dict[str, Any]:
        own = {"crc": self.crc, "decisions": self.decisions, "link": self.link}
        return {**own, **self.file.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        self.file.set_state(state)
        self.crc, self.decisions = int(state["crc"]), int(state["decisions"])
        self.link = str(state["link"])

    def restart(self) -> None:
        self.file.restart()
        self.crc, self.decisions, self.link = 0, 0, ""

    def close(self) -> None:
        self.file.close()


def checksum(value: Array, crc: int) -> int:
    """Return the checksum `crc` continued by an array; of a large one, by sums over its words."""
    flat = np.ascontiguousarray(value)
    if flat.nbytes < LARGE:
        return crc32(flat, crc)
    data = flat.reshape(-1).view(np.uint8)
    whole = len(data) - len(data) % (8 * LANES)
    sums = data[:whole].view(np.uint64).reshape(-1, LANES).sum(0)
    return crc32(data[whole:], crc32(sums, crc))


def digest_of_losses(record: Record) -> str:
    """Return a checksum of what the updates reported; two that print alike are alike."""
    losses = [(k, float(v)) for k, v in sorted(record.items()) if k.startswith("train/")]
    return f"{crc32(repr(losses).encode()):08x}"


@torch.no_grad()
def digest_of_weights(workflow: Workflow[Any]) -> str:
    """Return a checksum of all parameters and buffers: each is summed up where it is.

    Only the sums leave a GPU, all at once. Of sharded weights it is that of this process's part.
    """
    tensors = [*sharding.parts(list(workflow.parameters())), *workflow.buffers()]
    sums = [torch.sum(_words(t), dtype=torch.int64) for t in tensors]
    if not sums:
        return f"{0:08x}"
    return f"{crc32(torch.stack(sums).cpu().numpy()):08x}"


def _words(tensor: Tensor) -> Tensor:
    """Return the bits of a tensor as integers."""
    return tensor.view(WORDS[tensor.element_size()])
