"""What is worth an alert, and where it goes."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from dreamlab import build
from dreamlab.config import compose, load_config
from dreamlab.core.errors import ConfigError
from dreamlab.engine.alerts import send
from dreamlab.engine.watch import Watch, WatchConfig
from dreamlab.runs.run import Run


@pytest.fixture
def server():
    got: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args):
            pass

    httpd = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{httpd.server_port}", got
    httpd.shutdown()


def wait_for(what):
    for _ in range(200):
        if what():
            return
        time.sleep(0.05)
    raise AssertionError("nothing came")


def test_a_webhook_gets_what_happened(server, tmp_path):
    address, got = server
    send(WatchConfig(webhook=address), "stall", "nothing rises", tmp_path / "run", print)
    wait_for(lambda: got)
    assert got == [{"text": "run: stall: nothing rises", "kind": "stall", "run": "run"}]


def test_a_server_that_is_not_there_is_said_and_stops_nothing(tmp_path):
    said: list[str] = []
    config = WatchConfig(webhook="http://127.0.0.1:9/none", file=str(tmp_path / "no" / "file"))
    send(config, "nan", "x", tmp_path, said.append)
    wait_for(lambda: len(said) == 2)
    assert any("No such file" in s for s in said)
    assert any("webhook" in s for s in said)


def test_a_file_collects_alerts_and_a_command_sees_them(tmp_path):
    path, seen = tmp_path / "alerts.txt", tmp_path / "seen.txt"
    command = f'echo "$ALERT_RUN $ALERT_KIND $ALERT_TEXT" > {seen}'
    config = WatchConfig(file=str(path), command=command)
    send(config, "disk", "full", tmp_path / "a", print)
    wait_for(lambda: seen.exists() and seen.read_text())
    assert seen.read_text().split() == [str(tmp_path / "a"), "disk", "full"]
    send(WatchConfig(file=str(path)), "nan", "bad", tmp_path / "b", print)
    first, second = path.read_text().splitlines()
    assert first.endswith("a disk: full")
    assert second.endswith("b nan: bad")


def test_a_command_that_fails_is_said(tmp_path):
    said: list[str] = []
    send(WatchConfig(command="no_such_program"), "nan", "x", tmp_path, said.append)
    wait_for(lambda: said)
    assert said[0].startswith("alerts: the command ended with 127: ")
    assert "no_such_program" in said[0]


def test_training_does_not_wait_for_a_command(tmp_path):
    began = time.monotonic()
    send(WatchConfig(command="sleep 1"), "nan", "x", tmp_path, print)
    assert time.monotonic() - began < 0.5


def watch_of(tmp_path, floor=lambda frames: None, **options):
    alerts: list[str] = []
    config = WatchConfig(memory_share=2.0, **options)
    return Watch(config, lambda kind, text: alerts.append(kind), tmp_path, floor), alerts


def flush(watch, frames, value):
    watch.flushed({"env_frames": float(frames), "episode/return": value}, None, None)


def test_below_the_published_band_is_said_once_until_it_is_reached(tmp_path):
    floor = lambda frames: 100.0 if frames >= 500 else None  # noqa: E731
    watch, alerts = watch_of(tmp_path, floor, published=True)
    for i in range(12):
        flush(watch, 100 * i, 50.0)
    assert alerts == ["published"]
    for i in range(12, 20):
        flush(watch, 100 * i, 200.0)
    for i in range(20, 30):
        flush(watch, 100 * i, 50.0)
    assert alerts == ["published", "published"]
    twin, _ = watch_of(tmp_path, floor, published=True)
    twin.set_state(watch.get_state())
    assert twin.recent == watch.recent


def test_a_disk_that_runs_full_is_said_once(tmp_path):
    watch, alerts = watch_of(tmp_path, disk_gib=1e9)
    flush(watch, 1, 0.0)
    flush(watch, 2, 0.0)
    assert alerts == ["disk"]
    watch, alerts = watch_of(tmp_path, disk_gib=0.0)
    flush(watch, 1, 0.0)
    assert alerts == []


def test_the_floor_is_that_of_the_task(tmp_path):
    walker = load_config(compose(["+experiment=dreamer_walker", "watch.published=true"]))
    floor = build.published_floor(walker, Run(tmp_path))
    assert floor(98_000) == pytest.approx(389.576 - 85.183)
    assert floor(10) is None
    cart = load_config(compose(["+experiment=ppo_cartpole", "watch.published=true"]))
    with pytest.raises(ConfigError, match=r"watch\.published: nothing is known for CartPole-v1"):
        build.published_floor(cart, Run(tmp_path))
