"""A configuration is taken literally or refused, with the nearest remedy."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import pytest

from dreamlab.config import load_config
from dreamlab.core.config import Part, dump, load, optional_part, part
from dreamlab.core.errors import ConfigError
from dreamlab.core.locate import ours_only
from dreamlab.engine.loop_parts import EngineConfig
from dreamlab.workflows.ppo import PPOConfig
from tests.core.parts import Configured, ConfiguredConfig, Plain
from tests.helpers import config_of

HOME = "tests.core.parts"


@dataclass(frozen=True)
class Inner:
    layers: int = 2
    act: Literal["tanh", "relu"] = "tanh"


@dataclass(frozen=True)
class Outer:
    name: str
    lr: float = 1e-3
    steps: int = 10
    flag: bool = False
    inner: Inner = field(default_factory=Inner)
    pair: tuple[float, float] = (0.9, 0.99)
    many: tuple[int, ...] = ()
    limit: int | None = None
    maybe: Inner | None = None
    table: dict[str, int] = field(default_factory=dict)
    block: Part = part("plain", home=HOME, kind=object, depth=2)

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ValueError("steps must not be negative")


def made(**node: Any) -> Outer:
    return load(Outer, {"name": "x", **node}, "lab")


def refused(match: str, **node: Any) -> None:
    with pytest.raises(ConfigError, match=match):
        made(**node)


def test_defaults_fill_what_is_not_given():
    config = made(inner={"layers": 3})
    assert (config.lr, config.inner) == (1e-3, Inner(3, "tanh"))


def test_an_unknown_key_names_the_place_and_the_nearest_key():
    refused(r"lab\.inner\.layer: there is no Inner option 'layer'. Did you mean 'layers'\?",
            inner={"layer": 3})  # fmt: skip
    refused(r"known: block, flag, inner", zzz=1)


def test_a_required_key_is_asked_for():
    with pytest.raises(ConfigError, match=r"lab\.name: is required"):
        load(Outer, {}, "lab")


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("steps", "ten", "expected int, got 'ten'"),
        ("steps", 1.5, "expected int, got 1.5"),
        ("steps", True, "expected int, got True"),
        ("lr", "fast", "expected float, got 'fast'"),
        ("lr", False, "expected float, got False"),
        ("flag", 1, "expected bool, got 1"),
        ("name", 3, "expected str, got 3"),
        ("inner", 3, "expected a mapping of Inner options, got 3"),
        ("many", 3, "expected a list, got 3"),
        ("many", "123", "expected a list, got '123'"),
        ("table", [1], "expected a mapping"),
        ("block", 3, "expected a component's name or options, got 3"),
    ],
)
def test_a_wrong_type_is_refused(key: str, value: Any, text: str):
    refused(rf"lab\.{key}: {text}", **{key: value})


@pytest.mark.parametrize(("value", "want"), [(1, 1.0), ("1e-4", 1e-4), (0.5, 0.5)])
def test_a_float_may_look_as_yaml_reads_it(value: Any, want: float):
    lr = made(lr=value).lr
    assert (lr, type(lr)) == (want, float)


def test_a_whole_float_passes_for_an_int():
    steps = made(steps=1e6).steps
    assert (steps, type(steps)) == (1_000_000, int)


def test_a_choice_outside_the_list_names_the_nearest():
    refused(r"lab\.inner\.act: there is no choice 'tan'. Did you mean 'tanh'\?",
            inner={"act": "tan"})  # fmt: skip


def test_tuples_have_the_length_and_type_that_was_promised():
    assert made(pair=[1, 0.5]).pair == (1.0, 0.5)
    assert made(many=[1, 2, 3]).many == (1, 2, 3)
    refused("expected 2 values", pair=[1])
    refused(r"lab\.many\[1\]: expected int, got 'b'", many=[1, "b"])


def test_optional_values_may_be_absent_or_right_but_not_wrong():
    assert made(limit=None).limit is None
    assert made(limit=3).limit == 3
    assert made(maybe={"layers": 5}).maybe == Inner(5)
    refused(r"lab\.limit: expected int", limit="x")
    refused("Did you mean 'layers'", maybe={"layer": 5})


def test_values_of_a_mapping_are_checked_under_their_own_keys():
    assert made(table={"a": 1}).table == {"a": 1}
    refused(r"lab\.table\.b: expected int", table={"b": "x"})


def test_what_a_config_refuses_by_itself_names_the_place():
    refused("lab: steps must not be negative", steps=-1)


# -- parts -------------------------------------------------------------------------------------


def test_a_part_by_its_short_name():
    block = made(block="configured").block
    built = block.build(7)
    assert isinstance(built, Configured)
    assert (built.size, built.config.width) == (7, 3)


def test_a_part_by_its_path_with_options():
    block = made(block={"_target_": "tests.core.parts.Configured", "width": 9}).block
    assert block.build(7).config.width == 9


def test_a_user_class_without_a_config_takes_its_options_as_arguments():
    built = made(block={"_target_": "tests.core.parts:Plain", "depth": 5}).block.build(7)
    assert isinstance(built, Plain)
    assert (built.size, built.depth) == (7, 5)


def test_options_alone_are_merged_with_the_default_part():
    assert made().block.build(7).depth == 2
    assert made(block={"depth": 4}).block == Part("plain", {"depth": 4}, HOME, object)
    assert made(block="plain").block.config == {"depth": 2}


def test_options_of_the_default_part_do_not_leak_into_another():
    assert made(block="configured").block.config == ConfiguredConfig()


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("configurd", r"lab\.block: there is no part 'configurd'. Did you mean 'configured'\?"),
        ("tests.core.parts.Plian", r"no class in tests.core.parts 'Plian'. Did you mean 'Plain'\?"),
        (
            "tests.core.part.Plain",
            r"no module 'tests.core.part'. Did you mean 'tests.core.parts'\?",
        ),
        ("nowhere.at.All", "there is no module 'nowhere.at'"),
    ],
)
def test_a_misspelt_target_names_the_nearest(target: str, text: str):
    refused(text, block=target)


def test_a_misspelt_option_of_a_part_is_refused_before_it_is_built():
    refused(r"lab\.block\.widht: .*Did you mean 'width'\?",
            block={"_target_": "configured", "widht": 3})  # fmt: skip
    refused(r"lab\.block\.detph: .*Did you mean 'depth'\?", block={"detph": 3})
    refused(r"lab\.block\.width: expected int", block={"_target_": "configured", "width": "x"})


def test_what_is_dumped_loads_as_the_same():
    config = made(inner={"act": "relu"}, block={"_target_": "configured", "width": 5}, limit=4)
    plain = dump(config)
    assert plain["block"] == {"_target_": "configured", "width": 5, "act": "relu"}
    again = load(Outer, plain, "lab")
    assert dump(again) == plain
    assert (again.inner, again.limit, again.pair) == (config.inner, 4, (0.9, 0.99))


# -- kinds -------------------------------------------------------------------------------------

CALLED: list[str] = []


def spy(*args: Any, **kwargs: Any) -> None:
    """A function where a class is required."""
    CALLED.append("spy")


class Tattling(type):
    """Tells when one of its classes is called."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        CALLED.append(cls.__name__)
        return super().__call__(*args, **kwargs)


