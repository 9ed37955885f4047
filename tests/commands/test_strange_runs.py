"""Run folders of other people: their names and texts are shown, not obeyed; nothing is imported."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from secrets import token_hex

import pytest
import yaml

from dreamlab.cli import main
from dreamlab.core.errors import ConfigError
from dreamlab.runs import verify
from dreamlab.runs.run import Run, new_folder
from dreamlab.sweeps.job import Job
from tests.results.test_compare import make_run, make_seeds

QUICK = ("+experiment=ppo_cartpole", "tiny=true", "training.total_frames=60", "device=cpu")
PAINT = "\x1b]0;owned\x07\x9b2J\u202e\rX\nforged  finished"


@pytest.fixture
def hostile(tmp_path) -> Path:
    """A folder with two runs whose every text paints."""
    for seed in (0, 1):
        folder = make_run(tmp_path / "runs" / f"evil{PAINT}{seed}", [1, 2, 3, 4], seed=seed)
        manifest = json.loads((folder / "manifest.json").read_text())
        texts = ("name", "created", "status")
        manifest |= {k: f"{manifest[k]}{PAINT}{seed}" for k in texts}
        manifest |= {"tags": [PAINT], "command": ["dreamlab", "train", PAINT], "heartbeat": 1e9}
        manifest["git"] = {"commit": f"--output=x{PAINT}{seed}", "diff": f"+{PAINT}{seed}"}
        manifest["project"] = {"commit": PAINT, "diff": PAINT}
        manifest["versions"] |= {PAINT: PAINT}
        (folder / "manifest.json").write_text(json.dumps(manifest))
        node = yaml.safe_load((folder / "config.yaml").read_text())
        node["env"] |= {"id": f"CartPole{PAINT}", "suite": PAINT}
        node["workflow"] |= {"_target_": f"a.{PAINT}", PAINT: seed}
        (folder / "config.yaml").write_text(yaml.safe_dump(node))
        record = {"env_frames": 5_000, "time/wall_s": 1.0, f"train/{PAINT}": 1.0, "text": PAINT}
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")
        event = {"time": 1e9, "event": "alert", "alert": PAINT, "text": PAINT, PAINT: PAINT}
        words = {"time": 1e9, "event": PAINT, "error": PAINT}
        (folder / "events.jsonl").write_text(f"{json.dumps(event)}\n{json.dumps(words)}\n")
    return tmp_path / "runs"


def clean(capsys) -> str:
    """Return what was printed; no character of it is obeyed by a terminal."""
    said = capsys.readouterr()
    for line in (said.out + said.err).split("\n"):
        assert line.replace("\t", "").isprintable(), repr(line)
    return said.out + said.err


VERBS = {
    "list": ["list", "{root}"],
    "list by path": ["list", "{root}", "--sort", "workflow._target_"],
    "show": ["show", "{run}"],
    "tag": ["tag", "{run}"],
    "logs": ["logs", "{run}"],
    "diff": ["diff", "{run}", "{other}"],
    "index": ["index", "{root}"],
    "watch": ["watch", "{root}", "--once", "--all"],
    "compare": ["compare", "{root}"],
    "compare by name": ["compare", "{run}", "{other}", "--metrics", "train/nothing"],
    "export": ["export", "{root}", "--format", "csv"],
    "export latex": ["export", "{root}", "--format", "latex"],
    "report": ["report", "{root}", "--out", "{out}"],
    "cleanup": ["cleanup", "{root}"],
    "verify": ["verify", "{run}"],
    "eval": ["eval", "{run}"],
    "resume": ["resume", "{run}"],
    "export-policy": ["export-policy", "{run}"],
    "no such run": ["show", "{root}/none" + PAINT],
}


@pytest.mark.parametrize("arguments", VERBS.values(), ids=VERBS)
def test_no_verb_obeys_a_text_of_a_run(arguments, hostile, tmp_path, capsys):
    run, other = sorted(p for p in hostile.iterdir() if p.is_dir())
    places = {"root": hostile, "run": run, "other": other, "out": tmp_path / "page.html"}
    capsys.readouterr()
    assert main([a.format(**places) for a in arguments]) in (0, 1, 2)
    assert "\nforged" not in clean(capsys)


def test_a_page_obeys_no_text_of_a_run(hostile, tmp_path, capsys):
    assert main(["report", str(hostile), "--out", str(tmp_path / "page.html")]) == 0
    text = (tmp_path / "page.html").read_text()
    assert "\x1b" not in text
    assert "\u202e" not in text


# -- reading does not run anything ----------------------------------------------------------------


def test_a_page_about_runs_imports_nothing_that_they_name(tmp_path, monkeypatch):
    (tmp_path / "evil_module.py").write_text(
        f"open({str(tmp_path / 'canary')!r}, 'w')\nclass X: ..."
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for seed in (0, 1):
        folder = make_run(tmp_path / "runs" / str(seed), [1, 2, 3, 4], seed=seed)
        run = Run(folder)
        words = ["+experiment=ppo_cartpole", "workflow._target_=evil_module.X"]
        run.manifest["command"] = ["dreamlab", "train", *words]
        (folder / "manifest.json").write_text(json.dumps(run.manifest))
    assert main(["report", "runs", "--out", "page.html"]) == 0
    assert not (tmp_path / "canary").exists()
    assert "evil_module" not in sys.modules


def test_a_commit_of_a_manifest_is_no_option_of_git(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = make_run(tmp_path / "run", [1, 2, 3, 4])
    run = Run(folder)
    run.manifest["git"] = {"commit": f"--output={tmp_path / 'canary'}"}
    run.manifest["project"] = run.manifest["git"]
    assert any(name == "code.commit" for name, _, _ in verify.surroundings(run))
    assert not (tmp_path / "canary").exists()


def test_what_a_configuration_refers_to_is_not_looked_up(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SECRET", secret := token_hex())
    for seed in (0, 1):
        folder = make_run(tmp_path / "runs" / str(seed), [1, 2, 3, 4], seed=seed)
        path = folder / "config.yaml"
        path.write_text(path.read_text().replace("CartPole-v1", "'${oc.env:SECRET}'"))
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "page.html")]) == 0
    assert secret not in (tmp_path / "page.html").read_text()


# -- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["train", *QUICK, "name=../../evil"], "name: '../../evil' is not a valid name"),
        (["train", *QUICK, "name='a b'"], "e.g. 'a_b'"),
        (["train", *QUICK, "run.tags=['a b']"], "run.tags: 'a b' is not a valid tag"),
        (["train", *QUICK, "seed=1,../../evil", "run.dir=here"], "seed: expected int"),
        (
            ["train", *QUICK, "+buffers={../../evil: {}}"],
            "buffers: '../../evil' is not a valid name",
        ),
        (["sweep", "s.yaml", "name=../../evil"], "name: '../../evil' is not a valid name"),
        (["tune", "s.yaml", "name=a/b"], "e.g. 'a_b'"),
    ],
)
def test_a_name_does_not_lead_out_of_its_folder(arguments, text, tmp_path, monkeypatch, capsys):
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    Path("s.yaml").write_text(
        "experiment: ppo_cartpole\nparameters: {workflow.optimizer.lr: [0.1]}\n"
    )
    before = sorted(tmp_path.rglob("*"))
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert text in error
    assert "Traceback" not in error
    assert sorted(tmp_path.rglob("*")) == before


def test_a_new_folder_and_a_jobs_folder_stay_below_their_root():
    with pytest.raises(ConfigError, match="is not a valid name"):
        new_folder("../evil")
    job = Job(Path("/sweep"), ("seed=../../evil",), {})
    assert job.folder.parent == Path("/sweep/jobs")
    assert Job(Path("/sweep"), ("seed=3",), {}).name.endswith("_seed3")


# -- folders with an equals sign ------------------------------------------------------------------


def test_folders_called_after_an_option_are_compared(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for rate in ("0.1", "0.2"):
        make_seeds(tmp_path / "sweep" / f"lr={rate}", [1, 2], f"workflow.optimizer.lr={rate}")
    assert main(["compare", "sweep/lr=0.1", "sweep/lr=0.2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["metrics"]["return"]
    assert [g["group"] for g in found["groups"]] == ["lr=0.1", "lr=0.2"]
    assert main(["compare", "low=sweep/lr=0.1", "high=sweep/lr=0.2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["metrics"]["return"]
    assert [g["group"] for g in found["groups"]] == ["low", "high"]
    assert main(["list", "sweep/lr=0.1"]) == 0
    assert main(["report", "sweep/lr=0.1", "sweep/lr=0.2", "--out", "page.html"]) == 0
