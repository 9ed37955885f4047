"""What is worth an alert, and where it goes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from dreamlab import build
from dreamlab.config import compose, load_config
from dreamlab.core.errors import ConfigError
from dreamlab.engine.alerts import Alerts
from dreamlab.engine.watch import Watch, WatchConfig
from dreamlab.runs.run import Run


def wait_for(what: Callable[[], Any]) -> None:
    for _ in range(200):
        if what():
            return
        time.sleep(0.05)
    raise AssertionError("nothing came")


Answer = Callable[[BaseHTTPRequestHandler], None]


def well(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()


def drip(handler: BaseHTTPRequestHandler) -> None:
    """Send a byte of a header now and then, for ever."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    while True:
        handler.wfile.write(b"x")
        time.sleep(0.1)


def garbage(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(bytes(range(256)) * 4)


def code(number: int, **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(number)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()

    return answer


@contextmanager
def server(answer: Answer = well) -> Iterator[tuple[str, list[dict[str, str]]]]:
    got: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            with suppress(OSError):  # whoever was kept waiting for too long has gone
                answer(self)

        def log_message(self, *args):
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{httpd.server_port}", got
    httpd.shutdown()
    httpd.server_close()


def sent(folder: Path, kind: str = "nan", text: str = "x", **options: Any) -> list[str]:
    """Send an alert, end the run, and return what was said about it."""
    said: list[str] = []
    alerts = Alerts(WatchConfig(**options), folder, said.append)
    alerts.send(kind, text)
    alerts.close()
    return said


def test_a_webhook_gets_what_happened(tmp_path):
    with server() as (address, got):
        assert sent(tmp_path / "run", "stall", "nothing rises", webhook=address) == []
    assert got == [{"text": "run: stall: nothing rises", "kind": "stall", "run": "run"}]


def test_a_server_that_is_not_there_is_said_and_stops_nothing(tmp_path):
    said = sent(tmp_path, webhook="http://127.0.0.1:9/none", file=str(tmp_path / "no" / "file"))
    assert len(said) == 2
    assert any("No such file" in s for s in said)
    assert any("webhook" in s for s in said)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (code(404), "HTTP Error 404"),
        (code(500), "HTTP Error 500"),
        (code(302, Location="file:///etc/passwd"), "HTTP Error 302"),
        (code(301, Location="http://127.0.0.1:9/elsewhere"), "HTTP Error 301"),
        (garbage, "could not be reached"),
    ],
    ids=["not found", "broken", "to a file", "elsewhere", "garbage"],
)
def test_a_bad_answer_is_said_and_is_no_traceback(answer, words, tmp_path, capfd):
    with server(answer) as (address, _):
        (said,) = sent(tmp_path, webhook=address)
    assert said.startswith("alerts: the webhook")
    assert words in said
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("address", ["file:///etc/passwd", "ftp://x", "nonsense", "http://:x"])
def test_what_is_no_web_address_is_said(address, tmp_path, capfd):
    (said,) = sent(tmp_path, webhook=address)
    assert said.startswith("alerts: the webhook could not be reached")
    assert "Traceback" not in capfd.readouterr().err


def test_a_server_that_drips_is_given_up_while_the_run_goes_on(tmp_path):
    said: list[str] = []
    with server(drip) as (address, got):
        alerts = Alerts(WatchConfig(webhook=address), tmp_path, said.append)
        alerts.send("nan", "x")
        wait_for(lambda: got)
        alerts.tell()
        assert said == []  # it still has time
        alerts.tell(patience_s=0.0)
        assert said == ["alerts: the webhook took more than 0 s and was abandoned"]
        alerts.tell(patience_s=0.0)
        assert len(said) == 1


ENDS = """
import sys
from pathlib import Path
from dreamlab.engine.alerts import Alerts
from dreamlab.engine.watch import WatchConfig
alerts = Alerts(WatchConfig(webhook=sys.argv[1], command="sleep 60"), Path("run"), print)
alerts.send("nan", "the last words")
alerts.close()
"""


def test_a_process_ends_though_a_server_drips_and_a_command_hangs(tmp_path):
    with server(drip) as (address, got):
        line = [sys.executable, "-c", ENDS, address]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert done.stderr == ""
    assert sorted(done.stdout.splitlines()) == [
        "alerts: the command took more than 3 s and was abandoned",
        "alerts: the webhook took more than 3 s and was abandoned",
    ]
    assert [g["kind"] for g in got] == ["nan"]


def test_a_file_collects_alerts_and_a_command_sees_them(tmp_path):
    path, seen = tmp_path / "alerts.txt", tmp_path / "seen.txt"
    command = f'echo "$ALERT_RUN $ALERT_KIND $ALERT_TEXT" > {seen}'
    assert sent(tmp_path / "a", "disk", "full", file=str(path), command=command) == []
    assert seen.read_text().split() == [str(tmp_path / "a"), "disk", "full"]
    sent(tmp_path / "b", "nan", "bad", file=str(path))
    first, second = path.read_text().splitlines()
    assert first.endswith("a disk: full")
    assert second.endswith("b nan: bad")


def test_a_command_that_fails_is_said(tmp_path):
    (said,) = sent(tmp_path, command="no_such_program")
    assert said.startswith("alerts: the command ended with 127: ")
    assert "no_such_program" in said


def test_a_command_that_cannot_be_started_is_said(tmp_path, capfd):
    (said,) = sent(tmp_path, text="x" * 10_000_000, command="true")
    assert "Argument list too long" in said
    assert "Traceback" not in capfd.readouterr().err


def test_training_waits_for_no_command_and_for_no_reader_of_a_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # to open it waits until somebody reads
    began = time.monotonic()
    alerts = Alerts(WatchConfig(command="sleep 5", file=str(pipe)), tmp_path, print)
    alerts.send("nan", "x")
    assert time.monotonic() - began < 0.5
    assert pipe.open().read().endswith("nan: x\n")


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
    with pytest.raises(ConfigError, match=r"watch\.published: no published curve for CartPole-v1"):
        build.published_floor(cart, Run(tmp_path))
