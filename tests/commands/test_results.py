"""compare, export and report as a user meets them, on small runs that were really trained."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
import shutil
from base64 import b64decode
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dreamlab.cli import main
from dreamlab.results import html_report
from dreamlab.results.tables import tex
from dreamlab.runs.run import Run
from tests.results.test_compare import make_run, make_seeds

PAGE = Path(__file__).parents[2] / "docs" / "results.md"
QUICK = (
    "+experiment=ppo_cartpole", "tiny=true", "training.total_frames=600", "eval.episodes=2",
    "eval.every_frames=200", "log.every_frames=100", "log.terminal=off", "device=cpu",
)  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Return a folder with experiments/a and experiments/b, three seeds each."""
    root = tmp_path_factory.mktemp("results")
    for name, rate in (("a", "0.001"), ("b", "0.0001")):
        folder = root / "experiments" / name
        words = [*QUICK, f"workflow.optimizer.lr={rate}", "seed=1,2,3", f"run.dir={folder}"]
        assert main(["train", *words]) == 0
    frames = (50_000, 250_000, 500_000)
    walker = ("env=dmc", "env.id=walker_walk")
    make_run(root / "experiments" / "walker", [100, 300, 900], *walker, frames=frames)
    return root


@pytest.fixture
def here(trained, monkeypatch) -> Path:
    monkeypatch.chdir(trained)
    return trained


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


A, B, WALKER = "experiments/a", "experiments/b", "experiments/walker"
VALUE = "train/value_loss"


@pytest.mark.slow
def test_every_command_of_the_page_works(here, capsys):
    commands = re.findall(r"^dreamlab (.+)$", PAGE.read_text(), re.MULTILINE)
    assert len(commands) >= 12
    for command in commands:
        code, out, err = run(capsys, *shlex.split(command))
        assert code == 0, (command, err)
        assert out, command


def test_compare_prints_what_the_metrics_say(here, capsys):
    code, out, _ = run(capsys, "compare", A, B, "--metrics", "return,train/value_loss")
    assert code == 0
    finals = [
        [r["eval/return"] for r in Run(Path(A) / f"seed_{s}").metrics() if "eval/return" in r][-1]
        for s in (1, 2, 3)
    ]
    row = next(line for line in out.splitlines() if line.startswith("a "))
    assert row.split()[1] == "3"
    assert float(row.split("  ")[-2].split(" [")[0]) == pytest.approx(sum(finals) / 3, abs=0.05)
    assert out.count("P(a > b)") == 2
    assert "train/value_loss at " in out


def test_compare_prints_the_same_every_time(here, capsys):
    first, second = (run(capsys, "compare", A, B)[1] for _ in range(2))
    assert first == second


def test_one_folder_with_two_configurations_is_two_groups(here, capsys):
    shutil.copytree(A, "both/a", dirs_exist_ok=True)
    shutil.copytree(B, "both/b", dirs_exist_ok=True)
    _, out, _ = run(capsys, "compare", "both")
    assert "both lr=0.001" in out
    assert "both lr=0.0001" in out


def test_two_seeds_are_too_few(here, capsys):
    seeds = [f"{A}/seed_1", f"{A}/seed_2"]
    _, out, _ = run(capsys, "compare", f"few={','.join(seeds)}", B)
    assert "no winner is called: fewer than 3 seeds" in out


def test_compare_as_json(here, capsys):
    _, out, _ = run(capsys, "compare", A, f"{B}/seed_1", "--json")
    found = json.loads(out)["metrics"]["return"]
    assert found["metric"] == "eval/return"
    first, second = found["groups"]
    assert first["seeds"] == {"CartPole-v1": [1, 2, 3]}
    assert first["mean"]["low"] <= first["mean"]["value"] <= first["mean"]["high"]
    assert second["iqm"]["low"] is None  # one seed has no interval
    assert found["pairs"][0]["verdict"] == "no winner is called: fewer than 3 seeds"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compare", A, "--metrics", "eval/retrun"), "Did you mean 'eval/return'"),
        (("compare", A, "--at", "1e6"), "is known for every run from"),
        (("compare", "nowhere"), "nowhere: no runs found"),
        (("compare", A, "--against", "published"), "no published curves for CartPole-v1"),
        (("compare", A, "--against", "publisched"), "Did you mean 'published'"),
        (("report", WALKER, "--metric", "loss_", "--against", "published"), "no metric 'loss_'"),
        (("report", WALKER, "--metrics", VALUE, "--against", "published"), "only for the return"),
        (("export", A, "--format", "latec"), "Did you mean 'latex'"),
        (("export", A, "--format", "json", "--curves"), "--format csv"),
    ],
)
def test_a_mistake_is_one_message(here, capsys, arguments, message):
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert message in err


