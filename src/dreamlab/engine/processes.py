"""Multi-process training of one run: its options, and torch's elastic agent as launcher.

`dreamlab train X distributed.processes=2` starts the agent, whose workers are `dreamlab train X
distributed.processes=2` again; `torchrun --nproc-per-node 2 -m dreamlab train X` does the same.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import psutil
import torch

from dreamlab.core import world
from dreamlab.core.errors import ConfigError, LabError
from dreamlab.core.limits import Natural, Positive, Range
from dreamlab.core.text import print
from dreamlab.engine.accelerate import check_several, found_device
from dreamlab.engine.checkpoint import CheckpointConfig, Checkpoints
from dreamlab.engine.signals import PREEMPTED, PREEMPTION, handled, leave_lost_terminal

OURS = "DREAMLAB_LAUNCHED"
"""Set for workers of our own launcher: the file in which rank 0 leaves the exit code."""
RUN = "run"
"""Beside it: the file in which rank 0 leaves the run directory."""
INTERRUPTED = 130
PEER_LOST = 75
"""Exit code of a process that ends because another one did."""
PATIENCE_S = 600
"""Time limit for workers to save after a signal before they are killed."""
ORPHAN_CHECK_S = 1.0


@dataclass(frozen=True)
class DistributedConfig:
    """Processes that train one run together, each with its own environments and replay."""

    processes: Annotated[int, Range(1, 4_096)] = 1
    """Number of processes. The batch size is per process, so that one update uses `processes` times
    as much data; env frames, decisions and train ratio are counted over all.
    """
    shard: bool = False
    """Shard weights, optimizer states and averages over the processes."""
    shard_least: Natural = 1_024
    """With `shard`: weights with fewer entries are not sharded."""
    assemble: bool = True
    """With `shard`: rank 0 gathers all weights to evaluate and to report. false: neither is done,
    for models that do not fit in one process.
    """
    timeout_s: Positive = world.TIMEOUT_S
    """Maximum wait for other processes, for example while rank 0 evaluates."""
    check_every_updates: Natural | None = None
    """Updates between comparisons of the weights of all processes; 0: never. None: 10 if
    `watch.check_every_update` is on, as in the preset `debug`, else never. With `shard` only those
    that are not sharded are compared.
    """

    def __post_init__(self) -> None:
        if self.shard_least != DistributedConfig.shard_least and not self.shard:
            raise ValueError("shard_least has no effect without shard")
        if not (self.assemble or self.shard):
            raise ValueError("assemble has no effect without shard")

    def check_effect(self, processes: int) -> None:
        """Raise on options without an effect on so many processes, if torchrun starts no more."""
        place = world.launched()
        if processes > 1 or (place is not None and place.size > 1):
            return
        for name in ("shard", "shard_least", "timeout_s", "check_every_updates"):
            if getattr(self, name) != getattr(DistributedConfig, name):
                raise ConfigError(f"distributed: {name} has no effect with processes=1")


def placed(processes: int) -> world.World:
    """Return the rank of this process; raise if another number of processes was started."""
    place = world.launched() or world.World()
    if processes not in (1, place.size):
        raise ConfigError(
            f"distributed.processes={processes}, but {place.size} started: use `dreamlab train`, "
            "which starts them, or torchrun --nproc-per-node with the same number"
        )
    return place


def wants_launch(processes: int) -> bool:
    """Return whether this process must launch the others."""
    return processes > 1 and world.launched() is None


def check_devices(device: str, devices: int, processes: int) -> None:
    """Raise unless each process has the device it needs: told before any of them is started."""
    place = world.launched()
    if place is not None:
        processes = place.size
    if processes == 1:
        return
    name = "cuda" if devices > 1 else found_device(device)
    check_several(name, processes)
    needed = processes if place is None else place.local_size
    there = torch.cuda.device_count()
    if name != "cuda" or needed <= there:
        return
    asked = f"devices={devices}" if devices > 1 else f"device={device} with {processes} processes"
    found = "none" if there == 0 else f"only {there}"
    raise ConfigError(
        f"{asked}: needs {needed} GPUs on this machine, which has {found}. Instead use "
        + _remedy(devices, there if place is None else None)
    )


def _remedy(devices: int, there: int | None) -> str:
    """Return the options that work with so many GPUs; None: others start the processes."""
    if devices == 1:
        fewer = f"distributed.processes={there}, or " if there else ""
        return f"{fewer}device=cpu" + (", or start fewer processes" if there is None else "")
    fewer = ""
    if there is not None:
        fewer = f"devices={there}, or " if there else "devices=1 device=cpu for one process, or "
    rest = f"devices=1 device=cpu distributed.processes={devices}"
    return f"{fewer}{rest} for as many processes on the CPU"


# -- the launcher ---------------------------------------------------------------------------------


def launch(words: Sequence[str], processes: int) -> int:
    """Run `dreamlab` with these arguments in several processes and return its exit code."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed"):  # replaced by our own one-sentence messages
            logging.getLogger(name).setLevel(logging.CRITICAL)
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(PATIENCE_S))
    os.environ.setdefault("OMP_NUM_THREADS", str(threads_each(processes)))
    with tempfile.TemporaryDirectory(prefix="dreamlab_launch_") as folder:
        os.environ[OURS] = str(Path(folder) / "code")
        config = LaunchConfig(
            min_nodes=1, max_nodes=1, nproc_per_node=processes, run_id=secrets.token_hex(8),
            rdzv_backend="c10d", rdzv_endpoint="localhost:0", local_addr="localhost",
            max_restarts=0, monitor_interval=0.1, **_left_to_agent(LaunchConfig),
        )  # fmt: skip
        passed: list[str] = []
        try:
            with _passing_on(passed):
                elastic_launch(config, sys.executable)("-m", "dreamlab", *words)
        except SignalException:
            return _code(folder, INTERRUPTED)
        except ChildFailedError as error:
            return _failed(error.failures, folder, passed)
        finally:
            del os.environ[OURS]
        return _code(folder, 0)


