"""Command lines of other programs: answered with the command that does the same here."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dreamlab.commands.foreign_experiments import chosen, is_algorithm
from dreamlab.core.errors import LabError, UnknownOptionError

COMPOSING = ("train", "plan", "debug", "check")
VERBS = {
    "main.py": "train", "train.py": "train", "dreamer.py": "train", "run": "train",
    "fit": "train", "learn": "train", "lerobot-train": "train", "start": "train",
    "enjoy": "eval", "evaluate": "eval", "eval.py": "eval", "evaluate.py": "eval", "test": "eval",
    "play": "eval", "rollout": "eval", "enjoy.py": "eval", "lerobot-eval": "eval",
    "continue": "resume", "optimize": "tune", "optimise": "tune", "hpo": "tune", "optuna": "tune",
    "search": "tune", "multirun": "sweep", "sweep.py": "sweep", "tune.py": "tune",
    "plot": "compare", "plot_train": "compare", "ls": "list", "runs": "list", "info": "show",
    "status": "watch", "viewer": "watch", "scope": "watch", "monitor": "watch", "tail": "logs",
    "record": "data", "lerobot-record": "data", "push_to_hub": "export-policy",
    "upload": "export-policy", "deploy": "export-policy", "onnx": "export-policy",
    "clean": "cleanup", "rm": "cleanup", "delete": "cleanup", "estimate": "plan",
    "load": "import", "convert": "import", "reproduce": "verify",
}  # fmt: skip
"""What others call it, and the command here."""
SHORT = {
    "-n": "total_timesteps", "-f": "log_folder", "-i": "from_checkpoint", "-P": "progress_bar",
    "-params": "hyperparams", "-m": "multirun", "-tb": "tensorboard_log",
}  # fmt: skip
LINES = ("configs", "config", "config_name", "algo", "env", "resume", "seed", "debug")
"""Options that identify a command line of another program."""
MANY = ("configs", "hyperparams", "hyperparameters", "params", "env-kwargs", "config_overrides")
"""Options that take every word up to the next option."""


@dataclass
class Line:
    """A command line as other programs read it."""

    options: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    words: list[str] = field(default_factory=list[str])

    def pop(self, *names: str) -> str | None:
        """Take out the value of the first of these options that is there."""
        for name in names:
            if name in self.options:
                return " ".join(self.options.pop(name))
        return None


def read_line(words: Sequence[str]) -> Line:
    """Return what `--key value`, `--key=value`, `--flag` and plain words say."""
    line, left = Line(), list(words)
    while left:
        word = left.pop(0)
        if not _is_option(word):
            line.words.append(word)
            continue
        key, equals, value = SHORT.get(word, word.lstrip("-")).partition("=")
        key = key.replace("-", "_")
        values = [value] if equals else []
        many = key in MANY
        while left and not _is_option(left[0]) and (many or not values):
            if "=" in left[0] and not many:
                break
            values.append(left.pop(0))
        line.options[key] = values or ["true"]
    return line


def _is_option(word: str) -> bool:
    return word.startswith("-") and not word[1:].replace(".", "").replace("e-", "").isdigit()


def translated(verb: str, words: Sequence[str]) -> str | None:
    """Return the answer to a command line with unknown options; None if there is none better."""
    if verb in ("sweep", "tune"):
        return _with_file(verb, read_line(words))
    if verb not in COMPOSING:
        return None
    line = read_line(words)
    if (folder := line.pop("resume")) is not None and folder != "true":
        return _answer(["resume", folder.rstrip("/")], _length(line))
    picked = chosen(line.options, line.words)
    return _answer([verb, *picked], *_options(line, picked))


def _with_file(verb: str, line: Line) -> str | None:
    file = line.pop("config", "config_name", "config_file")
    return _answer([verb, file, *line.words], []) if file else None


def _length(line: Line) -> list[str]:
    from dreamlab.core.foreign_words import BY_NAME

    longer = BY_NAME["total_timesteps"].names
    return [f"training.total_frames={v[0]}" for k, v in line.options.items() if k in longer]


def _options(line: Line, picked: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words that say what the options say, and the options that nothing here says."""
    from dreamlab.config import compose, dump, load_config
    from dreamlab.runs.options import flatten

    flat = flatten(dump(load_config(compose([w for w in picked if "seed=" not in w]))))
    said: dict[str, str] = {}
    lost: list[str] = []
    for name, values in _spread(line.options).items():
        found = _say(name, values, flat)
        said |= {k: v for k, v in found.items() if flat.get(f"{k}._target_") != v}  # it is so
        if not found:
            lost.append(f"--{name}")
    words = [w for w in line.words if w not in picked]
    return [*words, *(f"{k}={v}" if v else k for k, v in said.items())], lost


