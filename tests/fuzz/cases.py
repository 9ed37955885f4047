"""Cases made from a number: the same number, the same case."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from dreamlab.config import config_dir
from tests.fuzz.nodes import (
    EXPERIMENTS,
    ODD,
    Option,
    at,
    changed,
    is_wrong,
    misspelt,
    options,
    plain,
)


@dataclass(frozen=True)
class Case:
    """What is offered: a whole node, a file's bytes, or arguments of the command line."""

    about: str
    must_fail: bool
    node: dict[str, Any] | None = None
    data: bytes | None = None
    arguments: tuple[str, ...] = ()


Maker = Callable[[Random, str], Case]


def _free(option: Option) -> bool:
    """Tell whether an option is handed on as it is, to a library that has its own rules."""
    return option.path[:2] == ("env", "options")


# -- whole configurations -------------------------------------------------------------------------


def wrong_value(rng: Random, name: str) -> Case:
    """One value that its option cannot have."""
    while True:
        option = rng.choice(options(name))
        wrong = [v for v in ODD if is_wrong(option, v)]
        if wrong and not _free(option):
            value = rng.choice(wrong)
            node = changed(plain(name), option.path, value)
            return Case(f"{name}: {option.name}={value!r}", True, node)


def out_of_range(rng: Random, name: str) -> Case:
    """One number just outside of its limits."""
    numbers = [o for o in options(name) if o.numbers]
    while True:
        option = rng.choice(numbers)
        kind, limit = option.numbers[0]
        step = 1 if kind is int else 1e-3
        ends = [limit.low - (0 if limit.open_low else step)]
        ends += [limit.high + (0 if limit.open_high else step)]
        value = rng.choice(ends)
        if is_wrong(option, value):
            node = changed(plain(name), option.path, value)
            return Case(f"{name}: {option.name}={value!r}", True, node)


def misspelt_key(rng: Random, name: str) -> Case:
    """One key with a letter wrong."""
    while True:
        option = rng.choice(options(name))
        inside = at(plain(name), option.path[:-1])
        word = misspelt(rng, str(option.path[-1]))
        if option.path[-1] in inside and word and word not in inside and not _free(option):
            node = copy.deepcopy(plain(name))
            moved = at(node, option.path[:-1])
            moved[word] = moved.pop(option.path[-1])
            return Case(f"{name}: {option.name} as {word}", True, node)


TARGETS = ["", "...", ".a.b", "a..b", "no.such.Class", "os.system", "builtins.int", "dreamlab", 3,
           None, [], {}, "dreamlab.workflows.ppo.PP", "torch.nn.Linear", "\u2603.x"]  # fmt: skip


def wrong_target(rng: Random, name: str) -> Case:
    """A part that does not exist, is none, or has lost its name."""
    node = copy.deepcopy(plain(name))
    if rng.random() < 0.2:
        del node["workflow"]["_target_"]
        return Case(f"{name}: workflow without _target_", True, node)
    parts = [("workflow",), *(("buffers", k) for k in node["buffers"])]
    if isinstance(node["workflow"].get("network"), dict):
        parts.append(("workflow", "network"))
    path, target = (*rng.choice(parts), "_target_"), rng.choice(TARGETS)
    return Case(f"{name}: {path}={target!r}", True, changed(node, path, target))


def never_trains(rng: Random, name: str) -> Case:
    """Sizes with which nothing could ever be learnt."""
    node = copy.deepcopy(plain(name))
    buffer = next(iter(node["buffers"].values()))
    phase = node["training"]["phases"][-1]
    if "capacity" in buffer:
        spoil = rng.choice(["small", "start", "window", "context", "batch"])
        if spoil == "small":
            buffer["capacity"] = rng.randint(2, buffer["length"])
        elif spoil == "start":
            buffer["min_steps"] = buffer["capacity"] + rng.randint(1, 10**6)
        elif spoil == "window":
            buffer["length"] = buffer["capacity"] + rng.randint(0, 9)
        elif spoil == "context":
            buffer["context"] = buffer["length"] + rng.randint(0, 9)
        else:
            buffer["batch"] = buffer["capacity"] + rng.randint(1, 10**6)
        return Case(f"{name}: {spoil} {buffer}", True, node)
    spoil = rng.choice([{"collect_ticks": buffer["length"] + 1}, {"train_ratio": 0.5}])
    phase.update(spoil)
    return Case(f"{name}: {spoil}", True, node)


