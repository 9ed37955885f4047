"""Joining a Ray cluster: what cannot be joined is said at once, in one line."""

from __future__ import annotations

import socket
import sys
import time
from types import ModuleType

import pytest

from dreamlab.cli import main
from dreamlab.core import ray_cluster
from dreamlab.core.errors import ConfigError, LabError
from dreamlab.core.ray_cluster import join_cluster
from dreamlab.engine.actors.cluster import RayActors
from dreamlab.engine.actors.options import ActorsConfig
from dreamlab.sweeps.launch.options import LauncherConfig, Limits
from dreamlab.sweeps.launch.ray import Cluster


class FakeRay(ModuleType):
    """Notes how it is initialized; `error` is what that raises."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.given: list[dict] = []
        self.error: Exception | None = None

    def is_initialized(self) -> bool:
        return False

    def init(self, address=None, *, num_cpus=None, log_to_driver=True, **kwargs) -> None:
        self.given.append({"address": address, "num_cpus": num_cpus})
        if self.error is not None:
            raise self.error


@pytest.fixture
def ray(monkeypatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return fake


@pytest.fixture
def port():
    """A port at which somebody answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def closed():
    """A port at which nobody does."""
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        yield unheard.getsockname()[1]


def test_without_an_address_a_cluster_is_started_on_this_machine(ray, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # Ray would go there, were none given
    Cluster(LauncherConfig(name="ray", options={"num_cpus": 2}), Limits())
    RayActors(ActorsConfig(num=1, where="ray"), None, "a")._connect()
    assert [given["address"] for given in ray.given] == ["local", "local"]
    assert ray.given[0]["num_cpus"] == 2


def test_an_address_that_answers_is_joined(ray, port):
    addresses = ["auto", "local", f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"]
    for address in addresses:
        join_cluster("actors.address", address)
    assert [given["address"] for given in ray.given] == addresses


@pytest.mark.parametrize("address", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "auto"])
def test_an_address_at_which_nothing_answers_is_told_without_ray(ray, closed, address, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{closed}")
    with pytest.raises(LabError, match=f"actors.address: nothing answers at 127.0.0.1:{closed}"):
        RayActors(
            ActorsConfig(num=1, where="ray", address=address.format(closed)), None, "a"
        )._connect()
    assert not ray.given


def test_a_machine_that_is_silent_is_not_waited_for(ray, monkeypatch):
    monkeypatch.setattr(ray_cluster, "ANSWER_S", 0.2)
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        place = full.getsockname()
        waiting = [socket.socket() for _ in range(3)]  # more than it takes: the next is not heard
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(place)
        with pytest.raises(LabError, match=r"nothing answers at .*timed out.* `ray start --head`"):
            join_cluster("launcher.cluster", f"127.0.0.1:{place[1]}")
        for one in waiting:
            one.close()
    assert time.monotonic() - began < 5


def test_a_port_that_is_none_is_a_mistake_of_the_configuration(ray):
    with pytest.raises(ConfigError, match=r"launcher\.cluster: 'head:x'"):
        join_cluster("launcher.cluster", "head:x")


def test_a_training_on_a_cluster_that_is_not_there_says_so_in_one_line(ray, tmp_path, capsys):
    ray.error = ConnectionError("Could not find any running Ray instance.\nPlease")
    where = ["launcher.name=ray", "launcher.cluster=auto", f"run.dir={tmp_path / 'r'}"]
    assert main(["train", "dqn_cartpole", *where]) == 2
    (said,) = capsys.readouterr().err.strip().splitlines()
    assert "launcher.cluster: cannot join the Ray cluster at auto: Could not find any" in said
    assert "running Ray instance. `ray start --head` starts" in said
    ray.error = ValueError()
    with pytest.raises(LabError, match="Ray cannot be started on this machine: ValueError"):
        join_cluster("launcher.cluster", None)


@pytest.mark.parametrize(
    ("option", "text"),
    [("num_cpu", "Did you mean 'num_cpus'"), ("address", "use launcher.cluster")],
)
def test_an_option_that_ray_does_not_have_is_refused(ray, option, text):
    with pytest.raises(ConfigError, match=r"launcher\.options.*" + text):
        Cluster(LauncherConfig(name="ray", options={option: 2}), Limits())
    assert not ray.given