class Other(metaclass=Tattling):
    """A class of another kind."""


HERE = "tests.core.test_config"


@pytest.mark.parametrize(
    ("target", "text"),
    [
        (f"{HERE}.spy", "is a function, but a class is required: a torch.nn.Module"),
        (f"{HERE}.Other", "is not a Module: a subclass of torch.nn.Module is required"),
        ("os.system", "is a builtin_function_or_method, but a class is required"),
        ("builtins.eval", "a class is required"),
        ("subprocess.Popen", "is not a Module"),
        ("torch.nn", "is a module, but a class is required"),
        ("..x.Y", "is not a class path"),
        ("a b.C", "is not a class path"),
        (":", "is not a class path"),
        ("os.", "is not a class path"),
        ("x\0.Y", "is not a class path"),
        (["os", "system"], "expected the name of a class"),
        ({"a": 1}, "expected the name of a class"),
        (None, "expected the name of a class"),
    ],
)
def test_a_part_is_a_class_of_its_kind_before_anything_is_called(target: Any, text: str):
    CALLED.clear()
    for node in ({"_target_": target, "args": ["touch", "x"]}, {"_target_": target}):
        with pytest.raises(ConfigError, match=f"lab.network.*{re.escape(text)}"):
            load(Networked, {"network": node}, "lab")
    assert not CALLED


