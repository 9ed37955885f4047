"""Random number generators: all streams derive from one seed and are saved and restored."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Seed python, numpy and torch on every device."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def derive(seed: int, *path: int) -> int:
    """Return a seed for one stream (an env, an episode, a buffer).

    Different paths give different streams, with one exception kept for existing runs: (k, 0) equals
    (k,).
    """
    # numpy ignores trailing zeros, so new streams include the length
    words = path if len(path) in (1, 2) else (0, 0, len(path) + 1, *path)
    return int(np.random.SeedSequence([seed, *words]).generate_state(1)[0])


def get_state() -> dict[str, Any]:
    """Return the state of every global generator as plain data."""
    version, words, gauss = random.getstate()
    name, keys, pos, has_gauss, cached = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "python": [version, list(words), gauss],
        "numpy": [name, torch.from_numpy(keys.astype(np.int64)), pos, has_gauss, cached],  # type: ignore[union-attr]
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_state(state: dict[str, Any]) -> None:
    """Restore every global generator from `get_state`."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, pos, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), pos, has_gauss, cached))
    torch.set_rng_state(state["torch"].cpu())
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([s.cpu() for s in state["cuda"]])


@contextmanager
def fork(seed: int) -> Iterator[None]:
    """Run a block with its own seed and restore every global generator after it."""
    state = get_state()
    seed_all(seed)
    try:
        yield
    finally:
        set_state(state)


class Stream:
    """A stream of torch random numbers, active inside `with`; other streams are unaffected."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self.cuda = [device] if device.type == "cuda" else []
        with fork(seed):
            self.states = self._get()
        self.outside = self.states

    def _get(self) -> list[torch.Tensor]:
        return [torch.get_rng_state(), *(torch.cuda.get_rng_state(d) for d in self.cuda)]

    def _set(self, states: list[torch.Tensor]) -> None:
        torch.set_rng_state(states[0])
        for device, state in zip(self.cuda, states[1:], strict=True):
            torch.cuda.set_rng_state(state, device)

    def __enter__(self) -> None:
        self.outside = self._get()
        self._set(self.states)

    def __exit__(self, *_: object) -> None:
        self.states = self._get()
        self._set(self.outside)


def generator_state(generator: np.random.Generator) -> dict[str, Any]:
    """Return a numpy generator's state as plain data (integers beyond 64 bits become text)."""
    return _map_ints(generator.bit_generator.state, str)


def set_generator_state(generator: np.random.Generator, state: dict[str, Any]) -> None:
    """Restore a numpy generator from `generator_state`."""
    generator.bit_generator.state = _map_ints(state, None)


def _map_ints(node: Any, to: Any) -> Any:
    if isinstance(node, dict):
        return {k: _map_ints(v, to) for k, v in node.items()}
    if to is str:
        return f"int:{node}" if isinstance(node, int) else node
    return int(node[4:]) if isinstance(node, str) and node.startswith("int:") else node
