"""Our replay beside TorchRL's slices: windows of pictures and Dreamer's latents, in one process.

Both hold the same steps and are measured in turns, so that a busy machine slows both. TorchRL is
given every configuration in `VARIANTS` and counts with the fastest. Run it with
`python benchmarks/replay.py`, or small: `--steps 4000 --seconds 0.1 --rounds 1`.
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from dreamlab.core.types import ArraySpec, Decision, Spec, Step
from dreamlab.data.replay import Replay, ReplayConfig
from dreamlab.data.source import BufferContext

warnings.filterwarnings("ignore")
try:
    import tensordict
    import torchrl
    from tensordict import TensorDict
    from torchrl.data import LazyMemmapStorage, LazyTensorStorage, ReplayBuffer, SliceSampler
except ModuleNotFoundError:
    sys.exit("this benchmark needs TorchRL: pip install 'dreamlab[bench]'")

NUM_ENVS, EPISODE, BATCH, LENGTH = 16, 500, 16, 64
IMAGE, DETER, STOCH, ACTION = (64, 64, 3), 4096, 1024, 6
SPEC = Spec({"image": ArraySpec(IMAGE, "uint8")}, ArraySpec((ACTION,)))
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"cache_values": False},
    "cache": {"cache_values": True},
    "cache, prefetch 2": {"cache_values": True, "prefetch": 2},
}
OURS = "dreamlab"
Rates = dict[str, list[float]]
RESULTS = Path(__file__).parent / "results" / "replay.md"


@dataclass(frozen=True)
class Options:
    """The command line."""

    steps: int
    seconds: float
    rounds: int
    threads: int
    record: bool


class Source:
    """Steps that carry their own id in the reward, the picture and the latents."""

    def __init__(self, latents: bool) -> None:
        rng = np.random.default_rng(0)
        self.latents = latents
        self.image = rng.integers(0, 256, (NUM_ENVS, *IMAGE), dtype=np.uint8)
        self.deter = torch.randn(NUM_ENVS, DETER)
        self.stoch = torch.randn(NUM_ENVS, STOCH)
        self.action = torch.randn(NUM_ENVS, ACTION)

    def tick(self, tick: int) -> tuple[Step, Decision]:
        """Return the step of all environments at a tick, and what was decided from it."""
        ids = tick * NUM_ENVS + np.arange(NUM_ENVS)
        self.image[:, 0, 0, 0] = ids % 251
        self.deter[:, 0] = torch.from_numpy(ids)
        self.stoch[:, -1] = torch.from_numpy(ids)
        place = tick % EPISODE
        flags = [np.full(NUM_ENVS, place == p) for p in (0, EPISODE - 1, EPISODE - 1)]
        step = Step({"image": self.image}, ids.astype(np.float32), *flags)
        extras = {"deter": self.deter, "stoch": self.stoch} if self.latents else {}
        return step, Decision(self.action, extras=extras)


class Subject(Protocol):
    """A replay under test."""

    def add(self, tick: int) -> None: ...
    def sample(self) -> Any: ...
    def arrays(self, batch: Any) -> dict[str, torch.Tensor]: ...


class Ours:
    """dreamlab's Replay, drawing windows inside episodes as TorchRL's slices lie."""

    def __init__(self, source: Source, steps: int, folder: Path | None) -> None:
        storage = "ram" if folder is None else "disk"
        config = ReplayConfig(
            capacity=steps, batch=BATCH, length=LENGTH, windows="inside", storage=storage
        )
        self.source, self.replay = (
            source,
            Replay(config, BufferContext(SPEC, NUM_ENVS, folder=folder)),
        )
        self.sample = self.replay.sample

    def add(self, tick: int) -> None:
        self.replay.add(*self.source.tick(tick))

    def arrays(self, batch: Any) -> dict[str, torch.Tensor]:
        return {"image": batch.obs["image"], "reward": batch.reward, **batch.extras}


class Theirs:
    """TorchRL's ReplayBuffer with a SliceSampler; several may share one storage."""

    def __init__(self, source: Source, storage: Any, cache_values: bool, prefetch: int = 0) -> None:
        self.source = source
        sampler = SliceSampler(num_slices=BATCH, end_key="is_last", cache_values=cache_values)
        self.buffer = ReplayBuffer(
            storage=storage,
            sampler=sampler,
            batch_size=BATCH * LENGTH,
            prefetch=prefetch or None,
            dim_extend=0,
        )
        self.sample = self.buffer.sample

    def add(self, tick: int) -> None:
        step, decision = self.source.tick(tick)
        flags = {k: getattr(step, k)[:, None] for k in ("is_first", "is_last", "is_terminal")}
        arrays = {"image": step.obs["image"], "reward": step.reward, **flags}
        row = {k: torch.from_numpy(v) for k, v in arrays.items()}
        row |= {"action": decision.action, **decision.extras}
        self.buffer.extend(TensorDict(row, [NUM_ENVS])[None])

    def arrays(self, batch: Any) -> dict[str, torch.Tensor]:
        names = [k for k in ("image", "reward", "deter", "stoch") if k in batch.keys()]  # noqa: SIM118
        return {k: batch[k].view(BATCH, LENGTH, *batch[k].shape[1:]) for k in names}