@dataclass(frozen=True)
class Networked:
    network: Part = part("mlp")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["workflow._target_=os.system"], "a class is required: a dreamlab.core.workflow.Workflow"),
        (["workflow._target_=subprocess.Popen"], "Popen is not a Workflow"),
        (["workflow._target_=dreamlab.core.workflow.Workflow"], "is abstract"),
        (["workflow._target_=os.system", "tiny=true"], "a class is required"),
        (
            ["buffers.rollout._target_=os.system"],
            "a class is required: a dreamlab.data.source.Buffer",
        ),
        (["buffers.rollout._target_=torch.nn.Linear"], "is not a Buffer: a class like"),
        (
            ["buffers.rollout={_target_: replay, sampler: {_target_: os.system}}"],
            "a class is required: a dreamlab.data.samplers.Sampler",
        ),
        (
            ["buffers.rollout={_target_: replay, sampler: {_target_: torch.nn.Linear}}"],
            "is not a Sampler",
        ),
        (["workflow.encoder.image=builtins.eval"], "a class is required: a torch.nn.Module"),
        (["workflow.encoder.vector={_target_: subprocess.Popen}"], "is not a Module"),
        (["workflow.network={_target_: os.system, command: x}"], "a class is required"),
    ],
)
def test_every_target_says_which_kind_it_wants(arguments: list[str], text: str):
    with pytest.raises(ConfigError, match=re.escape(text)):
        config_of("+experiment=ppo_cartpole", *arguments)


