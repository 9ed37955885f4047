"""Composes YAML with Hydra and loads the result, strictly, into the dataclasses of the code."""

from __future__ import annotations

import inspect
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from dreamlab.core.config import Part, check_options, dump, load, locate
from dreamlab.core.errors import ConfigError, unknown
from dreamlab.core.phase import Phase
from dreamlab.engine.accelerate import ComputeConfig
from dreamlab.engine.checkpoint import CheckpointConfig
from dreamlab.engine.evaluator import EvalConfig
from dreamlab.engine.logger import LogConfig
from dreamlab.engine.report import ReportConfig
from dreamlab.engine.watch import WatchConfig
from dreamlab.envs.suites import SUITES
from dreamlab.envs.vector import EnvConfig

SCHEMA = 1
GROUPS = ("experiment", "env", "preset")


@dataclass(frozen=True)
class TrainingConfig:
    """The curriculum."""

    phases: tuple[Phase, ...] = ()
    total_frames: int | None = None
    """Length of the whole training in env frames, whatever the phases say."""
    accumulate: int = 1
    """Update calls whose gradients are added up before the weights move."""


@dataclass(frozen=True)
class RunConfig:
    """Where a run lives."""

    dir: str | None = None
    """The run folder; an existing one is resumed. None makes a new one under `experiments/`."""
    on_memory_shortage: str = "disk"
    """What to do if a replay does not fit into memory: put it on the `disk`, or `refuse`."""
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class LabConfig:
    """A whole experiment. Every default is written once, in the dataclass beside the code."""

    workflow: Part
    schema: int = SCHEMA
    name: str = "run"
    seed: int = 0
    device: str = "auto"
    precision: str = "fp32"
    deterministic: bool = False
    threads: int = 0
    compile: bool | None = None
    tiny: bool = False
    """Shrink networks, buffers and phases so that everything happens within seconds."""
    shrunk: bool = False
    """That this was done: a run's own configuration is not shrunk again."""
    env: EnvConfig = field(default_factory=EnvConfig)
    buffers: dict[str, Part] = field(default_factory=dict)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    log: LogConfig = field(default_factory=LogConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    report: ReportConfig = field(default_factory=ReportConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    watch: WatchConfig = field(default_factory=WatchConfig)
    run: RunConfig = field(default_factory=RunConfig)

    @property
    def compute(self) -> ComputeConfig:
        """Return the options on computing as one."""
        names = ("device", "precision", "deterministic", "compile", "threads")
        options = {k: getattr(self, k) for k in names}
        return load(ComputeConfig, options, "")


def config_dir() -> Path:
    """Return the folder of the YAML files: in the installed package, or at a checkout's root."""
    inside = Path(__file__).parent / "configs"
    return inside if inside.is_dir() else Path(__file__).parents[2] / "configs"


def choices(group: str) -> list[str]:
    """Return the names of the YAML files of a group."""
    return sorted(p.stem for p in (config_dir() / group).glob("*.yaml"))


def compose(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the configuration that Hydra makes of these overrides, as plain data.

    An argument that is a YAML file stands for `+experiment=` that file. A key that no YAML file
    mentions is added (its default is in the code); if it is misspelt, `load_config` says so. What
    was typed wins over `tiny`, and an environment that was chosen over the experiment's.
    """
    with tempfile.TemporaryDirectory() as extra:
        overrides = [_prepare(a, Path(extra)) for a in arguments]
        try:
            with initialize_config_dir(str(config_dir().resolve()), version_base="1.3"):
                search = (
                    [f"hydra.searchpath=[file://{extra}]"] if any(Path(extra).iterdir()) else []
                )
                node = hydra_compose("train", overrides=[o for o in overrides if o] + search)
        except MissingConfigException as error:
            raise ConfigError(_missing(error)) from None
        except (ConfigCompositionException, HydraException, OmegaConfBaseException) as error:
            cause = f"\n  {error.__cause__}" if error.__cause__ else ""
            raise ConfigError(f"{error}{cause}") from None
    try:
        plain = OmegaConf.to_container(node, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(str(error)) from None
    assert isinstance(plain, dict)
    made, typed = {str(k): v for k, v in plain.items()}, typed_paths(arguments)
    if group := _chosen_env(arguments):
        made = _with_env(made, group, typed)
    wanted = made.get("tiny") and not made.get("shrunk") and "workflow" in made
    return {**shrink(migrate(made), typed), "shrunk": True} if wanted else made


KeyPath = tuple[str, ...]


def typed_paths(arguments: Sequence[str]) -> list[KeyPath]:
    """Return the path of every single value that was given; a group's file is not one."""
    parser, out = OverridesParser.create(), list[KeyPath]()
    for argument in arguments:
        if "=" not in argument or argument.startswith("~"):
            continue
        override = parser.parse_override(argument)
        key, value = override.key_or_group, override.value()
        if key == "env" and isinstance(value, str) and value not in choices("env"):
            out.append(("env", "id"))
        elif key not in GROUPS or isinstance(value, dict):
            out += _leaves(value, tuple(key.replace("[", ".").replace("]", "").split(".")))
    return out


def _leaves(value: Any, path: KeyPath) -> list[KeyPath]:
    if not isinstance(value, dict) or not value:
        return [path]
    return [leaf for k, v in value.items() for leaf in _leaves(v, (*path, str(k)))]


def _restore(node: dict[str, Any], source: Any, paths: Iterable[KeyPath]) -> dict[str, Any]:
    """Return `node` with what `source` has at these paths, if it has it."""
    for path in paths:
        try:
            node = _put(node, path, _get(source, path))
        except (KeyError, IndexError, TypeError):  # typed and taken away again, or Hydra's own
            continue
    return node


def _get(node: Any, path: KeyPath) -> Any:
    for key in path:
        node = node[int(key) if isinstance(node, list) else key]
    return node


def _put(node: Any, path: KeyPath, value: Any) -> Any:
    """Return a tree with another value at a path."""
    if not path:
        return value
    if isinstance(node, list):
        at = int(path[0])
        return [*node[:at], _put(node[at], path[1:], value), *node[at + 1 :]]
    node = node if isinstance(node, dict) else {}
    return {**node, path[0]: _put(node.get(path[0]), path[1:], value)}


OF_THE_TRAINING = ("num_envs", "vector", "normalize_obs", "normalize_reward")
"""What an experiment says of its environment that holds for another one too."""


def _chosen_env(arguments: Sequence[str]) -> str | None:
    """Return the group of environments that was asked for."""
    found = [a.removeprefix("env=") for a in arguments if a.startswith("env=")]
    return found[-1] if found and found[-1] in choices("env") else None


def _with_env(node: dict[str, Any], group: str, typed: Sequence[KeyPath]) -> dict[str, Any]:
    """Return an experiment on another environment: that of its own is forgotten."""
    kept = {k: v for k, v in node["env"].items() if k in OF_THE_TRAINING}
    chosen = read_yaml(config_dir() / "env" / f"{group}.yaml")
    return _restore({**node, "env": kept | chosen}, node, [p for p in typed if p[0] == "env"])


def _prepare(argument: str, extra: Path) -> str:
    """Return the override that Hydra needs for what the user wrote."""
    if "=" not in argument and argument.endswith((".yaml", ".yml")):
        argument = f"+experiment={argument}"
    try:
        override = OverridesParser.create().parse_override(argument)
    except HydraException as error:
        raise ConfigError(f"cannot read the argument {argument!r}: {error}") from None
    key, value = override.key_or_group, override.value()
    if key in ("experiment", "preset"):
        names = value if isinstance(value, list) else [value]
        picked = [_by_path(key, str(v), extra) for v in names]
        return f"+{key}={picked[0]}" if len(picked) == 1 else f"+{key}=[{','.join(picked)}]"
    if key == "env" and isinstance(value, str) and value not in choices("env"):
        return f"++env.id='{value}'"
    plain = override.type.name == "CHANGE"
    return f"++{argument}" if plain and key not in GROUPS else argument


def _by_path(group: str, value: str, extra: Path) -> str:
    """Return the name by which Hydra finds a group's file; one given by path is put there."""
    if not value.endswith((".yaml", ".yml")):
        if value not in choices(group):
            raise ConfigError(unknown(group, value, choices(group), f"+{group}"))
        return value
    path = Path(value)
    if not path.is_file():
        raise ConfigError(f"+{group}: there is no file {value!r}")
    (extra / group).mkdir(exist_ok=True)
    shutil.copy(path, extra / group / f"{path.stem}.yaml")
    return path.stem


def _missing(error: MissingConfigException) -> str:
    missing = str(error.missing_cfg_file or "")
    group, _, name = missing.strip("/").rpartition("/")
    if group in GROUPS:
        return unknown(group, name, choices(group), f"{group}={name}")
    return str(error)


def load_config(node: dict[str, Any]) -> LabConfig:
    """Return the typed configuration; raise naming the place, the nearest name and the choices."""
    node = migrate(node)
    if "workflow" not in node:
        raise ConfigError(
            "no algorithm was chosen: use +experiment=NAME\n  known: "
            + ", ".join(choices("experiment"))
        )
    buffers = node.get("buffers", {})
    node["workflow"] = _part(node["workflow"], "", "workflow")
    node["buffers"] = {
        k: _part({"_target_": "replay", **v}, "dreamlab.data", f"buffers.{k}")
        for k, v in buffers.items()
    }
    return load(LabConfig, node, "")


def _part(node: Any, home: str, where: str) -> Part:
    """Return the part that a `_target_` node names, its options checked."""
    if not isinstance(node, dict) or "_target_" not in node:
        raise ConfigError(
            f"{where}: _target_ is missing: it names the class, e.g. dreamlab.workflows.ppo.PPO"
        )
    options = {k: v for k, v in node.items() if k != "_target_"}
    result = Part(str(node["_target_"]), options, home)
    check_options(result.cls(f"{where}._target_"), options, where)
    return result


SMALL_BUFFER = {"capacity": 2_000, "batch": 8, "length": 16, "min_steps": 64}


def shrink(node: dict[str, Any], typed: Sequence[KeyPath] = ()) -> dict[str, Any]:
    """Return a configuration that reaches every phase within seconds on a laptop.

    Networks become what the workflow calls tiny; buffers and batches shrink; every phase but the
    last is cut to a few steps. Windows keep their length where the algorithm needs it (2, n + 1),
    and values at `typed` paths stay.
    """
    workflow = dict(node["workflow"])
    cls = locate(str(workflow.get("_target_", "")), "workflow._target_")
    buffers = {
        name: {**b, **{k: min(b[k], most) for k, most in SMALL_BUFFER.items() if b.get(k)}}
        for name, b in node.get("buffers", {}).items()
    }
    small = {**node, "workflow": _merge(workflow, getattr(cls, "tiny", {})), "buffers": buffers}
    small = _restore(small, node, typed)  # the phases depend on the sizes
    training = dict(node.get("training", {}))
    phases = training.get("phases", [])
    training["phases"] = [_shrink_phase(p, node, small, p is phases[-1]) for p in phases]
    return _restore({**small, "training": training}, node, typed)


def _shrink_phase(
    phase: dict[str, Any], before: dict[str, Any], after: dict[str, Any], is_last: bool
) -> dict[str, Any]:
    """Return a phase with fewer ticks, as many updates per decision, and a short duration."""
    name = phase.get("buffer", "replay")
    big, small = (n.get("buffers", {}).get(name, {}) for n in (before, after))
    most = {"collect_ticks": 16}
    if not is_last:
        frames = _frames_per_tick(after.get("env", {})) * (small.get("length", 1) + 2)
        steps = max(128, frames)  # enough for a batch, if one is drawn next
        most |= {"duration_steps": steps, "duration_updates": 8, "duration_cycles": 4}
    out = {**phase, **{k: min(phase[k], n) for k, n in most.items() if phase.get(k) is not None}}
    if phase.get("train_ratio") is not None:
        sizes = [b.get("batch", 1) * b.get("length", 1) for b in (big, small)]
        out["train_ratio"] = phase["train_ratio"] * (sizes[1] / sizes[0])
    return out


def _frames_per_tick(env: dict[str, Any]) -> int:
    """Return the frames of one decision of every environment."""
    options, suite = env.get("options") or {}, env.get("suite", EnvConfig.suite)
    own = options.get("repeat", options.get("frame_skip", 1))
    if suite in SUITES and "repeat" not in options:  # some suites repeat actions by themselves
        parameters = inspect.signature(locate(SUITES[suite], "env.suite")).parameters
        own = parameters["repeat"].default if "repeat" in parameters else own
    return own * env.get("repeat", EnvConfig.repeat) * env.get("num_envs", EnvConfig.num_envs)


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Return `over` on top of `base`; a part the user chose by name is left as it was written."""
    out = dict(base)
    for key, value in over.items():
        old = base.get(key)
        chosen = isinstance(value, dict) and (isinstance(old, str) or "_target_" in (old or {}))
        if chosen:
            continue
        out[key] = (
            _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
        )
    return out


def migrate(node: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration of an older schema in today's form, or say why it cannot be read."""
    version = node.get("schema", SCHEMA)
    if not isinstance(version, int) or version > SCHEMA or version < 0:
        raise ConfigError(
            f"schema: this configuration has version {version}, this one reads up to {SCHEMA}; "
            "it was written by a newer version, which is needed to read it"
        )
    node = dict(node)
    for step in range(version, SCHEMA):
        node = MIGRATIONS[step](node)
    node["schema"] = SCHEMA
    return node


def _from_schema_0(node: dict[str, Any]) -> dict[str, Any]:
    """Before 0.1: `experiment: {name, seed}`, `training.total_timesteps`, `replay_ratio`."""
    out = {k: v for k, v in node.items() if k != "experiment"}
    out |= {k: v for k, v in node.get("experiment", {}).items() if k in ("name", "seed", "device")}
    training = dict(out.get("training", {}))
    if "total_timesteps" in training:
        training["total_frames"] = training.pop("total_timesteps")
    renamed = {"replay_ratio": "train_ratio"}
    training["phases"] = [
        {renamed.get(k, k): v for k, v in p.items()} for p in training.get("phases", [])
    ]
    return {**out, "training": training}


MIGRATIONS = {0: _from_schema_0}


def to_yaml(config: LabConfig) -> str:
    """Return the whole configuration as YAML, every default written out."""
    return OmegaConf.to_yaml(OmegaConf.create(dump(config)))


def read_yaml(path: Path) -> dict[str, Any]:
    """Return a run's saved configuration."""
    try:
        node = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist: this is not a run folder") from None
    except (YAMLError, OmegaConfBaseException, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from None
    if not isinstance(node, dict):
        raise ConfigError(f"{path} is not a configuration")
    return {str(k): v for k, v in node.items()}


__all__ = ["LabConfig", "compose", "dump", "load_config", "read_yaml", "to_yaml"]
