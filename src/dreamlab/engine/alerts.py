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
from pathlib import Path

from dreamlab.engine.watch import WatchConfig

TIMEOUT_S = 10.0


def send(
    config: WatchConfig, kind: str, text: str, run: Path, failed: Callable[[str], None]
) -> None:
    """Tell everyone, in the background; what cannot be reached is said through `failed`."""
    if config.file is not None:
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {run.name} {kind}: {text}\n"
        try:
            with Path(config.file).expanduser().open("a") as file:
                file.write(line)
        except OSError as error:
            failed(f"alerts: {config.file}: {error.strerror}")
    # training does not wait for anybody, and the process may end before they answer
    if config.command is not None:
        env = {
            **os.environ,
            "ALERT_KIND": kind,
            "ALERT_TEXT": text,
            "ALERT_RUN": str(run.resolve()),
        }
        threading.Thread(target=_call, args=(config.command, env, failed)).start()
    if config.webhook is not None:
        body = {"text": f"{run.name}: {kind}: {text}", "kind": kind, "run": run.name}
        threading.Thread(target=_post, args=(config.webhook, body, failed)).start()


def _call(command: str, env: dict[str, str], failed: Callable[[str], None]) -> None:
    """Run a command; one that takes longer than a server may goes on without us."""
    quiet = subprocess.DEVNULL
    # a file of its own, not a pipe: whatever it starts in the background may write there for long
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            command, shell=True, env=env, stdin=quiet, stdout=quiet, stderr=errors
        )
        try:
            code = child.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return
        errors.seek(0)
        words = errors.read().decode(errors="replace").strip()
    if code:
        failed(f"alerts: the command ended with {code}: {words or command}")


def _post(address: str, body: dict[str, str], failed: Callable[[str], None]) -> None:
    data, kind = json.dumps(body).encode(), {"Content-Type": "application/json"}
    try:
        request = urllib.request.Request(address, data, kind, method="POST")
        urllib.request.urlopen(request, timeout=TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        failed(f"alerts: the webhook could not be reached: {error}")
