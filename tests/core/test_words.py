"""Numbers as a person reads them."""

from __future__ import annotations

import pytest

from dreamlab.core.words import duration, number


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"), (0.4, "0 s"), (119.4, "119 s"), (120, "2 min"), (7199, "120 min"),
        (7200, "2.0 h"), (90_000, "25.0 h"),
    ],
)  # fmt: skip
def test_a_length_of_time_has_the_unit_that_reads_well(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (0.12345, "0.1235"), (999.96, "1000"), (-12_345.6, "-12,346")]
)
def test_a_number_has_few_digits(value, text):
    assert number(value) == text
