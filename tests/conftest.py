"""What every test shares: shape checking of the tensor packages, and a rule about GPU tests."""

from __future__ import annotations

import os
import signal

import pytest

from dreamlab.accel.before_torch import prepare

prepare()  # as the command line does, so that both compute the same digits

import torch  # noqa: E402

from tests.shapes import enforce_shapes  # noqa: E402

os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ["OMP_NUM_THREADS"] = "1"  # of every process of the tests: two wait for each other
torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background: children would
    signal.signal(signal.SIGINT, signal.default_int_handler)  # not hear a Ctrl-C either

# under test every `Float[Tensor, "b t"]` is enforced; at run time it costs nothing
enforce_shapes()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test marked gpu runs only where there is one; the marker is the only way to ask for it."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