def _left_to_agent(config: type[Any]) -> dict[str, Any]:
    """Return the option that keeps SIGTERM and SIGHUP from torch's agent; older versions have none.

    It would listen to SIGHUP under nohup, too.
    """
    known = any(f.name == "signals_to_handle" for f in fields(config))
    return {"signals_to_handle": "SIGINT,SIGQUIT"} if known else {}


@contextmanager
def _passing_on(passed: list[str]) -> Iterator[None]:
    """Pass SIGUSR1, SIGTERM and SIGHUP on to the processes: they save and end, and the agent too.

    Their names are appended to `passed`.

    The agent would die of the first, and sends the others to whole process groups: to environments
    in their own processes too, without which there is nothing to save.
    """

    def handle(number: int, frame: Any) -> None:
        leave_lost_terminal(number)
        passed.append(_signal(number))
        ranks = psutil.Process().children()
        if not ranks:  # nothing has begun
            sys.exit(PREEMPTED if PREEMPTION in passed else INTERRUPTED)
        for rank in ranks:
            with suppress(psutil.NoSuchProcess):
                rank.send_signal(number)

    try:
        before = {n: signal.signal(n, handle) for n in handled() if n != signal.SIGINT}
    except ValueError:  # signals belong to the main thread
        yield
        return
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def threads_each(processes: int) -> int:
    """Return the share of this machine's cores that each of so many processes has."""
    affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if affinity else os.cpu_count() or 1
    return max(1, cores // processes)


def _code(folder: str, otherwise: int) -> int:
    """Return the exit code left by rank 0."""
    try:
        return int((Path(folder) / "code").read_text())
    except (OSError, ValueError):
        return otherwise


def _failed(failures: dict[int, Any], folder: str, passed: Sequence[str] = ()) -> int:
    """Print what went wrong: errors of processes, or which one was killed and how.

    What ends by a signal that was passed on, before it could save, was only stopped. Failures are
    in the order in which the agent met them.
    """
    texts: dict[str, list[int]] = {}
    for path in sorted(Path(folder).glob("code.*")):
        texts.setdefault(path.read_text(), []).append(int(path.suffix[1:]))
    for text, ranks in texts.items():
        print(text if 0 in ranks else f"rank {ranks[0]}: {text}", file=sys.stderr)
    late = [k for k, f in failures.items() if _preempted(f.exitcode)]
    if late and not texts:
        how = _goes_on(folder)
        print(f"rank {late[0]} was preempted before it had saved. {how}", file=sys.stderr)
        return PREEMPTED
    codes = {f.exitcode for f in failures.values()}
    stopped = {-signal.SIGTERM, PEER_LOST, *(-signal.Signals[name] for name in passed)}
    if passed and not texts and codes <= stopped:
        return INTERRUPTED
    if texts or (cause := _cause(failures)) is None:
        return _code(folder, 2)
    raise LabError(f"{cause}; the other processes were stopped. {_goes_on(folder)}")


def _cause(failures: dict[int, Any]) -> str | None:
    """Return which process ended first and how; None if each has said so itself.

    The agent ends those that are left by SIGTERM: of these only the first was not ended by it.
    """
    first = next(iter(failures))
    own = {k: f for k, f in failures.items() if k == first or f.exitcode != -signal.SIGTERM}
    killed = {k: f for k, f in own.items() if f.exitcode < 0}
    ended = {k: f for k, f in own.items() if f.exitcode not in (2, PEER_LOST, INTERRUPTED)}
    lost = own if {f.exitcode for f in own.values()} == {PEER_LOST} else {}
    for found in (killed, ended, lost):
        for number, failure in found.items():
            return f"rank {number} (process {failure.pid}) {_how(failure.exitcode)}"
    return None


def _how(code: int) -> str:
    if code < 0:
        return f"was killed by signal {-code} ({_signal(-code)})"
    if code == PEER_LOST:
        return "lost the connection to another process, which had ended or did not answer"
    return f"ended with exit code {code}"


def _goes_on(folder: str) -> str:
    """Return how a run is continued, as far as it has come."""
    try:
        run = (Path(folder) / RUN).read_text()
    except OSError:
        return "The run had not begun"
    if not Checkpoints(Path(run) / "checkpoints", CheckpointConfig(), print).names():
        return f"No checkpoint had been saved: the same command with run.dir={run} starts over"
    return f"The last checkpoint is complete: `dreamlab resume {run}` resumes"


def note_folder(folder: Path) -> None:
    """Leave the run's folder to our launcher, which says how the run is resumed."""
    if OURS in os.environ and world.launched() is not None:
        Path(os.environ[OURS]).with_name(RUN).write_text(str(folder))


def _preempted(code: int) -> bool:
    """Return whether a process ended at its deadline, or by SIGUSR1 before it could handle it."""
    return code == PREEMPTED or (code < 0 and _signal(-code) == PREEMPTION)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


# -- a worker -------------------------------------------------------------------------------------


@contextmanager
def together(processes: int, device: str, timeout_s: float) -> Iterator[world.World]:
    """Join the run's processes inside the block; with one process, do nothing."""
    place = placed(processes)
    if place.size == 1:
        yield place
        return
    cuda = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    if cuda:
        torch.cuda.set_device(place.local_rank)  # before nccl is asked for a group
    if OURS in os.environ:
        _end_with_parent()
    with world.joined(place, cuda, timeout_s):
        yield place


def leave(code: int) -> int:
    """Return the exit code of a worker, and leave the run's code for our launcher.

    An interruption is not a failure: the agent must not kill the others while they save.
    """
    if OURS not in os.environ or world.launched() is None:
        return code
    if int(os.environ.get("RANK", "0")) == 0:
        Path(os.environ[OURS]).write_text(str(code))
    return 0 if code in (INTERRUPTED, PREEMPTED) else code


def told(error: LabError) -> bool:
    """Leave an error to our launcher, so that it is printed once; return False without one."""
    if OURS not in os.environ or world.launched() is None:
        return False
    text = f"{type(error).__name__}: {error}"
    Path(f"{os.environ[OURS]}.{os.environ['RANK']}").write_text(text)
    return True


def lost(error: world.PeerLostError) -> int:
    """Return the exit code after a lost peer; our launcher prints the reason."""
    if OURS not in os.environ:
        print(f"PeerLostError: {error}", file=sys.stderr)
    return PEER_LOST


def _end_with_parent() -> None:
    """Request a stop, as Ctrl-C does, if the launcher is gone, so that no process is orphaned."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(ORPHAN_CHECK_S)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
