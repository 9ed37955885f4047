"""Joining a Ray cluster, or starting one on this machine."""

from __future__ import annotations

import os
import socket
from typing import Any
from urllib.parse import urlsplit

from dreamlab.core.errors import ConfigError, LabError, require
from dreamlab.core.text import one_line

ANSWER_S = 5.0
"""Time limit for a cluster to accept a connection."""
HERE = "local"
"""Ray's address of a new cluster on this machine; None may join one that runs already."""


def join_cluster(option: str, address: str | None, **options: Any) -> None:
    """Join the Ray cluster at an address, or start one on this machine if there is none.

    `option` names the option that holds the address; `options` are those of `ray.init`.
    """
    if address not in (None, HERE):
        _check_answers(option, address)
    try:
        require("ray", "ray").init(address=address or HERE, **options)
    except (ConnectionError, RuntimeError, TypeError, ValueError) as error:
        text = one_line(str(error).strip().split("\n")[0]).rstrip(".") or type(error).__name__
        if address in (None, HERE):
            raise LabError(f"Ray cannot be started on this machine: {text}") from None
        raise LabError(
            f"{option}: cannot join the Ray cluster at {address}: {text}. {_remedy(option)}"
        ) from None


def _check_answers(option: str, address: str) -> None:
    """Raise if nothing accepts connections there: Ray tries for minutes, deaf to signals."""
    if address == "auto":  # Ray looks for it on this machine, unless its own variable says where
        address = os.environ.get("RAY_ADDRESS", "")
    place = urlsplit(address if "://" in address else f"//{address}")
    try:
        host, port = place.hostname, place.port
    except ValueError as error:
        raise ConfigError(f"{option}: {one_line(address)!r}: {error}") from None
    if place.scheme not in ("", "ray") or host is None or port is None:
        return  # Ray says what it makes of it
    try:
        socket.create_connection((host, port), ANSWER_S).close()
    except OSError as error:
        raise LabError(
            f"{option}: nothing answers at {host}:{port} ({error}). {_remedy(option)}"
        ) from None


def _remedy(option: str) -> str:
    return (
        "`ray start --head` starts a cluster and prints its address, `ray status` shows it; "
        f"without {option} one is started on this machine"
    )
