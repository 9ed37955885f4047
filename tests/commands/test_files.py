"""Files that people write: what they may hold, and what is said of what they may not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dreamlab.cli import main
from dreamlab.config import compose, load_config, read_yaml, to_yaml
from dreamlab.core.errors import ConfigError
from tests.fuzz.cases import interpolated

HEAD = "# @package _global_\n"
BASE = f"{HEAD}defaults:\n  - ppo_cartpole\n  - _self_\n"


def written(folder: Path, text: str, name: str = "mine.yaml") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


REFUSED = [
    ("env:\n", "env: expected a mapping of EnvConfig options, got None"),
    ("training: null\n", "training: expected a mapping of TrainingConfig options, got None"),
    ("workflow: null\n", "workflow: expected a mapping, got None"),
    ("buffers: null\n", "buffers: expected a mapping, got None"),
    ("buffers: {rollout: null}\n", "buffers.rollout: expected a mapping, got None"),
    (
        "buffers: {rollout: {_target_: null}}\n",
        "buffers.rollout._target_: expected the name of a class",
    ),
    ("workflow: {_target_: 3}\n", "workflow._target_: expected the name of a class, got 3"),
    ("workflow: {_target_: ...}\n", "workflow._target_: '...' is not a class path"),
    (
        "workflow: {network: {_target_: null}}\n",
        "workflow.network._target_: expected the name of a class",
    ),
    ("tiny: true\ntraining: null\n", "training: expected a mapping"),
    ("tiny: true\ntraining: {phases: [null]}\n", "training.phases[0]: expected a mapping of Phase"),
    ("tiny: true\nbuffers: {rollout: {length: x}}\n", "buffers.rollout.length: expected int"),
    ("name: a\nname: b\n", "mine.yaml, line 6: the key 'name' is a duplicate of line 5"),
    ("hydra: {run: {dir: x}}\n", "hydra: Hydra's own options have no effect here"),
    ("schema: null\n", "schema: expected int, got None"),
    ("schema: true\n", "schema: expected int, got True"),
    ("schema: 0\nexperiment: null\n", "experiment: expected a mapping, got None"),
    ("schema: 0\ntraining: {phases: [3]}\n", "training.phases[0]: expected a mapping, got 3"),
    ("seed: " + "9" * 5_000, "Exceeds the limit"),
    ("name: ${name}\n", "Recursive interpolation detected"),
    ("x1: ${x0}\nx0: ${x1}\n", "Recursive interpolation detected"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_a_file_that_makes_no_sense_is_one_message(text, message, tmp_path, capsys):
    assert main(["train", written(tmp_path, BASE + text), "run.dir=" + str(tmp_path / "r")]) == 2
    err = capsys.readouterr().err
    assert err.startswith("ConfigError: ")
    assert message in err
    assert [p.name for p in tmp_path.iterdir()] == ["mine.yaml"]


@pytest.mark.parametrize("defaults", ["mine", "[3]", "null", "{a: {b: c}}", "[{a: b, c: d}]"])
def test_defaults_that_lead_nowhere_are_one_message(defaults: str, tmp_path: Path):
    given = f"{HEAD}defaults: [{defaults}, _self_]\nname: a\n"
    with pytest.raises(ConfigError) as error:
        compose([written(tmp_path, given)])
    assert "\n" not in str(error.value)


def test_files_that_include_each_other_are_one_message(tmp_path: Path):
    names = ("one.yaml", "two.yaml")
    pair = zip(names, reversed(names), strict=True)
    files = [written(tmp_path, f"{HEAD}defaults: [{b[:3]}]\n", a) for a, b in pair]
    with pytest.raises(ConfigError, match="include themselves or each other"):
        compose([f"+experiment=[{','.join(files)}]"])


def test_interpolations_cannot_multiply_without_end(tmp_path: Path):
    many = BASE + interpolated(13)
    with pytest.raises(ConfigError, match="expand to more than 2,000 values"):
        compose([written(tmp_path, many)])
    deep = BASE + "x600: 1\n" + "\n".join(f"x{i}: ['${{x{i + 1}}}']" for i in range(600))
    with pytest.raises(ConfigError, match=r"nested too deeply|recursion depth"):
        compose([written(tmp_path, deep)])


def test_a_byte_order_mark_changes_nothing(tmp_path: Path):
    assert compose([written(tmp_path, "\ufeff" + BASE + "name: marked\n")])["name"] == "marked"


def test_a_file_with_the_name_of_one_of_ours_is_still_the_users(tmp_path: Path):
    given = written(tmp_path, BASE + "name: theirs\n", "ppo_cartpole.yaml")
    assert compose([given])["name"] == "theirs"


@pytest.mark.parametrize("name", ["with space.yaml", "a=b.yaml", "\u00fc,[x].yaml", "it's.yaml"])
def test_a_files_name_may_have_any_letters(name: str, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, BASE + "name: found\n", name)
    if "=" not in name:
        assert compose([name])["name"] == "found"
    quoted = name.replace("'", "\\'")
    assert compose([f"+experiment='{quoted}'"])["name"] == "found"


def test_a_buffer_may_be_named_alone(tmp_path: Path):
    config = load_config(compose([written(tmp_path, BASE + "buffers: {more: rollout}\n")]))
    assert config.buffers["more"].target == "rollout"


ARGUMENTS = [
    ("a=" + "[" * 400, "cannot read the argument 'a=[[["),
    ("a=" + "x" * 20_000, "an argument of 20,002 characters is too long"),
    ("seed=" + "9" * 5_000, "cannot read the argument"),
    ("hydra.run.dir=x", "hydra.run.dir: Hydra's own options have no effect here"),
    ("seed=${seed}", "Recursive interpolation"),
    ("env=it's", "cannot read the argument"),
]


@pytest.mark.parametrize(("argument", "message"), ARGUMENTS, ids=[m for _, m in ARGUMENTS])
def test_an_argument_that_makes_no_sense_is_one_line(argument: str, message: str):
    with pytest.raises(ConfigError) as error:
        compose(["+experiment=ppo_cartpole", argument])
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


def test_an_id_may_have_a_quote():
    assert compose(['env="it\'s"'])["env"]["id"] == "it's"


# -- a run's own file -----------------------------------------------------------------------------


def saved(folder: Path, *overrides: str) -> Path:
    config = load_config(compose(["+experiment=ppo_cartpole", *overrides]))
    (folder / "config.yaml").write_text(to_yaml(config))
    return folder / "config.yaml"


def test_a_runs_file_is_read_as_it_was_written(tmp_path: Path):
    command = r"watch.command='echo \${ALERT_TEXT}'"
    config = load_config(read_yaml(saved(tmp_path, command)))
    assert config.watch.command == "echo ${ALERT_TEXT}"
    assert to_yaml(config) == (tmp_path / "config.yaml").read_text()


SPOILT: list[tuple[Any, str]] = [
    (b"", "config.yaml: is empty"),
    (b"workflow: \xff", "is not UTF-8 text"),
    (b"workflow: {", "is not valid YAML"),
    (b"seed: 1\nseed: 2\n", "line 2: the key 'seed' is a duplicate of line 1"),
    (b"workflow: &a {b: *a}", "the alias *a contains itself"),
    (b"seed: 1", "no algorithm selected"),
    (b"workflow:\n", "workflow: expected a mapping, got None"),
    (b"- 1", "expected options as `key: value`"),
    (b"\0" * 100, "is not valid YAML"),
]


@pytest.mark.parametrize(("data", "message"), SPOILT)
def test_a_runs_file_that_is_spoilt_is_one_message(data, message, tmp_path, capsys):
    (tmp_path / "config.yaml").write_bytes(data)
    assert main(["resume", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
