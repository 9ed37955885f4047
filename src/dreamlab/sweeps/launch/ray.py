"""Jobs on a Ray cluster."""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any, Literal

from dreamlab.core.errors import ConfigError, LabError, require, unknown
from dreamlab.core.files import write_json
from dreamlab.core.ray_cluster import join_cluster
from dreamlab.core.readers import MissingFileError, read_json
from dreamlab.sweeps.job import Job, Outcome
from dreamlab.sweeps.launch.local import (
    ERROR_LINES,
    KILL,
    Attempt,
    BufferContext,
    Handle,
    accompany,
    carry_out,
)
from dreamlab.sweeps.launch.options import LauncherConfig, Limits
from dreamlab.sweeps.launch.ranks import Ranks, Report, limits_of

MEETING_S = 600.0  # maximum wait of a node for the first node of its job
PARTNER_S = 60.0  # time for Ray to find out that a machine is gone
RELEASE_S = 5.0  # time for nodes to end by themselves
LOOK_S = 2.0  # interval of looks at the machines of the cluster

Ended = tuple[Outcome | Literal["lost"], str]
"""How a task ended, `lost` if its machine or its process was, and the error if it raised one."""


def _task(job: Job, where: BufferContext) -> Outcome:
    """Run one node's part of a job on the machine that Ray chose; Ray has set its GPUs."""
    ranks, meeting = where.ranks, job.folder / f"meeting_{where.ranks.id}.json"
    machine = require("ray", "ray").get_runtime_context().get_node_id()
    write_json(_machine_file(job, ranks.id, ranks.node), {"machine": machine})
    if ranks.nodes > 1:
        where = replace(where, ranks=_meet(job, ranks, meeting))
    if ranks.node:
        return accompany(job, where)
    try:
        return carry_out(job, Attempt(job, where))
    finally:
        meeting.unlink(missing_ok=True)


def _machine_file(job: Job, token: str, node: int) -> Path:
    """Return the file in which a task says on which machine it is."""
    return job.folder / f"machine{node}_{token}.json"


def _meet(job: Job, ranks: Ranks, file: Path) -> Ranks:
    """Return the ranks with the first node's address, exchanged through a file."""
    if ranks.node == 0:
        for old in job.folder.glob("meeting_*.json"):  # of a first node that was lost
            old.unlink(missing_ok=True)
        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        write_json(file, {"address": f"{require('ray', 'ray').util.get_node_ip_address()}:{port}"})
    until = time.monotonic() + MEETING_S
    while time.monotonic() < until:
        try:
            return replace(ranks, address=str(read_json(file)["address"]))
        except MissingFileError:
            time.sleep(0.2)
    raise LabError(f"node {ranks.node} of {job.name}: the first node did not start: {file}")


class Sent:
    """A job submitted to the cluster, with one task per node."""

    def __init__(self, cluster: Cluster, job: Job) -> None:
        self.cluster, self.ray, self.job = cluster, cluster.ray, job
        self.left = cluster.config.retries
        self._send()

    def _send(self) -> None:
        self.attempts = self._attempts()
        self.token = uuid.uuid4().hex[:8]
        self.tasks, self.group = self.cluster.send(self.job, self.token)
        self.ended: dict[int, Ended] = {}
        self.cancelled = False
        self.since = self.killed_at = 0.0  # `since`: when the first of its tasks failed

    def _attempts(self) -> int:
        return int(self.job.record().get("attempts", 0))

    def poll(self) -> Outcome | None:
        """Return its outcome; resubmit it if it lost a machine or was preempted."""
        self._look()
        if not self._known():
            return None
        outcome, error = self._outcome()
        self._release()
        stopped = self.job.stop_file.exists()
        if outcome in ("lost", "interrupted") and self.left > 0 and not stopped:
            self.left -= 1
            self._send()
            return None
        if outcome in ("lost", "failed") and stopped:
            return "interrupted"
        if error:
            self.job.write(status="failed", error=error.splitlines()[-ERROR_LINES:])
        return "failed" if outcome == "lost" else outcome

    def _look(self) -> None:
        """Note the tasks that have ended since the last look."""
        left = [task for n, task in enumerate(self.tasks) if n not in self.ended]
        done = self.ray.wait(left, num_returns=len(left), timeout=0)[0] if left else ()
        found = {self.tasks.index(task): self._result(task) for task in done}
        for n in self._without_machine():
            found.setdefault(n, ("lost", f"the machine of node {n} no longer answers"))
        self.ended |= found
        if any(outcome != "finished" for outcome, _ in found.values()):
            self.since = self.since or time.monotonic()

    def _without_machine(self) -> list[int]:
        """Return the tasks whose machine Ray has given up, minutes before it gives up the tasks."""
        if not (dead := self.cluster.dead()):
            return []
        left = (n for n in range(len(self.tasks)) if n not in self.ended)
        return [n for n in left if self._machine(n) in dead]

    def _machine(self, node: int) -> str | None:
        """Return the machine of a task; None if it has not begun."""
        try:
            return str(read_json(_machine_file(self.job, self.token, node))["machine"])
        except MissingFileError:
            return None

    def _result(self, task: Any) -> Ended:
        try:
            return self.ray.get(task), ""
        except self.ray.exceptions.RayTaskError as error:
            return "failed", str(error)
        except self.ray.exceptions.RayError as error:
            return "lost", str(error)

    def _known(self) -> bool:
        """Return whether it can be said how the job ended.

        If the first node failed, the loss of another may be the reason: Ray needs time to tell. If
        another failed or is lost, the first may wait for it: it is cancelled, saves if it can, and
        is killed.
        """
        if len(self.ended) == len(self.tasks) or self.ended.get(0, ("failed",))[0] != "failed":
            return True
        lost = any(outcome == "lost" for outcome, _ in self.ended.values())
        wait = RELEASE_S if lost else PARTNER_S
        late = self.since > 0 and time.monotonic() - self.since > wait
        if late and 0 not in self.ended:
            self._cancel()
        return late and 0 in self.ended

    def _outcome(self) -> Ended:
        """Return how the job ended, and the error if its first node has not recorded it."""
        first, *others = (self.ended[n] for n in sorted(self.ended))
        if first[0] not in ("failed", "lost"):
            return first
        if lost := next((e for e in others if e[0] == "lost"), None):
            return lost
        if self.cancelled and first[0] == "lost" and others:
            return "failed", next((e[1] for e in others if e[1]), "") or self._reported()
        return first

    def _reported(self) -> str:
        """Return what the other nodes say of their failure."""
        files = sorted(self.job.folder.glob("stderr_node*.log"))
        return "\n".join(Report.of(f.read_text(errors="replace") for f in files).lines())

    def _release(self) -> None:
        """Release the nodes; those other than the first have nothing left to do."""
        others = [task for n, task in enumerate(self.tasks) if n not in self.ended]
        if others:
            others = self.ray.wait(others, num_returns=len(others), timeout=RELEASE_S)[1]
        for task in others:
            self.ray.cancel(task)
        if others:  # removing their group kills them at once
            self.ray.wait(others, num_returns=len(others), timeout=RELEASE_S)
        if self.group is not None:
            self.ray.util.remove_placement_group(self.group)
        for node in range(len(self.tasks)):
            _machine_file(self.job, self.token, node).unlink(missing_ok=True)

    def _cancel(self) -> None:
        """Interrupt its tasks, once: those that still wait for resources never start."""
        if not self.cancelled:
            self.cancelled = True
            for task in self.tasks:
                self.ray.cancel(task)

    def interrupt(self) -> None:
        self.job.stop_file.touch()
        if self._attempts() == self.attempts:
            self._cancel()

    def kill(self) -> None:
        """Kill the run, and its tasks if they do not do it."""
        self.job.stop_file.write_text(KILL)
        self.killed_at = self.killed_at or time.monotonic()
        if time.monotonic() - self.killed_at > RELEASE_S:
            for task in self.tasks:
                self.ray.cancel(task, force=True)