def test_a_run_below_the_published_band_is_warned_of(here, capsys):
    _, out, _ = run(capsys, "compare", "experiments/walker", "--against", "published:tdmpc2")
    assert "warning: experiments/walker: eval/return 900" in out
    assert "below the published band of tdmpc2" in out


def test_tasks_are_normalised_before_they_are_put_together(tmp_path, capsys):
    for task, best in (("CartPole-v1", 500.0), ("Pendulum-v1", -150.0)):
        make_seeds(tmp_path / "a" / task, [best, best - 100], f"env={task}")
    _, out, _ = run(capsys, "compare", str(tmp_path / "a"))
    assert "CartPole-v1            a      2            450 [400, 500]" in out
    assert "normalized: 0 is the lowest, 1 the highest value of the compared runs (" in out
    _, out, _ = run(capsys, "compare", str(tmp_path / "a"), "--normalize", "none", "--json")
    found = json.loads(out)
    assert found["metrics"]["return"]["groups"][0]["mean"]["value"] == (450 - 200) / 2
    assert "scores of several tasks are pooled without normalization" in found["notes"]
    page = tmp_path / "page.html"
    assert run(capsys, "report", str(tmp_path / "a"), "--out", str(page))[0] == 0
    assert "all tasks, normalized" in page.read_text()


def test_csv_holds_every_value_of_every_run(here, capsys):
    _, out, _ = run(capsys, "export", A, B, "--format", "csv", "--curves")
    rows = list(csv.DictReader(io.StringIO(out)))
    mine = [float(r["value"]) for r in rows if r["run"] == f"{A}/seed_2"]
    logged = [r["eval/return"] for r in Run(Path(A) / "seed_2").metrics() if "eval/return" in r]
    assert mine == logged
    assert {r["group"] for r in rows} == {"a", "b"}


def test_names_are_escaped_in_every_format(tmp_path, capsys):
    folder = make_seeds(tmp_path / "r", [1, 2, 3])
    name = "a_b & 50% | <x>"
    _, out, _ = run(capsys, "export", f"{name}={folder}", "--format", "latex")
    assert r"a\_b \& 50\% | \textless{}x\textgreater{} & 3 & $2\;[1,\,3]$ \\" in out
    _, out, _ = run(capsys, "export", f"{name}={folder}", "--format", "markdown")
    assert r"| a_b & 50% \| <x> | 3 | 2 [1, 3] |" in out
    assert run(capsys, "report", f"{name}={folder}", "--out", str(tmp_path / "p.html"))[0] == 0
    text = (tmp_path / "p.html").read_text()
    assert "a_b &amp; 50% | &lt;x&gt;" in text
    assert "<x>" not in text


def test_tex_escapes_what_latex_would_read():
    assert tex("\\{}~^#$") == (r"\textbackslash{}\{\}\textasciitilde{}\textasciicircum{}\#\$")


class Links(HTMLParser):
    """Collects what a page would load, its tags, and whether every tag that opens closes."""

    VOID = ("meta", "img", "br", "link")

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href", "data")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_report_is_one_page_that_loads_nothing(here, capsys, tmp_path):
    out = tmp_path / "page.html"
    assert run(capsys, "report", A, B, "--out", str(out))[0] == 0
    text = out.read_text()
    read = Links()
    read.feed(text)
    assert read.open == []
    assert all(link.startswith(("data:", "#")) for link in read.links)
    assert not re.search(r"https?://|url\((?!#)|@import", text)
    assert read.tags.count("svg") == 3
    assert read.tags.count("video") == 2
    assert "script" not in read.tags


def test_a_report_tells_how_the_runs_were_made(here, capsys, tmp_path):
    out = tmp_path / "page.html"
    run(capsys, "report", A, B, "--out", str(out), "--title", "Two rates")
    text = out.read_text()
    manifest = Run(Path(A) / "seed_1").manifest
    assert "<h1>Two rates</h1>" in text
    assert "<tr><td>workflow.optimizer.lr</td><td>0.001</td><td>0.0001</td></tr>" in text
    assert manifest["versions"]["torch"] in text
    assert f"git checkout {manifest['git']['commit']}" in text
    assert manifest["hardware"]["cpu"] in text
    assert "prefers-color-scheme: dark" in text


def test_a_video_of_another_seed_is_shown_where_the_median_one_has_none(tmp_path, capsys):
    folder = Path(make_seeds(tmp_path / "a", [1, 2, 9]))
    (folder / "seed_0" / "videos").mkdir()
    (folder / "seed_0" / "videos" / "eval_4.mp4").write_bytes(b"video")
    assert run(capsys, "report", str(folder), "--out", str(tmp_path / "p.html"))[0] == 0
    text = (tmp_path / "p.html").read_text()
    assert "data:video/mp4;base64,dmlkZW8=" in text
    assert "a, CartPole-v1, seed 0" in text


