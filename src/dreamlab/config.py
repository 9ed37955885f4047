"""Composes YAML with Hydra and loads the result, strictly, into the dataclasses of the code."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dreamlab.config_files import GROUPS, choices, config_dir, experiments_like
from dreamlab.core import readers
from dreamlab.core.config import Part, dump, load
from dreamlab.core.errors import ConfigError, UnknownOptionError, unknown
from dreamlab.core.limits import PositiveInt, Range, Seed, shown
from dreamlab.core.names import check_tag, check_word
from dreamlab.core.phase import Phase
from dreamlab.core.readers import FileError, MissingFileError, parse_yaml
from dreamlab.core.workflow import Workflow
from dreamlab.data.source import Buffer
from dreamlab.engine.loop_parts import EngineConfig
from dreamlab.envs.vector import EnvConfig
from dreamlab.foreign import answered
from dreamlab.migrations import SCHEMA, mapping, migrate
from dreamlab.overlay import sections
from dreamlab.tiny import KeyPath, leaves, restore, shrink
from dreamlab.workflows import PARTS as WORKFLOWS

LONGEST_ARGUMENT = 10_000
MOST_INTERPOLATED = 2_000
FIRST = ("schema", "name", "seed", "workflow", "env", "buffers", "training")
"""Order of the first sections; the others follow."""
MOST_LIKE = 8
LONGEST_SAID = 300  # Hydra repeats what it could not read


@dataclass(frozen=True)
class TrainingConfig:
    """The curriculum."""

    phases: tuple[Phase, ...] = ()
    total_frames: PositiveInt | None = None
    """Total length of training in env frames; overrides the phases."""
    accumulate: PositiveInt = 1
    """Gradient accumulation: update calls per optimizer step."""


@dataclass(frozen=True)
class RunConfig:
    """Where a run lives."""

    dir: str | None = None
    """Run directory; an existing one is resumed. None: a new one under `experiments/`."""
    on_memory_shortage: Literal["disk", "refuse"] = "disk"
    """If the replay buffer does not fit into memory: store it on `disk`, or `refuse`."""
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for tag in self.tags:
            check_tag(tag, "run.tags")


@dataclass(frozen=True)
class StartConfig:
    """Another run's checkpoint to start with."""

    run: str
    """The run directory to start from."""
    checkpoint: str = "latest"
    """`latest`, `best`, or a name in `checkpoints/`."""
    load: Literal["weights", "all"] = "weights"
    """`weights` starts a new training from its weights; `all` continues from its full state,
    including the replay buffer."""
    modules: tuple[str, ...] = ()
    """Load only the weights of modules with these name prefixes."""

    def __post_init__(self) -> None:
        if self.load == "all" and self.modules:
            raise ValueError("modules requires load=weights: load=all loads everything")


@dataclass(frozen=True)
class LabConfig(EngineConfig):
    """A whole experiment. Every default is written once, in the dataclass beside the code."""

    workflow: Part = field(kw_only=True)
    """The algorithm; its `config` is the algorithm's dataclass."""
    schema: Annotated[int, Range(0, SCHEMA)] = SCHEMA
    name: str = "run"
    seed: Seed = 0
    tiny: bool = False
    """Shrink networks, buffers and phases so that a run takes seconds."""
    shrunk: bool = False
    """Set after shrinking, so that a stored configuration is not shrunk again."""
    env: EnvConfig = field(default_factory=EnvConfig)
    buffers: dict[str, Part] = field(default_factory=dict)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    run: RunConfig = field(default_factory=RunConfig)
    start: StartConfig | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_word(self.name, "name")