def _check_options(ray: Any, options: Mapping[str, Any]) -> None:
    """Raise on an option that `ray.init` does not have, or that is ours."""
    if "address" in options:
        raise ConfigError("launcher.options.address: use launcher.cluster")
    found = signature(ray.init).parameters.values()
    own = {p.name for p in found if p.kind != p.VAR_KEYWORD} - {"address"}
    for name in options:
        if name not in own and not name.startswith("_"):  # those are Ray's, but not in its list
            raise ConfigError(unknown("option of ray.init", name, own, "launcher.options"))


def _resources(limits: Limits) -> dict[str, float]:
    """Return what a job requests of each machine, by Ray's names."""
    return {
        "CPU": float((limits.cpus or 1) * limits.processes_per_node),
        "GPU": float(limits.gpus or 0),
        "memory": int(limits.memory_gb * 1e9) if limits.memory_gb else 0,
    }


class Cluster:
    """Submits jobs to a Ray cluster: the one at `cluster`, or a local one."""

    def __init__(self, config: LauncherConfig, limits: Limits) -> None:
        self.ray: Any = require("ray", "ray")
        self.started = not self.ray.is_initialized()
        if self.started:
            _check_options(self.ray, config.options)
            options = {"log_to_driver": False, **config.options}
            join_cluster("launcher.cluster", config.cluster, **options)
        self.config, self.limits = config, limits
        self.look_at, self.gone = 0.0, set[str]()

    def dead(self) -> set[str]:
        """Return the machines that Ray has given up."""
        if time.monotonic() > self.look_at:
            self.look_at = time.monotonic() + LOOK_S
            self.gone = {x["NodeID"] for x in self.ray.nodes() if not x["Alive"]}
        return self.gone

    def send(self, job: Job, token: str) -> tuple[list[Any], Any]:
        """Return the tasks of a job, the first node's first, and their placement group."""
        limits, group = limits_of(job, self.limits), None
        nodes, asked = limits.nodes, _resources(limits)
        given: dict[str, Any] = {
            "num_cpus": asked["CPU"],
            "num_gpus": asked["GPU"],
            "memory": asked["memory"] or None,
            "max_retries": 0,  # a lost job is resubmitted as a whole, and resumes from a checkpoint
        }
        if nodes > 1:
            bundle = {k: v for k, v in asked.items() if v}
            group = self.ray.util.placement_group([bundle] * nodes, strategy="STRICT_SPREAD")
        tasks: list[Any] = []
        for node in range(nodes):
            if group is not None:
                given["scheduling_strategy"] = self._on(group, node)
            processes, grace = limits.processes_per_node, self.config.grace_s
            ranks = Ranks(nodes, processes, node, id=token, grace_s=grace)
            where = BufferContext(limits, ranks=ranks, deadline_s=self.config.deadline_s)
            tasks.append(self.ray.remote(_task).options(**given).remote(job, where))
        return tasks, group

    def _on(self, group: Any, node: int) -> Any:
        strategies = require("ray.util.scheduling_strategies", "ray")
        return strategies.PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=node)

    def start(self, job: Job, slot: int) -> Handle | None:
        job.stop_file.unlink(missing_ok=True)
        job.folder.mkdir(parents=True, exist_ok=True)
        return Sent(self, job)

    def close(self) -> None:
        if self.started:
            self.ray.shutdown()
