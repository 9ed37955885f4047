"""Every number that can be configured has limits, and they are kept."""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Annotated, Any

import pytest

from dreamlab.config import LabConfig
from dreamlab.core.config import arguments, dump, load
from dreamlab.core.errors import ConfigError
from dreamlab.core.limits import (
    AnyInt,
    Decay,
    Finite,
    Items,
    Natural,
    Positive,
    PositiveInt,
    Range,
    Share,
    SomeShare,
)
from tests.core.parts import Limited
from tests.options import Number, configs, makers, numbers


@dataclass(frozen=True)
class Options:
    share: Share = 0.5
    some: SomeShare = 0.5
    decay: Decay = 0.5
    positive: Positive = 1.0
    finite: Finite = 0.0
    whole: AnyInt = 0
    natural: Natural = 0
    count: PositiveInt = 1
    maybe: PositiveInt | None = None
    many: tuple[PositiveInt, ...] = ()
    pair: tuple[Share, Share] = (0.0, 1.0)
    some_many: Annotated[tuple[int, ...], Items()] = (1,)
    up_to: Annotated[int, Range(high=3)] = 0


REFUSED = [
    ("share", 2, "must be between 0 and 1, got 2"),
    ("share", -0.1, "must be between 0 and 1, got -0.1"),
    ("share", 1.0000001, "must be between 0 and 1, got 1.0000001"),
    ("share", math.nan, "must be a finite number, got nan"),
    ("share", "nan", "must be a finite number, got nan"),
    ("some", 0, "must be above 0 and at most 1, got 0"),
    ("decay", 1, "must be at least 0 and below 1, got 1"),
    ("positive", 0.0, "must be above 0, got 0"),
    ("positive", math.inf, "must be a finite number, got inf"),
    ("finite", -math.inf, "must be a finite number, got -inf"),
    ("finite", 1e300, "must be a finite number, got 1e+300"),
    ("finite", 10**400, "expected float, got a 1329-bit number"),
    ("whole", 2**63, "must be a 64-bit integer, got a 64-bit number"),
    ("whole", 1e300, "must be a 64-bit integer, got a 997-bit number"),
    ("whole", math.inf, "expected int, got inf"),
    ("natural", -1, "must be at least 0, got -1"),
    ("count", 0, "must be at least 1, got 0"),
    ("maybe", -5, "must be at least 1, got -5"),
    ("up_to", 4, "must be at most 3, got 4"),
    ("some_many", [], "must have at least 1 value, got ()"),
]


@pytest.mark.parametrize(("key", "value", "text"), REFUSED)
def test_a_value_out_of_its_limits_names_option_limit_and_value(key: str, value: Any, text: str):
    with pytest.raises(ConfigError) as error:
        load(Options, {key: value}, "lab")
    assert str(error.value) == f"lab.{key}: {text}"


def test_limits_hold_for_each_element():
    with pytest.raises(ConfigError, match=r"lab\.many\[1\]: must be at least 1, got 0"):
        load(Options, {"many": [3, 0]}, "lab")
    with pytest.raises(ConfigError, match=r"lab\.pair\[1\]: must be between 0 and 1, got 1.5"):
        load(Options, {"pair": [0.5, 1.5]}, "lab")


def test_what_is_within_the_limits_is_taken_as_it_was():
    node = {"share": 1, "some": 1, "decay": 0, "whole": -(2**62), "many": [1, 2], "maybe": 3}
    config = load(Options, node, "lab")
    assert (config.share, config.whole, config.many, config.maybe) == (1.0, -(2**62), (1, 2), 3)
    assert load(Options, {"maybe": None}, "lab").maybe is None
    assert load(Options, dump(config), "lab") == config


def test_a_part_without_a_config_has_the_limits_of_its_arguments():
    assert arguments(Limited, {"rate": 1, "depth": 2}, "part") == {"rate": 1.0, "depth": 2}
    with pytest.raises(ConfigError, match=r"part\.rate: must be between 0 and 1, got 3"):
        arguments(Limited, {"rate": 3}, "part")
    with pytest.raises(ConfigError, match=r"part\.depth: expected int, got 'deep'"):
        arguments(Limited, {"depth": "deep"}, "part")


# -- every option of the package ------------------------------------------------------------------


def test_the_walk_finds_what_is_known_to_be_there():
    found = {str(n) for n in numbers()}
    assert len(found) > 200
    known = {
        "dreamlab.config.LabConfig.seed", "dreamlab.config.TrainingConfig.total_frames",
        "dreamlab.core.phase.Phase.train_ratio", "dreamlab.core.update_rules.AdamConfig.betas",
        "dreamlab.data.samplers.PrioritisedConfig.eps", "dreamlab.envs.vector.EnvConfig.size",
        "dreamlab.envs.suites.atari.make.repeat", "dreamlab.envs.dummy.Pixels.grid",
        "dreamlab.nn.mlp.MLPConfig.hidden", "dreamlab.sweeps.launch.options.Limits.gpus",
        "dreamlab.sweeps.sweep.TuneConfig.trials", "dreamlab.workflows.dreamer_v3.Scales.rec",
    }  # fmt: skip
    assert not known - found
    assert LabConfig in configs()
    assert len(makers()) > 15


def test_every_number_states_its_limits():
    without = [str(n) for n in numbers() if n.limits is None]
    assert not without, "say Finite or AnyInt where any number will do"


def outside(number: Number) -> list[Any]:
    """Return numbers that the limits of an option exclude."""
    limits = number.limits
    assert limits is not None
    step = 1 if number.kind is int else 0.5
    bad: list[Any] = [10**30] if number.kind is int else [math.nan, math.inf, 1e300]
    if math.isfinite(limits.low):
        bad.append(limits.low if limits.open_low else limits.low - step)
    if math.isfinite(limits.high):
        bad.append(limits.high if limits.open_high else limits.high + step)
    return bad


def offer(number: Number, value: Any) -> None:
    """Load the option's owner with this value for it."""
    options = {number.name: number.wrap(value)}
    if is_dataclass(number.owner):
        load(number.owner, options, "here")  # type: ignore[arg-type]
    else:
        arguments(number.owner, options, "here")


def test_every_limit_is_kept():
    for number in numbers():
        for value in outside(number):
            with pytest.raises(ConfigError) as error:
                offer(number, value)
            text = str(error.value)
            assert text.startswith(f"here.{number.name}"), f"{number}: {text}"
            assert "got" in text
            assert "\n" not in text


def is_complete(cls: type) -> bool:
    """Tell whether every field has a default."""
    return all(f.default is not MISSING or f.default_factory is not MISSING for f in fields(cls))


def test_every_default_is_within_its_limits():
    for cls in configs():
        if is_complete(cls):
            given = {f.name: getattr(cls(), f.name) for f in fields(cls) if f.init}
            load(cls, given, cls.__name__)