def build(source: Source, options: Options, folder: Path | None) -> dict[str, Subject]:
    """Return both replays, full, the second one under each of its configurations."""
    if folder is None:
        storage = LazyTensorStorage(options.steps, ndim=2)
    else:
        storage = LazyMemmapStorage(options.steps, ndim=2, scratch_dir=folder / "torchrl")
    ours = Ours(source, options.steps, folder / "dreamlab" if folder is not None else None)
    subjects: dict[str, Subject] = {OURS: ours}
    for name, variant in VARIANTS.items():
        subjects[f"torchrl, {name}"] = Theirs(source, storage, **variant)
    for tick in range(options.steps // NUM_ENVS):
        ours.add(tick)
        subjects["torchrl, plain"].add(tick)
    for subject in subjects.values():
        check(subject)
    return subjects


def check(subject: Subject) -> None:
    """Raise unless a batch holds consecutive steps of one environment, each whole."""
    batch = subject.arrays(subject.sample())
    ids = batch["reward"]
    assert ids.shape == (BATCH, LENGTH), ids.shape
    assert (ids[:, 1:] - ids[:, :-1] == NUM_ENVS).all(), ids
    assert (batch["image"][:, :, 0, 0, 0] == ids % 251).all()
    if "deter" in batch:
        assert (batch["deter"][..., 0] == ids).all()
        assert (batch["stoch"][..., -1] == ids).all()


def rate(work: Callable[[], Any], seconds: float, threads: int) -> float:
    """Return how often `work` runs in a second.

    On one thread a second is one of CPU time: on a shared machine it does not count the pauses in
    which others had the core, and on an idle one it is the same as that of the clock.
    """
    clock = time.process_time if threads == 1 else time.perf_counter
    time.sleep(0.2)  # what the one before still prefetches is not this one's time
    work()
    count, start = 0, clock()
    while (elapsed := clock() - start) < seconds or count == 0:
        work()
        count += 1
    return count / elapsed


def in_turns(works: dict[str, Callable[[], Any]], options: Options) -> Rates:
    """Return the rates of each in every round, measured one after the other."""
    rates: Rates = {name: [] for name in works}
    for _ in range(options.rounds):
        for name, work in works.items():
            rates[name].append(rate(work, options.seconds, options.threads))
    return rates


def compare(rates: Rates) -> tuple[float, str, float, float]:
    """Return our median rate, their best configuration, its median, and the median ratio."""
    best = max((k for k in rates if k != OURS), key=lambda k: statistics.median(rates[k]))
    ratios = [a / b for a, b in zip(rates[OURS], rates[best], strict=True)]
    medians = statistics.median(rates[OURS]), statistics.median(rates[best])
    return medians[0], best, medians[1], statistics.median(ratios)


def measure(options: Options, latents: bool, folder: Path | None) -> dict[str, Rates]:
    """Return the rates of sampling, adding, and both by turns, for every subject."""
    subjects = build(Source(latents), options, folder)
    tick = [options.steps // NUM_ENVS]

    def adding(subject: Subject, sample: bool) -> Callable[[], None]:
        def work() -> None:
            tick[0] += 1
            subject.add(tick[0])
            if sample:
                subject.sample()

        return work

    out = {"sample": in_turns({k: s.sample for k, s in subjects.items()}, options)}
    if latents:
        out["add"] = in_turns({k: adding(s, False) for k, s in subjects.items()}, options)
        out["add + sample"] = in_turns({k: adding(s, True) for k, s in subjects.items()}, options)
    return out


def run(options: Options) -> tuple[list[str], float]:
    """Return the table and the ratio of batches a second, with latents, in RAM."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        results = {
            "RAM, with latents": measure(options, True, None),
            "RAM, without latents": measure(options, False, None),
            "disk, with latents": measure(options, True, folder / "with"),
        }
        shutil.rmtree(folder / "with", ignore_errors=True)
    lines = ["| store | work | dreamlab /s | torchrl best /s | its configuration | ratio |"]
    lines.append("|---|---|---|---|---|---|")
    for store, works in results.items():
        for work, rates in works.items():
            ours, name, theirs, ratio = compare(rates)
            text = f"{ours:.0f} | {theirs:.0f} | {name.removeprefix('torchrl, ')} | {ratio:.1f}"
            lines.append(f"| {store} | {work} | {text} |")
    return lines, compare(results["RAM, with latents"]["sample"])[3]


def describe(options: Options) -> list[str]:
    """Return what was run, on what."""
    info = Path("/proc/cpuinfo")
    names = info.read_text().split("model name\t: ")[1:] if info.exists() else []
    cpu = names[0].splitlines()[0] if names else platform.processor()
    versions = f"torch {torch.__version__}, torchrl {torchrl.__version__}"
    return [
        f"`python benchmarks/replay.py {' '.join(sys.argv[1:])}`".replace(" `", "`"),
        "",
        f"{options.steps} steps of {NUM_ENVS} environments; picture 64x64x3, latents "
        f"{DETER} + {STOCH} float32; batch {BATCH} x {LENGTH}; windows in episodes of {EPISODE}.",
        f"{versions}, tensordict {tensordict.__version__}, python {platform.python_version()}; "
        f"{cpu}, {os.cpu_count()} cores, {options.threads} thread(s).",
        f"Medians of {options.rounds} alternating rounds of {options.seconds} s"
        f"{' of CPU time' if options.threads == 1 else ''}; load average {os.getloadavg()[0]:.1f}.",
        "A sample is a batch; an add is one step of every environment.",
        "",
    ]


def parse() -> Options:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=0.2, help="per measurement")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--threads", type=int, default=1, help="more measure the scheduler where cores are shared"
    )
    parser.add_argument("--record", action="store_true", help=f"write {RESULTS.name}")
    return Options(**vars(parser.parse_args()))


def main() -> None:
    """Run, print a table, and end with the ratio."""
    logging.getLogger("torchrl").setLevel(logging.ERROR)
    options = parse()
    torch.set_num_threads(options.threads)
    lines, ratio = run(options)
    lines = [*describe(options), *lines, "", f"ratio {ratio:.1f}"]
    if options.record:
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text("# Replay beside TorchRL\n\n" + "\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