def wrong_phase(rng: Random, name: str) -> Case:
    """A curriculum that names what is not there, or never ends."""
    node = copy.deepcopy(plain(name))
    phase = rng.choice(node["training"]["phases"])
    changes: list[dict[str, Any]] = [
        {"workflow_hooks": []}, {"workflow_hooks": ["no_such_hook"]}, {"buffer": "nowhere"},
        {"workflow_hooks": "collect"}, {"type": "sometimes"}, {"type": "eval_only"},
        {"duration_steps": None, "duration_updates": None, "duration_cycles": None},
        {"duration_steps": 10, "duration_cycles": 10}, {"duration_steps": 0},
    ]  # fmt: skip
    change = rng.choice([*changes, None])
    if change is None:
        node["training"]["phases"] = rng.choice([[], None, {}, "all", [None], [3], [[]]])
        return Case(f"{name}: phases={node['training']['phases']!r}", True, node)
    phase.update(change)
    return Case(f"{name}: {change}", True, node)


def lost_section(rng: Random, name: str) -> Case:
    """A section, or a part of one, that is no mapping."""
    sections = [("workflow",), ("env",), ("training",), ("buffers",), ("log",), ("eval",),
                ("checkpoint",), ("watch",), ("run",), ("report",)]  # fmt: skip
    sections += [("buffers", k) for k in plain(name)["buffers"]]
    path, value = rng.choice(sections), rng.choice([None, [], 3, [1, 2], "\u2603", True])
    return Case(f"{name}: {path}={value!r}", True, changed(plain(name), path, value))


def shuffled(rng: Random, name: str) -> Case:
    """Several odd values at once, tiny or not: accepted or refused, but nothing else."""
    node = plain(name)
    for _ in range(rng.randint(1, 4)):
        option = rng.choice([o for o in options(name) if not _free(o)])
        try:
            node = changed(node, option.path, rng.choice([*ODD, 0, 1, 2, 0.5, "cpu"]))
        except (KeyError, TypeError, IndexError):
            continue  # what it was in is gone already
    node = changed(node, ("tiny",), rng.choice([True, False]))
    return Case(f"{name}: several", False, node)


# -- files ----------------------------------------------------------------------------------------


def source(name: str) -> str:
    """Return the text of one of our experiments."""
    return (config_dir() / "experiment" / f"{name}.yaml").read_text()


