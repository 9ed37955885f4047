"""Building blocks of the command line: help, value types and shell completion."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from dreamlab.config_files import GROUPS, choices
from dreamlab.core.config import convert
from dreamlab.core.errors import ConfigError
from dreamlab.core.limits import Natural, Positive, PositiveInt, Seed
from dreamlab.core.text import one_line
from dreamlab.runs.find import ROOT, is_run

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
TYPED = "dreamlab.typed"
"""Key of the context's meta under which the raw arguments of a command are kept."""
MOST_COMPLETED = 1_000


class Verb(click.Command):
    """A command whose help also describes its arguments and gives examples."""

    def __init__(self, *args: Any, examples: Sequence[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[TYPED] = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # the parser does not always set the context
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        about = [(p.make_metavar(ctx), p.about) for p in self.params if isinstance(p, Argument)]
        if about:
            with formatter.section("Arguments"):
                formatter.write_dl(about)
        super().format_options(ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Examples"):
            for line in self.examples:
                formatter.write(f"{' ' * formatter.current_indent}{line}\n")


class Argument(click.Argument):
    """A positional argument with a help text."""

    def __init__(self, *args: Any, about: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.about = about


def verb(name: str, *examples: str) -> Callable[[Callable[..., int]], Verb]:
    """Return a decorator that turns a function into a command, with its docstring as help."""
    return click.command(name, cls=Verb, examples=examples)


def argument(name: str, about: str, **options: Any) -> Callable[[Decorated], Decorated]:
    """Return a decorator that adds a positional argument with a help text."""
    return click.argument(name, cls=Argument, about=about, **options)


def typed(ctx: click.Context) -> list[str]:
    """Return the raw arguments of the command."""
    return ctx.meta[TYPED]


# -- values ---------------------------------------------------------------------------------------


class Number(click.ParamType):
    """A number with the type and the limits of a hint: 500_000, 5e5."""

    def __init__(self, hint: Any, name: str) -> None:
        self.hint, self.name = hint, name

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        try:
            return convert(_number_of(value) if isinstance(value, str) else value, self.hint, "")
        except ConfigError as error:
            self.fail(str(error).removeprefix(": "), param, ctx)


def _number_of(text: str) -> int | float | str:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


POSITIVE_INT = Number(PositiveInt, "n")
NATURAL = Number(Natural, "n")
SEED = Number(Seed, "n")
POSITIVE = Number(Positive, "x")


class Place(click.ParamType):
    """A path that is not checked here: each command reports its own errors."""

    name = "path"

    def convert(self, value: Any, param: Any, ctx: Any) -> Path:
        return Path(value)

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


class RunFolder(click.ParamType):
    """A run directory, as text or as a path; shells complete the existing ones."""

    name = "run"

    def __init__(self, kind: Callable[[Any], Any] = Path) -> None:
        self.kind = kind

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        return self.kind(value)

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        runs = [CompletionItem(f) for f in _run_folders(incomplete)]
        return [*runs, CompletionItem(incomplete, type="dir")]


def _run_folders(start: str) -> list[str]:
    """Return run directories that start with this path, else runs in the root with that prefix."""
    beside = Path(start) if start.endswith("/") else Path(start).parent
    found = _shown(f for f in _folders(beside) if is_run(f) and str(f).startswith(start))
    inside = (f for f in _folders(ROOT) if is_run(f) and f.name.startswith(start))
    return found if found or "/" in start else _shown(inside)


def _folders(place: Path) -> list[Path]:
    try:
        return sorted(f for f in place.iterdir() if f.is_dir())[:MOST_COMPLETED]
    except OSError:
        return []


def _shown(folders: Iterable[Path]) -> list[str]:
    """Return the paths that can be passed to a shell: no line breaks."""
    return [str(f) for f in folders if one_line(str(f)) == str(f)]


class Override(click.ParamType):
    """`key=value`, the name of an experiment or a YAML file: parsed later, passed through here."""

    name = "override"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        return value

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        key, start, before = _typed_so_far(ctx.params.get(param.name) or (), incomplete)
        group = key.lstrip("+")
        names = choices(group) if group in GROUPS else []
        found = [CompletionItem(f"{before}{n}") for n in names if n.startswith(start)]
        return found or [CompletionItem(incomplete, type="file")]


def _typed_so_far(given: Sequence[str], incomplete: str) -> tuple[str, str, str]:
    """Return a key, the prefix of its value, and what precedes the value in the same word."""
    key, equals, start = incomplete.partition("=")
    if equals:
        return key, start, f"{key}="
    if len(given) > 1 and given[-1] == "=":  # bash splits `key=value` into three words
        return given[-2], incomplete, ""
    return "experiment", incomplete, ""


# -- shared by several commands -------------------------------------------------------------------

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
root = click.option(
    "--root", type=Place(), default=ROOT, help="Where run ids and names are searched."
)
trust_code = click.option(
    "--trust-code",
    is_flag=True,
    help="Allow code outside dreamlab that a hub's configuration names.",
)
checkpoint = click.option(
    "--checkpoint", default="latest", metavar="NAME", help="latest, best, or a name in checkpoints/"
)
overrides = argument(
    "overrides",
    "an experiment, key=value, +preset=debug, env=ID, or a YAML file",
    nargs=-1, type=Override(), metavar="[EXPERIMENT] [KEY=VALUE]...",
)  # fmt: skip


def check_trust(words: Sequence[str], trust_code: bool) -> None:
    """Raise if a file from a hub needs --trust-code, or --trust-code has no effect."""
    from dreamlab.interop.strangers import check_files

    if not check_files(words, trust_code) and trust_code:
        raise ConfigError(
            "--trust-code has no effect: none of these files is from a hub. Remove it"
        )


def run_folder(about: str = "a run directory") -> Callable[[Decorated], Decorated]:
    """Return a decorator that adds the argument FOLDER."""
    return argument("folder", about, type=RunFolder(), metavar="FOLDER")


def run_name(name: str = "run") -> Callable[[Decorated], Decorated]:
    """Return a decorator that adds the argument RUN: a folder, an id or a name."""
    about = "a run directory, an id or its prefix, or a name"
    return argument(name, about, type=RunFolder(str), metavar=name.upper())


def cfg(function: Decorated) -> Decorated:
    """Add Hydra's `--cfg job`."""
    text = "Print the full configuration and exit."
    return click.option("--cfg", metavar="job", callback=_check_cfg, help=text)(function)


def _check_cfg(ctx: click.Context, param: click.Parameter, value: str | None) -> bool:
    if value not in (None, "job"):
        raise click.BadParameter("only `--cfg job` is supported", ctx, param)
    return value is not None
