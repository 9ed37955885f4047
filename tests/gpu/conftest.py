"""What tests on a GPU share: each begins with an empty compiler and gives its memory back."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """The compiler keeps eight forms of a method for all workflows of a process, then refuses."""
    torch._dynamo.reset()
    yield
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
