"""Batches sampled from several sources at once, each with its share of the windows."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dreamlab.core.errors import ConfigError
from dreamlab.core.phase import Phase
from dreamlab.core.types import Batch
from dreamlab.data.source import Source


def source_of(phase: Phase, sources: Mapping[str, Source]) -> Source | None:
    """Return what a phase samples batches from; None if it names nothing that is there."""
    if phase.sources is None:
        return sources.get(phase.buffer)
    return Mix(sources, phase.sources)


def draws(source: Source, phase: Phase) -> list[tuple[str, Batch, Source]]:
    """Return each update hook of a phase, the batch it learns from, and where that came from.

    All share one batch but those that sample in proportion.
    """
    shared = source.sample() if set(phase.update_hooks) - set(phase.proportional) else None
    found: list[tuple[str, Batch, Source]] = []
    for name in phase.update_hooks:
        if name in phase.proportional:
            assert isinstance(source, Mix), "proportional hooks have sources: it was checked"
            by_size = source.by_size()
            found.append((name, by_size.sample(), by_size))
        elif shared is not None:
            found.append((name, shared, source))
    return found


def split_rows(shares: Mapping[str, float], rows: int) -> dict[str, int]:
    """Return how many of `rows` each name gets; shares are relative, what is left goes by rest."""
    total = sum(shares.values())
    exact = {k: rows * v / total for k, v in shares.items()}
    counts = {k: int(v) for k, v in exact.items()}
    by_rest = sorted(exact, key=lambda k: counts[k] - exact[k])
    for name in by_rest[: rows - sum(counts.values())]:
        counts[name] += 1
    return counts


class Mix:
    """Samples each batch from several sources: the first rows are the first source's, and so on.

    It holds no state of its own. What a workflow writes back goes to the source it came from.
    """

    def __init__(self, sources: Mapping[str, Source], shares: Mapping[str, float]) -> None:
        self.sources = {k: sources[k] for k in shares}
        self.rows = next(iter(self.sources.values())).rows
        self.counts = split_rows(shares, self.rows)
        if empty := [k for k, n in self.counts.items() if n == 0]:
            raise ConfigError(
                f"sources: {empty[0]!r} has a share of less than one of the {self.rows} windows "
                f"of a batch: increase its share or the batch"
            )

    @property
    def steps_per_sample(self) -> int:
        return next(iter(self.sources.values())).steps_per_sample

    def ready(self) -> bool:
        """Return whether every source can give its share."""
        return all(source.ready() for source in self.sources.values())

    def by_size(self) -> Mix:
        """Return the same sources, each with a share that is its part of all stored steps."""
        for name, source in self.sources.items():
            if not isinstance(source, Sized):
                raise ConfigError(
                    f"proportional: source {name!r} does not report how many steps it has"
                )
        sizes = {k: len(v) for k, v in self.sources.items() if isinstance(v, Sized)}
        counts = split_rows({k: n for k, n in sizes.items() if n}, self.rows)
        return Mix(self.sources, {k: float(n) for k, n in counts.items() if n})

    def sample(self, rows: int | None = None) -> Batch:
        """Sample each source's share of a batch."""
        assert rows in (None, self.rows), "shares must sum to a whole batch"
        return join({k: self.sources[k].sample(n) for k, n in self.counts.items()})

    def peek(self, seed: int, length: int) -> Batch | None:
        """Look at windows of the first source."""
        return next(iter(self.sources.values())).peek(seed, length)

    def update(self, index: Tensor, extras: dict[str, Tensor]) -> None:
        """Write extras back to the source that each row came from."""
        at = 0
        for name, num in self.counts.items():
            rows = slice(at, at + num)
            self.sources[name].update(index[rows], {k: v[rows] for k, v in extras.items()})
            at += num


def join(parts: Mapping[str, Batch]) -> Batch:
    """Return batches of the same kind as one; raise, naming the sources, where they differ."""
    parts = _told(parts)
    first = next(iter(parts))
    for name in parts:
        _check_alike(first, parts[first], name, parts[name])
    wanted = any("weight" in b.extras for b in parts.values())
    whole = [_with_weight(b) if wanted else b for b in parts.values()]
    columns = [_columns(b) for b in whole]
    rows = {k: torch.cat([c[k] for c in columns]) for k in columns[0]}
    index = [b.index for b in whole if b.index is not None]
    return Batch(
        obs={k: rows[f"obs {k}"] for k in whole[0].obs},
        extras={k: rows[f"extra {k}"] for k in whole[0].extras},
        index=torch.cat(index) if len(index) == len(whole) else None,
        **{k: rows[k] for k in PLAIN},
    )


UNTOLD: dict[str, Any] = {"pad": False, "mc_return": float("-inf")}
"""Fill values for extras that only some sources have: no padding; an unknown return."""


def _told(parts: Mapping[str, Batch]) -> dict[str, Batch]:
    """Return batches that all say what some of them do of padding and returns to come."""
    out = dict(parts)
    for name, value in UNTOLD.items():
        told = [b.extras[name] for b in parts.values() if name in b.extras]
        for key, batch in out.items() if told else ():
            if name not in batch.extras:
                same = torch.full_like(batch.reward, value, dtype=told[0].dtype)
                out[key] = replace(batch, extras={**batch.extras, name: same})
    return out


PLAIN = ("action", "reward", "is_first", "is_last", "is_terminal")


def _columns(batch: Batch) -> dict[str, Tensor]:
    """Return every array of a batch under a name that a person understands."""
    out = {f"obs {k}": v for k, v in batch.obs.items()}
    out |= {k: getattr(batch, k) for k in PLAIN}
    return out | {f"extra {k}": v for k, v in batch.extras.items()}


def _check_alike(first: str, a: Batch, second: str, b: Batch) -> None:
    ours, theirs = _form(a), _form(b)
    if odd := sorted(k for k in ours.keys() | theirs.keys() if ours.get(k) != theirs.get(k)):
        one, other = ours.get(odd[0], "missing"), theirs.get(odd[0], "missing")
        raise ConfigError(
            f"sources {first!r} and {second!r} cannot be mixed in a batch: {odd[0]} is {one} in "
            f"one and {other} in the other"
        )


def _form(batch: Batch) -> dict[str, Any]:
    """Return type and shape, rows left out, of every array."""
    arrays = {k: v for k, v in _columns(batch).items() if k != "extra weight"}
    return {
        k: f"{str(v.dtype).removeprefix('torch.')}{list(v.shape[1:])}" for k, v in arrays.items()
    }


def _with_weight(batch: Batch) -> Batch:
    """Return a batch with importance weights: 1 where its sampler has none."""
    if "weight" in batch.extras:
        return batch
    weight = torch.ones(len(batch.reward), device=batch.reward.device)
    return replace(batch, extras={**batch.extras, "weight": weight})