def compose(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the configuration that Hydra makes of these overrides, as plain data.

    The name of an experiment, or a YAML file, stands for `+experiment=` it. A key that no YAML file
    mentions is added (its default is in the code); if it is misspelled, `load_config` says so. What
    was typed wins over `tiny`, and an environment that was chosen over the experiment's.
    """
    with tempfile.TemporaryDirectory() as extra:
        overrides = [o for a in arguments if (o := _prepare(a, Path(extra)))]
        try:
            with initialize_config_dir(str(config_dir().resolve()), version_base="1.3"):
                search = (
                    [f"hydra.searchpath=[file://{extra}]"] if any(Path(extra).iterdir()) else []
                )
                node = hydra_compose("train", overrides=overrides + search)
                parsed = [_parsed(o) for o in overrides]
                folders = (config_dir(), Path(extra))
                for key, section in sections("train", overrides + search, parsed, folders).items():
                    OmegaConf.update(node, key, section, merge=False, force_add=True)
        except MissingConfigException as error:
            raise ConfigError(_missing(error)) from None
        except RecursionError:
            raise ConfigError("defaults: files include themselves or each other") from None
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            # Hydra has a ValueError for a list of defaults that is none
            raise ConfigError(_one_line(error)) from None
    try:
        made = _resolved(node, [MOST_INTERPOLATED])
    except RecursionError:
        raise ConfigError("interpolations ${...} are nested too deeply") from None
    except OmegaConfBaseException as error:
        raise ConfigError(_one_line(error)) from None
    return _as_typed(made, arguments)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _as_typed(node: dict[str, Any], arguments: Sequence[str]) -> dict[str, Any]:
    """Return a configuration with the environment that was chosen, and shrunk if that is wanted."""
    typed = typed_paths(arguments)
    if group := _chosen_env(arguments):
        node = _with_env(node, group, typed)
    if not node.get("tiny") or node.get("shrunk") or "workflow" not in node:
        return node
    node = _sections(node)
    _ = _typed(node)  # so that faults are told of what was written
    return {**shrink(node, typed), "shrunk": True}


def typed_paths(arguments: Sequence[str]) -> list[KeyPath]:
    """Return the path of every single value that was given; a group's file is not one."""
    out: list[KeyPath] = []
    for argument in arguments:
        if "=" not in argument or argument.startswith("~"):
            continue
        override = _parsed(argument)
        key, value = override.key_or_group, override.value()
        if key == "env" and isinstance(value, str) and value not in choices("env"):
            out.append(("env", "id"))
        elif key == "actors" and isinstance(value, int):
            out.append(("actors", "num"))
        elif key == "workflow" and isinstance(value, str):
            out.append(("workflow", "_target_"))
        elif key not in GROUPS or isinstance(value, dict):
            out += leaves(value, tuple(key.replace("[", ".").replace("]", "").split(".")))
    return out


OF_THE_TRAINING = ("num_envs", "vector", "normalize_obs", "normalize_reward")
"""Environment options of an experiment that also apply to another environment."""


def _chosen_env(arguments: Sequence[str]) -> str | None:
    """Return the group of environments that was requested."""
    found = [a.removeprefix("env=") for a in arguments if a.startswith("env=")]
    return found[-1] if found and found[-1] in choices("env") else None


def _with_env(node: dict[str, Any], group: str, typed: Sequence[KeyPath]) -> dict[str, Any]:
    """Return an experiment on another environment: that of its own is forgotten."""
    kept = {k: v for k, v in mapping(node["env"], "env").items() if k in OF_THE_TRAINING}
    chosen = read_yaml(config_dir() / "env" / f"{group}.yaml")
    return restore({**node, "env": kept | chosen}, node, [p for p in typed if p[0] == "env"])


def _one_line(error: Exception) -> str:
    """Return what Hydra or OmegaConf says, its cause included, as a user can use it."""
    text = str(error) if error.__cause__ is None else f"{error}: {error.__cause__}"
    lines = (" ".join(line.split()).removesuffix(":") for line in text.splitlines())
    noise = ("object_type=", "Config search path", "provider=", "reference_type=")
    said = "; ".join(x for x in lines if x and x != "full_key" and not x.startswith(noise))
    return said if len(said) <= LONGEST_SAID else f"{said[:LONGEST_SAID]}..."


def _resolved(node: Any, left: list[int], within: bool = False) -> Any:
    """Return a node as plain data; of what its `${...}` stand for, at most `left` values."""
    left[0] -= within
    if left[0] < 0:
        raise ConfigError(
            f"interpolations ${{...}} expand to more than {MOST_INTERPOLATED:,} values"
        )
    if not isinstance(node, DictConfig | ListConfig):
        return node
    keys: list[Any] = list(range(len(node)) if isinstance(node, ListConfig) else node)
    values = [_resolved(node[k], left, within or OmegaConf.is_interpolation(node, k)) for k in keys]
    if isinstance(node, ListConfig):
        return values
    return dict(zip(map(str, keys), values, strict=True))


def _prepare(argument: str, extra: Path) -> str:
    """Return the override that Hydra needs for what the user wrote."""
    if "=" not in argument and not argument.startswith("~"):
        return _group("experiment", [_experiment(argument)], extra)
    override = _parsed(argument)
    key, value = override.key_or_group, override.value()
    if not key:
        raise ConfigError(f"cannot read the argument {shown(argument)}: it has no option name")
    if key.split(".")[0] == "hydra":
        raise ConfigError(f"{key}: Hydra's own options have no effect here")
    if key in ("experiment", "preset"):
        return _group(key, value if isinstance(value, list) else [value], extra)
    if key == "env" and isinstance(value, str) and value not in choices("env"):
        return f"++env.id={_quoted(value)}"
    if key == "actors" and isinstance(value, int):
        return f"++actors.num={value}"
    plain = override.type.name == "CHANGE"
    of_group = key in GROUPS and not isinstance(value, dict)
    return f"++{argument}" if plain and not of_group else argument


def _experiment(argument: str) -> str:
    """Return a word that stands for an experiment: its name, or a file."""
    _check_length(argument)
    if not argument.endswith((".yaml", ".yml")) and argument not in choices("experiment"):
        expected = "expected an experiment, a YAML file or key=value"
        if like := experiments_like(argument):
            among = ", ".join(map(repr, like[:MOST_LIKE]))
            hint = f"there is no experiment {shown(argument)}. Did you mean {among}?"
            raise ConfigError(f"{hint}\n  {expected}")
        raise ConfigError(unknown("experiment", argument, choices("experiment"), expected))
    return argument


def _check_length(argument: str) -> None:
    if len(argument) > LONGEST_ARGUMENT:
        raise ConfigError(f"an argument of {len(argument):,} characters is too long: use a file")


def _parsed(argument: str) -> Override:
    """Return an argument as Hydra reads it."""
    _check_length(argument)
    try:
        return OverridesParser.create().parse_override(argument)
    except RecursionError:
        text = "nested too deeply"
        raise ConfigError(f"cannot read the argument {shown(argument)}: {text}") from None
    except (HydraException, ValueError) as error:
        text = _one_line(error)
        raise ConfigError(f"cannot read the argument {shown(argument)}: {text}") from None


def _group(group: str, values: Sequence[Any], extra: Path) -> str:
    """Return the override that picks files of a group, by name or by path."""
    picked = [_by_path(group, str(v), extra) for v in values]
    return f"+{group}={picked[0]}" if len(picked) == 1 else f"+{group}=[{','.join(picked)}]"


def _by_path(group: str, value: str, extra: Path) -> str:
    """Return the name by which Hydra finds a group's file; one given by path is put there."""
    if not value.endswith((".yaml", ".yml")):
        if value not in choices(group):
            raise ConfigError(unknown(group, value, choices(group), f"+{group}"))
        return value
    path = Path(value)
    if not path.is_file():
        raise ConfigError(f"+{group}: no such file: {value!r}")
    text = _text(path)
    if "hydra" in parse_yaml(text, value):
        raise ConfigError(f"{value}: hydra: Hydra's own options have no effect here")
    (extra / group).mkdir(exist_ok=True)
    name = re.sub(r"\W", "_", path.stem, flags=re.ASCII).strip("_") or "given"
    while name in choices(group) or (extra / group / f"{name}.yaml").exists():
        name += "_"  # else Hydra would take ours
    (extra / group / f"{name}.yaml").write_text(text, encoding="utf-8")
    return name


def _missing(error: MissingConfigException) -> str:
    missing = str(error.missing_cfg_file or "")
    group, _, name = missing.strip("/").rpartition("/")
    if group in GROUPS:
        return unknown(group, name, choices(group), f"{group}={name}")
    return _one_line(error)


def load_config(node: dict[str, Any], stored: bool = False) -> LabConfig:
    """Return the typed configuration; raise naming the place, the nearest name and the choices.

    One that a run has `stored` keeps options of several processes while there is one.
    """
    config = _typed(_sections(node))
    if not stored:
        config.distributed.check_effect(config.processes)
    return config


def _sections(node: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration in today's form, its parts with their names."""
    node = migrate(node)
    if "workflow" not in node:
        raise ConfigError(
            "no algorithm selected: use +experiment=NAME\n  known: "
            + ", ".join(choices("experiment"))
        )
    buffers = mapping(node.get("buffers", {}), "buffers")
    node["buffers"] = {
        check_word(str(k), "buffers"): {"_target_": "replay", **_named(v, f"buffers.{k}")}
        for k, v in buffers.items()
    }
    node["workflow"] = _full(_named(node["workflow"], "workflow"))
    if isinstance(node.get("actors"), int):  # their number alone
        node["actors"] = {"num": node["actors"]}
    return node


def _typed(node: dict[str, Any]) -> LabConfig:
    """Return the configuration; an option's name from another program is told what it is here."""
    try:
        return _checked(node)
    except UnknownOptionError as error:
        raise answered(error, node, _checked) from None


def _checked(node: dict[str, Any]) -> LabConfig:
    """Return the configuration whose sections have the right form, every option checked."""
    buffers = node["buffers"].items()
    parts = {k: _part(v, "dreamlab.data", Buffer, f"buffers.{k}") for k, v in buffers}
    workflow = _part(node["workflow"], "dreamlab.workflows", Workflow, "workflow")
    return load(LabConfig, {**node, "workflow": workflow, "buffers": parts}, "")


def _named(node: Any, where: str) -> dict[str, Any]:
    """Return a part's options with its `_target_`, for which its name alone may stand."""
    return {"_target_": node} if isinstance(node, str) else dict(mapping(node, where))


def _full(node: dict[str, Any]) -> dict[str, Any]:
    """Return a workflow's options with the path of its class, for which a short name may stand."""
    name = node.get("_target_")
    path = WORKFLOWS.get(name, name) if isinstance(name, str) else name
    return node | ({} if path is None else {"_target_": path})


def _part(node: Mapping[str, Any], home: str, kind: type, where: str) -> Part:
    """Return the part that a `_target_` node names, its options checked."""
    if "_target_" not in node:
        raise ConfigError(
            f"{where}: _target_ is missing: name a class, e.g. dreamlab.workflows.ppo.PPO"
        )
    if not isinstance(node["_target_"], str):
        got = shown(node["_target_"])
        raise ConfigError(f"{where}._target_: expected the name of a class, got {got}")
    options = {k: v for k, v in node.items() if k != "_target_"}
    _ = Part(node["_target_"], None, home, kind).cls(f"{where}._target_")
    return Part.load(node["_target_"], options, home, kind, where)


def to_yaml(config: LabConfig) -> str:
    """Return the whole configuration as YAML, every default written out."""
    node = dump(config)
    first = {k: node[k] for k in FIRST}
    return OmegaConf.to_yaml(OmegaConf.create(first | node))


def read_yaml(path: Path) -> dict[str, Any]:
    """Return a run's saved configuration, or a sweep's; nothing in it is interpolated."""
    try:
        return readers.read_yaml(path)
    except MissingFileError:
        raise ConfigError(f"not a run directory: {path} does not exist") from None
    except FileError as error:
        raise ConfigError(str(error)) from None


def _text(path: Path) -> str:
    """Return the text of a file that the user named; a byte order mark is left out."""
    try:
        return readers.read_text(path).removeprefix("\ufeff")
    except FileError as error:
        raise ConfigError(str(error)) from None


def read_value(text: str, where: str) -> Any:
    """Return what a value on the command line means; it is written as in YAML."""
    return parse_yaml(f"value: {text}", where)["value"] if text else ""


__all__ = [
    "LabConfig", "compose", "dump", "load_config", "migrate", "read_value", "read_yaml", "shrink",
    "to_yaml",
]  # fmt: skip
