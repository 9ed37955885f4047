"""Where alerts go besides the terminal: a file, a shell command, a webhook."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dreamlab.engine.watch import WatchConfig

DEADLINE_S = 10.0
"""Timeout of one alert, in seconds."""
LAST_S = 3.0
"""Timeout for all pending alerts at the end of a run, in seconds."""


class Errand(threading.Thread):
    """One message on its way to one place; the process does not wait for it to end."""

    def __init__(self, place: str, deliver: Callable[[], str | None]) -> None:
        super().__init__(daemon=True)
        self.place, self.deliver = place, deliver
        self.began = time.monotonic()
        self.fault: str | None = None

    def run(self) -> None:
        """Deliver; whatever a server, a command or a disk answers is a text, not a traceback."""
        try:
            self.fault = self.deliver()
        except (OSError, ValueError, HTTPException) as error:
            self.fault = f"could not be reached: {error}"

    def complaint(self) -> str | None:
        """Return what went wrong, or None; one that has not ended yet is late."""
        if not self.is_alive():
            return self.fault and f"alerts: {self.place} {self.fault}"
        spent = time.monotonic() - self.began
        return f"alerts: {self.place} took more than {spent:.0f} s and was abandoned"


class Alerts:
    """Sends alerts in the background; errors are reported from the caller's own thread."""

    def __init__(self, config: WatchConfig, run: Path, say: Callable[[str], None]) -> None:
        self.config, self.run, self.say = config, run, say
        self.errands: list[Errand] = []

    def send(self, kind: str, text: str) -> None:
        """Send an alert to every place that is named, without waiting for any of them."""
        config, run = self.config, self.run
        if config.file is not None:
            line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {run.name} {kind}: {text}\n"
            self._start(f"the file {config.file}", partial(_append, config.file, line))
        if config.command is not None:
            told = {"ALERT_KIND": kind, "ALERT_TEXT": text, "ALERT_RUN": str(run.resolve())}
            self._start("the command", partial(_call, config.command, {**os.environ, **told}))
        if config.webhook is not None:
            body = {"text": f"{run.name}: {kind}: {text}", "kind": kind, "run": run.name}
            self._start("the webhook", partial(_post, config.webhook, body))

    def _start(self, place: str, deliver: Callable[[], str | None]) -> None:
        errand = Errand(place, deliver)
        self.errands.append(errand)
        errand.start()

    def tell(self, patience_s: float = DEADLINE_S) -> None:
        """Say what went wrong with the alerts that have ended, or that take longer than this."""
        now = time.monotonic()
        done = [e for e in self.errands if not e.is_alive() or now - e.began >= patience_s]
        self.errands = [e for e in self.errands if e not in done]
        for errand in done:
            if complaint := errand.complaint():
                self.say(complaint)

    def close(self) -> None:
        """Give what is still on its way a last chance, then leave it alone."""
        until = time.monotonic() + LAST_S
        for errand in self.errands:
            errand.join(max(0.0, until - time.monotonic()))
        self.tell(patience_s=0.0)


def _append(path: str, line: str) -> None:
    with Path(os.path.expanduser(path)).open("a") as file:
        file.write(line)


def _call(command: str, env: dict[str, str]) -> str | None:
    """Run a command and return how it failed; one that takes long continues without us."""
    quiet = subprocess.DEVNULL
    # its own file, not a pipe: whatever it starts in the background may write there for long
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            command, shell=True, env=env, stdin=quiet, stdout=quiet, stderr=errors
        )
        code = child.wait()
        errors.seek(0)
        words = errors.read().decode(errors="replace").strip()
    return f"ended with {code}: {words or command}" if code else None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Takes a redirect for what it is: an alert that did not arrive."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def _post(address: str, body: dict[str, str]) -> None:
    if (scheme := urlsplit(address).scheme) not in ("http", "https"):
        raise ValueError(f"watch.webhook must begin with http:// or https://, not {scheme!r}")
    data, kind = json.dumps(body).encode(), {"Content-Type": "application/json"}
    request = urllib.request.Request(address, data, kind, method="POST")
    urllib.request.build_opener(_NoRedirect).open(request, timeout=DEADLINE_S).close()