def test_a_video_that_is_too_large_is_named(here, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(html_report, "FILE_BYTES", 10)
    out = tmp_path / "page.html"
    run(capsys, "report", A, "--out", str(out))
    assert "too large for this page" in out.read_text()
    assert "<video" not in out.read_text()


def test_the_newest_of_each_kind_is_shown(tmp_path):
    for name in ("videos/eval_01.mp4", "videos/eval_02.mp4", "report/openloop_02.png",
                 "report/openloop_01.png", "report/learning_curve.png"):  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert [p.name for p in html_report.newest_media(tmp_path)] == [
        "eval_02.mp4",
        "openloop_02.png",
    ]


# -- to reproduce ---------------------------------------------------------------------------------


def recipe_of(page: Path) -> tuple[list[str], dict[str, str]]:
    """Return the lines to type that a page shows, and the files it offers."""
    text = page.read_text()
    [lines] = re.findall(r'id="reproduce".*?<pre>(.*?)</pre>', text, re.DOTALL)
    links = re.findall(r'download="(.+?)" href="data:text/plain;base64,(.+?)"', text)
    return unescape(lines).splitlines(), {n: b64decode(d).decode() for n, d in links}


def typed_run(folder: Path, rate: str, command: list[str], **git: str) -> str:
    """Write a run with this learning rate, as if it had been started by this command."""
    make_run(
        folder, [1, 2, 3, 4], f"workflow.optimizer.lr={rate}", "training.total_frames=300", seed=7
    )
    Run(folder).update(git=git, command=command)
    return str(folder)


def train_command(rate: str, *more: str) -> list[str]:
    words = [
        "+experiment=ppo_cartpole",
        f"workflow.optimizer.lr={rate}",
        "training.total_frames=300",
    ]
    return ["dreamlab", "train", *words, *more]


def test_what_was_typed_is_typed_again_into_a_new_folder(capsys, tmp_path):
    out, diff = tmp_path / "page.html", "diff --git a/x b/x\n+it's & <new>"
    groups = [
        typed_run(tmp_path / name, rate, train_command(rate, "run.dir=old", "seed=7,8"), **git)
        for name, rate, git in (
            ("a", "0.1", {"commit": "c0ffee"}),
            ("b", "0.2", {"commit": "c0ffee", "diff": diff}),
        )
    ]
    assert run(capsys, "report", *groups, "--metrics", "return,loss", "--out", str(out))[0] == 0
    lines, files = recipe_of(out)
    commands = [" ".join(train_command(r, "seed=7")) for r in ("0.1", "0.2")]
    assert lines == [
        "git checkout c0ffee",
        f"{commands[0]} run.dir=again/a",
        "git apply changes_2.patch",
        f"{commands[1]} run.dir=again/b",
        "dreamlab report a=again/a b=again/b --metrics return,loss --out again.html",
    ]
    assert files == {"changes_2.patch": f"{diff}\n"}


@pytest.mark.parametrize("command", [["pytest"], train_command("0.9"), ["dreamlab"], []])
def test_a_run_that_what_was_typed_does_not_give_is_made_from_its_configuration(
    capsys, tmp_path, monkeypatch, command
):
    typed_run(tmp_path / "old", "0.5", command)
    out = tmp_path / "page.html"
    assert run(capsys, "report", f"new one={tmp_path / 'old'}", "--out", str(out))[0] == 0
    lines, files = recipe_of(out)
    assert lines[0] == "dreamlab train new_one.yaml seed=7 run.dir=again/new_one"
    monkeypatch.chdir(tmp_path)
    Path("new_one.yaml").write_text(files["new_one.yaml"])
    words = shlex.split(lines[0])[1:]
    code, printed, _ = run(capsys, *words, "--cfg", "job")
    assert code == 0
    same = [
        [line for line in text.splitlines() if not line.startswith("  dir:")]
        for text in (printed, (tmp_path / "old" / "config.yaml").read_text())
    ]
    assert same[0] == same[1]


def test_trained_runs_are_made_again_with_the_same_numbers(here, capsys, tmp_path, monkeypatch):
    """What the page says, typed."""
    out = tmp_path / "page.html"
    assert run(capsys, "report", f"one={A}/seed_2", "--out", str(out))[0] == 0
    lines, files = recipe_of(out)
    metrics = [r.get("eval/return") for r in Run(Path(A) / "seed_2").metrics()]
    monkeypatch.chdir(tmp_path)
    for name, text in files.items():
        Path(name).write_text(text)
    for line in lines:
        if line.startswith("dreamlab"):
            assert run(capsys, *shlex.split(line)[1:])[0] == 0
    assert [r.get("eval/return") for r in Run(Path("again/one")).metrics()] == metrics
    assert Path("again.html").exists()
