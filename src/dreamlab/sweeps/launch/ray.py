"""Jobs on a Ray cluster."""

from __future__ import annotations

import socket
import time
import uuid
from dataclasses import replace
from typing import Any

from dreamlab.core.errors import LabError, require
from dreamlab.core.files import write_json
from dreamlab.core.readers import MissingFileError, read_json
from dreamlab.sweeps.job import Job, Outcome
from dreamlab.sweeps.launch.local import Attempt, BufferContext, Handle, accompany, carry_out
from dreamlab.sweeps.launch.options import LauncherConfig, Limits
from dreamlab.sweeps.launch.ranks import Ranks

MEETING_S = 600.0  # maximum wait of a node for the first node of its job


def _task(job: Job, where: BufferContext) -> Outcome:
    """Run one node's part of a job on the machine that Ray chose; Ray has set its GPUs."""
    if where.ranks.nodes > 1:
        where = replace(where, ranks=_meet(job, where.ranks))
    if where.ranks.node:
        return accompany(job, where)
    return carry_out(job, Attempt(job, where))


def _meet(job: Job, ranks: Ranks) -> Ranks:
    """Return the ranks with the first node's address, exchanged through the job's folder."""
    file = job.folder / f"meeting_{ranks.id}.json"
    if ranks.node == 0:
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
        self.tasks, self.group = cluster.send(job)

    def poll(self) -> Outcome | None:
        """Return its outcome; resubmit it if it lost its machine or was preempted."""
        if not self.ray.wait(self.tasks[:1], timeout=0)[0]:
            return None
        try:
            outcome = self.ray.get(self.tasks[0])
        except self.ray.exceptions.RayTaskError as error:
            outcome = self._failed(error)
        except self.ray.exceptions.RayError as error:
            outcome = "interrupted" if self._may_go_on() else self._failed(error)
        if outcome == "interrupted" and self._may_go_on():
            self._release()
            self.left -= 1
            self.tasks, self.group = self.cluster.send(self.job)
            return None
        self._release()
        return "interrupted" if self.job.stop_file.exists() and outcome == "failed" else outcome

    def _may_go_on(self) -> bool:
        return self.left > 0 and not self.job.stop_file.exists()

    def _failed(self, error: Exception) -> Outcome:
        self.job.write(status="failed", error=str(error).splitlines()[-20:])
        return "failed"

    def _release(self) -> None:
        """Release the nodes; those other than the first are idle."""
        for task in self.tasks[1:]:
            self.ray.cancel(task, force=True)
        if self.group is not None:
            self.ray.util.remove_placement_group(self.group)

    def interrupt(self) -> None:
        self.job.stop_file.touch()

    def kill(self) -> None:
        self.interrupt()
        for task in self.tasks:
            self.ray.cancel(task, force=True)


class Cluster:
    """Submits jobs to a Ray cluster: the one at `cluster`, or a local one."""

    def __init__(self, config: LauncherConfig, limits: Limits) -> None:
        self.ray: Any = require("ray", "ray")
        self.started = not self.ray.is_initialized()
        if self.started:
            options = {"log_to_driver": False, **config.options}
            self.ray.init(address=config.cluster, **options)
        self.config, self.limits = config, limits
        self.asked = {
            "CPU": float((limits.cpus or 1) * limits.processes_per_node),
            "GPU": float(limits.gpus or 0),
            "memory": int(limits.memory_gb * 1e9) if limits.memory_gb else 0,
        }

    def send(self, job: Job) -> tuple[list[Any], Any]:
        """Return the tasks of a job, the first node's first, and their placement group."""
        nodes, group, token = self.limits.nodes, None, uuid.uuid4().hex[:8]
        given: dict[str, Any] = {
            "num_cpus": self.asked["CPU"],
            "num_gpus": self.asked["GPU"],
            "memory": self.asked["memory"] or None,
            "max_retries": 0,  # a lost job is resubmitted as a whole, and resumes from a checkpoint
        }
        if nodes > 1:
            bundle = {k: v for k, v in self.asked.items() if v}
            group = self.ray.util.placement_group([bundle] * nodes, strategy="STRICT_SPREAD")
        tasks: list[Any] = []
        for node in range(nodes):
            if group is not None:
                given["scheduling_strategy"] = self._on(group, node)
            processes, grace = self.limits.processes_per_node, self.config.grace_s
            ranks = Ranks(nodes, processes, node, id=token, grace_s=grace)
            where = BufferContext(self.limits, ranks=ranks, deadline_s=self.config.deadline_s)
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