def _bomb(levels: int) -> str:
    lines = ["x0: &x0 [lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    for i in range(1, levels):
        lines.append(f"x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 10)}]")
    return "\n".join(lines)


def interpolated(levels: int) -> str:
    """Return options of which each stands for ten of the one before."""
    names = ["tags", *(f"x{i}" for i in range(1, levels))]
    many = [f"{b}:\n" + f"  - ${{{a}}}\n" * 10 for a, b in pairwise(names)]
    return "tags: [a, b, c, d, e, f, g, h, i, j]\n" + "".join(many)


ENDINGS: dict[str, str] = {
    "a key twice": "\nname: other\n",
    "a tab": "\nlog:\n\tevery_frames: 3\n",
    "an alias of itself": "\nlog: &log\n  every_frames: *log\n",
    "an alias of nothing": "\nlog: *nothing\n",
    "an alias bomb": "\n" + _bomb(10) + "\n",
    "an interpolation bomb": "\n" + interpolated(9),
    "an interpolation of itself": "\nlog: {every_frames: '${log.every_frames}'}\n",
    "a second document": "\n---\nname: other\n",
    "a tag": "\nlog: !!python/object/apply:os.system [true]\n",
    "too deep": "\nlog: " + "{a: " * 400 + "1" + "}" * 400 + "\n",
    "much too deep": "\nlog: " + "[" * 20_000 + "]" * 20_000 + "\n",
    "an endless number": "\nlog: {every_frames: " + "9" * 5_000 + "}\n",
    "a key that is a list": "\n? [a, b]\n: 3\n",
    "a control character": "\nlog: {every_frames: \x07}\n",
    "Hydra's own options": "\nhydra: {run: {dir: elsewhere}}\n",
    "a null": "\nlog:\n",
    "an open bracket": "\nlog: [\n",
    "an open quote": '\nlog: "\n',
    "a percent": "\n%TAG ! x\n",
}  # fmt: skip


def bad_ending(rng: Random, name: str) -> Case:
    """A file of ours with something at its end that no file may have."""
    about, text = rng.choice(sorted(ENDINGS.items()))
    whole = source(name) if about != "a key twice" else source(name) + "\nname: one\n"
    lines = [x for x in whole.splitlines() if not x.startswith("log:")]
    return Case(f"{name}: {about}", True, data=("\n".join(lines) + text).encode())


HEADS: dict[str, bytes] = {
    "defaults are null": b"defaults:\n",
    "defaults are a number": b"defaults: 3\n",
    "defaults are a mapping": b"defaults: {a: b}\n",
    "defaults are lists": b"defaults: [[a]]\n",
    "a default is null": b"defaults: [null]\n",
    "defaults that include themselves": b"defaults: [given, _self_]\n",
    "defaults of nowhere": b"defaults: [../../../../etc/passwd]\n",
    "defaults that override nothing": b"defaults: [{override /nothing: x}]\n",
    "not UTF-8": b"name: \xff\xfe\n",
    "UTF-16": "name: a".encode("utf-16"),
    "empty": b"",
    "only a comment": b"# nothing\n",
    "a list": b"- a\n- b\n",
    "a word": b"hello\n",
    "zeros": bytes(1000),
    "too large": b"# " + b"x" * (1 << 21),
}


def bad_file(rng: Random, name: str) -> Case:
    """A file that is no configuration."""
    about, data = rng.choice(sorted(HEADS.items()))
    head = b"" if about in ("UTF-16", "zeros") else b"# @package _global_\n"
    return Case(f"file: {about}", True, data=head + data)


def damaged(rng: Random, name: str) -> Case:
    """A file of ours with a few characters lost, added or moved: read or refused, nothing else."""
    text = source(name)
    for _ in range(rng.randint(1, 5)):
        i = rng.randrange(len(text))
        j = min(len(text), i + rng.randint(1, 20))
        new = rng.choice("\t{}[]:,&*!|>'\"%@`#-? \n\r\x00\u2603$~\ufeff") * rng.randint(1, 3)
        lines = text.splitlines(keepends=True)
        rng.shuffle(lines)
        text = rng.choice([text[:i] + text[j:], text[:i] + new + text[i:], text[:i] + text[i:j] * 2
                           + text[j:], text[:i], "".join(lines)]) or " "  # fmt: skip
    return Case(f"{name}: damaged", False, data=text.encode())


# -- arguments ------------------------------------------------------------------------------------

VALUES = ["[" * 300, "{" * 50, "'", '"', "${", "${name}", "${nope}", "null", "1,2", "choice(1,2)",
          "range(0,9)", "[1,2", "{a:1", "\u2603", "=", "a=b", "!!int 3", "\x1b[31m", "  ", "\\",
          "9" * 5_000, "x" * 20_000, "nan", "-inf", "1e999", "glob(*)", "int(x)"]  # fmt: skip


def odd_argument(rng: Random, name: str) -> Case:
    """An argument that means nothing: read or refused, nothing else."""
    option = rng.choice([o for o in options(name) if not _free(o)])
    before = rng.choice(["", "", "+", "++", "~"])
    argument = f"{before}{option.name}={rng.choice(VALUES)}"
    return Case(f"{name}: {argument[:80]!r}", False, arguments=(f"+experiment={name}", argument))


WRONG_ARGUMENTS = [
    "seed=-1", "seed=x", "device=zzz", "precision=zzz", "threads=-1", "env.repeat=0",
    "env.num_envs=0", "training.total_frames=-5", "eval.episodes=0", "schema=9",
    "run.on_memory_shortage=zzz", "training.accumulate=0", "hydra.run.dir=x", "=", "seed",
    "+seed", "env.suite=zzz", "log.terminal=zzz", "workflow=null", "env=null", "buffers=null",
    "+preset=zzz", "+experiment=zzz", "nowhere.yaml", "sed=1", "training=null", "tiny=maybe",
    "env.options={zzz: 1}", "checkpoint.keep=0", "report.length=1", "watch.memory_share=0",
    "name=[a]", "compile=3",
]  # fmt: skip


def wrong_argument(rng: Random, name: str) -> Case:
    """An argument that no experiment can have."""
    argument = rng.choice(WRONG_ARGUMENTS)
    extra = ("env.suite=dmc",) if argument.startswith("env.options") else ()
    about = f"{name}: {argument!r}"
    return Case(about, True, arguments=(f"+experiment={name}", *extra, argument))


OF_NODES: list[Maker] = [
    wrong_value, wrong_value, out_of_range, out_of_range, misspelt_key, wrong_target, never_trains,
    wrong_phase, lost_section, shuffled,
]  # fmt: skip
OF_TEXTS: list[Maker] = [bad_ending, bad_ending, bad_file, damaged, odd_argument, wrong_argument]


def make(number: int) -> Case:
    """Return the case of this number; every fourth goes through files and arguments."""
    rng = Random(number)
    makers = OF_TEXTS if number % 4 == 0 else OF_NODES
    return makers[(number // 4) % len(makers)](rng, rng.choice(EXPERIMENTS))


def written(case: Case, folder: Path) -> tuple[str, ...]:
    """Return the arguments of a case, its file put into the folder."""
    if case.data is None:
        return case.arguments
    (folder / "given.yaml").write_bytes(case.data)
    return (str(folder / "given.yaml"),)