def test_while_only_ours_count_nothing_else_is_imported(tmp_path, monkeypatch):
    (tmp_path / "not_ours.py").write_text("from torch import nn\nclass Net(nn.Module): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with ours_only():
        assert load(Networked, {"network": "rnn"}, "lab").network.target == "rnn"
        for name in ("not_ours.Net", "torch.nn.Linear", "dreamlab.nn.mlp.nn", "dreamlabs.x.Y"):
            with pytest.raises(ConfigError, match=r"lab\.network"):
                load(Networked, {"network": {"_target_": name}}, "lab")
    assert "not_ours" not in sys.modules
    node = {"network": {"_target_": "not_ours.Net"}}
    assert load(Networked, node, "lab").network.cls().__name__ == "Net"


@dataclass(frozen=True)
class Perhaps:
    extra: Part | None = optional_part(HOME, Plain)


def test_a_part_that_need_not_be_there_is_found_in_its_home():
    assert load(Perhaps, {}, "x").extra is None
    assert load(Perhaps, {"extra": None}, "x").extra is None
    found = load(Perhaps, {"extra": {"_target_": "plain", "depth": 3}}, "x").extra
    assert found == Part("plain", {"depth": 3}, HOME, Plain)
    assert dump(load(Perhaps, {"extra": "plain"}, "x"))["extra"]["_target_"] == "plain"
    with pytest.raises(ConfigError, match=r"x\.extra: _target_ is missing"):
        load(Perhaps, {"extra": {"depth": 3}}, "x")


def test_a_part_can_be_had_with_other_options():
    first = made(block={"_target_": "configured", "width": 2}).block
    assert first.but(act="tanh").config == ConfiguredConfig(2, "tanh")
    assert first.config == ConfiguredConfig(2, "relu")
    plain = made().block
    assert (plain.but(depth=3).config, plain.config) == ({"depth": 3}, {"depth": 2})
    with pytest.raises(ConfigError, match="Did you mean 'width'"):
        first.but(widht=3)


# -- loaded once ---------------------------------------------------------------------------------

MADE: list[int] = []


@dataclass(frozen=True)
class CountedConfig:
    width: int = 1

    def __post_init__(self) -> None:
        MADE.append(self.width)


class Counted(Plain):
    Config = CountedConfig

    def __init__(self, config: CountedConfig, size: int) -> None:
        self.config = config


def test_a_part_is_loaded_once_and_built_and_dumped_from_that():
    MADE.clear()
    config = load(Perhaps, {"extra": {"_target_": f"{HERE}.Counted", "width": 4}}, "x")
    assert config.extra is not None
    built = config.extra.build(1)
    assert dump(config)["extra"] == {"_target_": f"{HERE}.Counted", "width": 4}
    assert built.config is config.extra.config
    assert MADE == [4]


def test_the_workflow_of_a_configuration_is_its_dataclass():
    config = config_of("+experiment=ppo_cartpole", "workflow.optimizer.lr=1")
    assert isinstance(config.workflow.config, PPOConfig)
    assert config.workflow.config.optimizer.config.lr == 1.0
    assert isinstance(config, EngineConfig)
    again = load_config(dump(config))
    assert again == config


# -- what is not given ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Net:
    width: int = 8
    depth: int = 3
    inner: Inner = field(default_factory=lambda: Inner(7))
    block: Part = part("configured", home=HOME, kind=object, act="tanh")


@dataclass(frozen=True)
class Agent:
    size: Literal["small", "large"] = "large"
    net: Net = field(default_factory=Net)
    block: Part = part("configured", home=HOME, kind=object, act="tanh")
    lr: float = 0.1
    presets: ClassVar[dict[str, Any]] = {
        "size": {"small": {"net": {"width": 2}, "block": {"width": 1}}, "large": {}}
    }


def agent(**node: Any) -> Agent:
    return load(Agent, node, "agent")


def test_what_is_not_given_is_that_of_the_field_not_of_the_class():
    assert agent(net={"inner": {"act": "relu"}}).net.inner == Inner(7, "relu")
    assert agent(block={"width": 5}).block.config == ConfiguredConfig(5, "tanh")
    same = agent(block={"_target_": "tests.core.parts.Configured", "width": 5}).block
    assert same.config == ConfiguredConfig(5, "tanh")  # the same class by its full name
    assert agent(net={"block": {"width": 5}}).net.block.config == ConfiguredConfig(5, "tanh")


def test_a_preset_gives_nested_options_and_what_is_written_wins():
    assert agent() == Agent()
    small = agent(size="small")
    assert (small.net, small.block.config) == (Net(2), ConfiguredConfig(1, "tanh"))
    mixed = agent(size="small", net={"depth": 9}, block={"width": 4})
    assert (mixed.net, mixed.block.config) == (Net(2, 9), ConfiguredConfig(4, "tanh"))
    other = agent(size="small", block={"_target_": "plain", "depth": 2}).block
    assert other.config == {"depth": 2}  # a preset says nothing of another class


def test_what_a_preset_made_is_dumped_and_loads_as_the_same():
    small = agent(size="small", lr=0.5, net={"depth": 9})
    plain = dump(small)
    assert plain["net"] == {
        "width": 2, "depth": 9, "inner": {"layers": 7, "act": "tanh"},
        "block": {"_target_": "configured", "width": 3, "act": "tanh"},
    }  # fmt: skip
    assert load(Agent, plain, "agent") == small
    held = Part(HERE + ".Held", small, HOME, object)
    assert held.but(lr=0.7).config == agent(size="small", lr=0.7, net={"depth": 9})


class Held:
    Config = Agent


def test_a_wrong_preset_and_a_wrong_nested_key_name_their_path():
    with pytest.raises(ConfigError, match=r"agent\.size: there is no choice 'smal'.*'small'"):
        agent(size="smal")
    with pytest.raises(ConfigError, match=r"agent\.net\.inner\.layer: .*Did you mean 'layers'"):
        agent(size="small", net={"inner": {"layer": 1}})