def _spread(options: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return options with those of `--hyperparams a:1 b:2` by themselves."""
    out: dict[str, list[str]] = {}
    for name, values in options.items():
        if "{timestamp}" in values[0]:  # a folder with a time in its name is what one gets anyway
            continue
        if name not in MANY:
            out[name] = values
            continue
        for value in (part for v in values for part in v.split(",") if part):
            key, _, own = value.replace(":", "=", 1).partition("=")
            out[key] = [own]
    return out


def _say(name: str, values: list[str], flat: dict[str, Any]) -> dict[str, str]:
    """Return what says the same here as one option; a key alone is a whole word."""
    from dreamlab.config import read_value
    from dreamlab.core.foreign_words import find

    text = values[0]
    if name == "debug":
        return {"+preset=debug": ""}
    if name in flat and name != "env":
        return {name: text}
    found = find("task" if name == "env" else name, read_value(text, name), flat)
    if found is None:
        places = [k for k in flat if k.endswith(f".{name}")]
        return {places[0]: text} if len(places) == 1 else {}
    return {k: _as_typed(v, text, name) for k, v in found.answer.items()}


def _answer(words: Sequence[str], more: Sequence[str], lost: Sequence[str] = ()) -> str:
    """Return the answer: the command, and what was left out of it."""
    command = shlex.join(["dreamlab", *words, *more])
    left = f"\n  without a counterpart here: {', '.join(lost)}" if lost else ""
    return f"options of another program. The command here is:\n  {command}{left}"


# -- verbs and single words -----------------------------------------------------------------------


def verb_like(name: str, words: Sequence[str]) -> str | None:
    """Return the answer to a command, or the name of a script, of another program."""
    script = Path(name).stem
    own = VERBS.get(Path(name).name.lower())
    if own is None and name.endswith(".py") and is_algorithm(script):  # as CleanRL has it
        own, words = "train", ["--algo", script, *words]
    if own is None:
        return None
    if any(_is_option(w) for w in words) and (answer := translated(own, words)):
        return f"there is no command {name!r}: {answer}"
    plain = [w for w in words if not _is_option(w)] if own != "eval" else [_folder(words)]
    command = shlex.join(["dreamlab", own, *plain])
    return f"there is no command {name!r}. The command here is:\n  {command}"


def _folder(words: Sequence[str]) -> str:
    """Return the run that is to be evaluated, if the words say which."""
    line = read_line(words)
    named = line.pop("log_folder", "logdir", "policy.path", "checkpoint", "run", "load")
    return named or next(iter(line.words), "FOLDER")


def retyped(args: Sequence[str], error: UnknownOptionError) -> str | None:
    """Return the whole command with every option of another program replaced by ours."""
    from dreamlab.config import compose, load_config

    words, said = list(args), [error.said]
    for _ in range(len(args)):
        if error.instead is None or not (changed := _replaced(words, error)):
            return None
        words = changed
        try:
            _ = load_config(compose([w for w in words[1:] if _composes(w)]))
        except UnknownOptionError as another:
            error = another
            said.append(another.said)
        except LabError:
            break
        else:
            break
    return "\n".join([*said, f"  {shlex.join(['dreamlab', *words])}"])


def _composes(word: str) -> bool:
    return not word.startswith("--") and word not in ("job",) and not word.startswith("seed=")


def _replaced(words: Sequence[str], error: UnknownOptionError) -> list[str] | None:
    """Return words with ours instead of the one that named the unknown option."""
    for i, word in enumerate(words):
        key, equals, text = word.partition("=")
        key = key.lstrip("+")
        inside = key.startswith(f"{error.path}.")  # `wandb.enable=true` makes a `wandb`
        if equals and (key == error.path or inside):
            ours = {k: _as_typed(v, text, key) for k, v in (error.instead or {}).items()}
            rest = [w for w in words[i + 1 :] if not w.startswith(f"{error.path}.")]
            return [*words[:i], *(f"{k}={v}" for k, v in ours.items()), *rest]
    return None


def _as_typed(value: Any, text: str, key: str) -> str:
    """Return a value as a word has it: as it was typed, if that is what it is."""
    from dreamlab.config import read_value
    from dreamlab.core.words import text_of

    return text if value == read_value(text, key) else text_of(value)
