"""Every verb explains itself; nothing heavy is loaded for that."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from dreamlab import cli
from dreamlab.cli import SUMMARIES, main
from dreamlab.commands.arguments import Argument, Verb
from dreamlab.runs.run import Run

CONTEXT = click.Context(cli.app, info_name="dreamlab")
HELPERS = {
    "again", "arguments", "catalogue", "comparing", "dashboard", "data_convert", "data_record",
    "data_view",
    "foreign_experiments", "foreign_lines", "inspection", "jobs", "many", "printing", "reproduce",
    "second_run", "several", "submit",
}  # fmt: skip


def command(name: str) -> Verb:
    found = cli.app.get_command(CONTEXT, name)
    assert isinstance(found, Verb), name
    return found


def helped(capsys, *words: str) -> str:
    assert main([*words]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


@pytest.mark.parametrize("name", SUMMARIES)
def test_a_verb_tells_what_it_does_what_it_takes_and_an_example(name, capsys):
    text, verb = helped(capsys, name, "--help"), command(name)
    assert text.startswith(f"Usage: dreamlab {name}")
    assert f"  {(verb.help or '').splitlines()[0]}"[:60] in text
    for example in verb.examples:
        assert re.match(rf"(eval \"\$\()?dreamlab {name}\b", example)
        assert f"  {example}\n" in text
    for parameter in verb.params:
        if isinstance(parameter, Argument):
            assert " ".join(parameter.about.split()[:3]) in text
        else:
            assert isinstance(parameter, click.Option)
            assert parameter.help, parameter.name
            assert parameter.opts[0] in text


@pytest.mark.parametrize("name", SUMMARIES)
def test_examples_can_be_read(name, monkeypatch):
    """Parsed, not run: a misspelt option of an example is an error here."""
    verb = command(name)
    for example in verb.examples:
        line = example.split("#")[0].split("|")[0].split(">")[0].strip().removesuffix(')"')
        words = re.findall(r"'[^']*'|\S+", line.removeprefix('eval "$('))
        verb.make_context(name, [w.strip("'") for w in words[2:]], parent=CONTEXT)


def test_defaults_and_units_are_told(capsys):
    assert "[default: 10]" in helped(capsys, "eval", "--help")
    assert "[default: 500]" in helped(capsys, "debug", "--help")
    assert "Env frames" in helped(capsys, "verify", "--help")
    assert "Seconds between" in helped(capsys, "watch", "--help")


def test_the_list_of_verbs_is_grouped_and_whole(capsys):
    text = helped(capsys, "--help")
    assert text == helped(capsys) == helped(capsys, "help") == helped(capsys, "-h")
    for section, verbs in cli.VERBS.items():
        assert f"\n{section}:\n" in text
        for name, about in verbs.items():
            assert re.search(rf"^  {name} +{re.escape(about)}$", text, re.MULTILINE), name
    assert helped(capsys, "help", "list") == helped(capsys, "list", "--help")


def test_the_page_has_every_verb():
    rows = (Path(__file__).parents[2] / "docs" / "commands.md").read_text().splitlines()
    told = [r.split("|") for r in rows if re.match(r"\| \w+ \| `", r)]
    known = {name: about.rstrip(".") for name, about in SUMMARIES.items()}
    assert {r[2].strip(" `"): r[3].strip() for r in told} == known


def test_a_verb_is_a_file():
    files = {p.stem for p in Path(cli.__file__).parent.joinpath("commands").glob("[!_]*.py")}
    verbs = {cli.MODULES.get(v, v.replace("-", "_")) for v in SUMMARIES}
    assert files == verbs | HELPERS


def test_the_module_is_the_command(tmp_path):
    words = ("train", "random_cartpole", "tiny=true", "training.total_frames=40", "device=cpu")
    quiet = ("eval.episodes=1", "eval.video=false", "log.terminal=off", f"run.dir={tmp_path}/r")
    line = [sys.executable, "-m", "dreamlab", *words, *quiet]
    subprocess.run(line, capture_output=True, check=True)
    assert Run(tmp_path / "r").manifest["command"] == ["dreamlab", *words, *quiet]


def test_help_and_lists_load_nothing_heavy(tmp_path):
    """All in one process: what any of them loads would be found."""
    code = (
        "import sys; from dreamlab.cli import SUMMARIES, main\n"
        "for verb in SUMMARIES: assert main([verb, '--help']) == 0\n"
        "main(['train']); main(['sweep']); main(['list']); main(['watch', '--once'])\n"
        "found = {'torch', 'hydra', 'matplotlib', 'gymnasium', 'omegaconf'} & set(sys.modules)\n"
        "assert not found, found"
    )
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("word", ["trian", "exprot", "evla", "--hlep", "nothing\nreal", "\x1b[2J"])
def test_a_verb_that_is_none_is_one_line(word, capsys):
    assert main([word]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert err.isprintable() or err[:-1].isprintable()


def test_ctrl_c_ends_with_130(monkeypatch, capsys):
    def stop(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dreamlab.commands.list.ask", stop)
    assert main(["list"]) == 130
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_an_option_may_stand_before_or_after(capsys):
    after = helped(capsys, "train", "+experiment=ppo_cartpole", "seed=3", "--cfg", "job")
    assert after == helped(capsys, "train", "--cfg", "job", "+experiment=ppo_cartpole", "seed=3")
    assert "seed: 3" in after


def test_overrides_pass_through_untouched(monkeypatch, capsys):
    words = ["+experiment=x", "~env.id", "++a.b=[1,2]", "c={d: 'e f'}", "g=", "+h=${i}", "j='-1'"]
    taken: list[str] = []
    monkeypatch.setattr("dreamlab.config.compose", lambda w: taken.extend(w) or {})
    main(["plan", *words])
    assert taken == words
