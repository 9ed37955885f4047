"""The verbs that find runs, on runs that were trained and on folders made by hand."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from dreamlab.cli import main
from dreamlab.runs import index, index_file
from dreamlab.runs.query import NothingFoundError, find_run
from dreamlab.runs.run import FolderLock, Run
from tests.runs.made import as_nobody, fork, make

ROOT = Path(__file__).parents[2]
QUICK = (
    "+experiment=ppo_cartpole", "tiny=true", "training.total_frames=300", "eval.episodes=2",
    "eval.every_frames=0", "eval.video=false", "log.every_frames=100", "device=cpu",
)  # fmt: skip


def run(capsys, *arguments):
    code = main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def names(capsys, *arguments):
    """The names of the runs that a list finds, in order."""
    code, out, err = run(capsys, "list", *arguments, "--json")
    assert code in (0, 1), err
    return [r["name"] for r in json.loads(out)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two runs that differ in their learning rate, as `dreamlab train` leaves them."""
    root = tmp_path_factory.mktemp("trained")
    index_file.make(root)
    for name, changes in (
        ("a", ["workflow.optimizer.lr=0.002", "run.tags=[first]"]),
        ("b", ["seed=3"]),
    ):
        assert main(["train", *QUICK, *changes, f"run.dir={root / name}", f"name={name}"]) == 0
    return root


@pytest.fixture
def made(tmp_path):
    """Runs with known columns."""
    make(tmp_path / "low", lr=1e-2, last_return=10.0, seed=1, tags=["baseline"], id="aa11")
    make(tmp_path / "high", lr=1e-4, last_return=450.0, seed=2, id="aa22")
    make(tmp_path / "mid", lr=1e-3, last_return=200.5, seed=10, tags=["baseline", "x"], id="bb33")
    make(tmp_path / "new", status="created", env_frames=None, created="2026-05-05T00:00:00+0000")
    return tmp_path


# -- list -----------------------------------------------------------------------------------------


def test_trained_runs_are_listed_without_reading_them_again(trained, capsys):
    code, out, err = run(capsys, "list", trained)
    assert (code, err) == (0, "")
    head, *lines = out.splitlines()
    assert head.split()[:6] == ["id", "name", "algorithm", "env", "seed", "status"]
    assert {tuple(line.split()[1:6]) for line in lines} == {
        ("a", "ppo", "CartPole-v1", "0", "finished"),
        ("b", "ppo", "CartPole-v1", "3", "finished"),
    }
    _, out, _ = run(capsys, "list", trained, "--json")
    for row in json.loads(out):
        manifest = Run(Path(row["folder"])).manifest
        assert row["return"] == manifest["final_eval"]["eval/return"]
        assert row["frames"] == manifest["env_frames"] >= 300
        assert row["best_return"] >= row["return"] > 0
        assert row["wall_s"] > 0
    assert index.read(trained).read == 0


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (["return>400"], {"high"}),
        (["return>=200.5"], {"high", "mid"}),
        (["return<200.5"], {"low"}),
        (["return<=200.5", "return>10"], {"mid"}),
        (["return!=10"], {"high", "mid", "new"}),
        (["seed=10"], {"mid"}),
        (["seed>2"], {"mid"}),
        (["workflow.lr>1e-3"], {"low"}),
        (["workflow.lr=0.0001"], {"high"}),
        (["workflow.hidden=[8, 8]"], {"low", "high", "mid", "new"}),
        (["env.gray=false", "env.size=null", "seed=1"], {"low"}),
        (["tag=baseline"], {"low", "mid"}),
        (["tag!=baseline"], {"high", "new"}),
        (["tags~base", "tag=x"], {"mid"}),
        (["algorithm=PPO", "env~CartPole", "name~i"], {"high", "mid"}),
        (["algorithm=dqn"], set()),
        (["status=crashed"], {"new"}),
        (["created>2026-03"], {"new"}),
        (["folder~/low"], {"low"}),
    ],
)
def test_filters(made, capsys, filters, found):
    arguments = [a for f in filters for a in ("--filter", f)]
    assert set(names(capsys, made, *arguments)) == found


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--sort", "return"], ["high", "mid", "low", "new"]),
        (["--sort", "return", "--reverse"], ["low", "mid", "high", "new"]),
        (["--sort", "name", "--limit", "2"], ["high", "low"]),
        (["--sort", "workflow.lr", "--limit", "1"], ["low"]),
        (["--limit", "1"], ["new"]),
    ],
)
def test_order_and_limit(made, capsys, arguments, found):
    assert names(capsys, made, *arguments) == found


def test_an_algorithm_is_found_however_its_name_is_written(tmp_path, capsys):
    folder = make(tmp_path / "d")
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text.replace("ppo.PPO", "dreamer_v3.DreamerV3"))
    for name in ("dreamer_v3", "DreamerV3", "dreamerv3"):
        assert names(capsys, tmp_path, "--filter", f"algorithm={name}") == ["d"]


def test_several_roots_and_a_run_as_root_count_each_run_once(made, capsys):
    other = make(made / "sub" / "other")
    assert len(names(capsys, made, made / "sub", other, made / "low")) == 5


def test_a_run_writes_itself_into_the_nearest_index_above_it(made, capsys):
    below = make(made / "sub" / "other", status="created")
    assert run(capsys, "index", made)[0] == 0
    Run(below).update(status="running", env_frames=5)
    assert not (made / "sub" / index.FILE).exists()
    assert index.read(made).read == 0, "its line was new already"
    assert run(capsys, "index", made / "sub")[0] == 0
    Run(below).update(env_frames=6)
    assert index.read(made / "sub").read == 0
    for root in (made, made / "sub"):
        assert names(capsys, root, "--filter", "frames=6") == ["other"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--filter", "workflow.lrr=1"], "Did you mean 'workflow.lr'?"),
        (["--filter", "retrun>1"], "Did you mean 'return'?"),
        (["--sort", "seeed"], "Did you mean 'seed'?"),
        (["--filter", "return>high"], "not a number"),
        (["--filter", "return"], "expected KEY"),
        (["--filter", "tag>a"], "tags support only"),
        (["--limit", "0"], "at least 1"),
    ],
)
def test_a_mistake_is_explained(made, capsys, arguments, message):
    code, _, err = run(capsys, "list", made, *arguments)
    assert code == 2
    assert message in err


def test_exit_code_1_says_that_nothing_was_found(made, tmp_path, capsys, monkeypatch):
    assert run(capsys, "list", made, "--filter", "return>1e9")[0] == 1
    assert run(capsys, "list", made / "nowhere")[0] == 1
    assert run(capsys, "show", "zz", "--root", made)[0] == 1
    assert run(capsys, "index", made / "nowhere")[0] == 1
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    code, out, err = run(capsys, "list")
    assert (code, out) == (1, "")
    assert "experiments" in err
    assert list((tmp_path / "empty").iterdir()) == []


def test_listing_does_without_torch_and_a_reader_who_leaves_is_no_error(made):
    code = "import sys; from dreamlab.cli import main; main(sys.argv[1:])\n"
    code += "assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, "list", made], check=True, capture_output=True)
    command = f"{shlex.quote(sys.executable)} -m dreamlab list {made} | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""


# -- which run ------------------------------------------------------------------------------------


def test_a_run_is_named_by_folder_id_prefix_or_name(made, monkeypatch):
    for name in (str(made / "mid"), "bb33", "b", "mid"):
        assert find_run(name, made) == made / "mid"
    monkeypatch.chdir(made)
    assert find_run("mid", made / "nowhere") == Path("mid")
    with pytest.raises(NothingFoundError):
        find_run("aa2x", made)


def test_an_ambiguous_name_lists_what_it_could_be(made, capsys):
    code, _, err = run(capsys, "show", "aa", "--root", made)
    assert code == 2
    assert "is ambiguous: 2 runs match" in err
    assert str(made / "low") in err


def test_a_copy_is_shown_beside_its_original_and_not_tagged_by_id(made, capsys):
    shutil.copytree(made / "mid", made / "copy")
    code, out, err = run(capsys, "show", "bb33", "--root", made, "--json")
    assert code == 0
    assert {Path(one["folder"]).name for one in json.loads(out)} == {"mid", "copy"}
    assert "exists 2 times" in err
    code, _, err = run(capsys, "tag", "bb33", "new", "--root", made)
    assert code == 2
    assert "use its folder" in err


# -- show, tag, diff, logs, index -----------------------------------------------------------------


def test_show_gives_commands_that_work(trained, tmp_path, capsys, monkeypatch):
    code, out, _ = run(capsys, "show", trained / "a", "--json")
    assert code == 0
    about = json.loads(out)
    assert about["config"]["workflow"]["optimizer"]["lr"] == 0.002
    assert about["versions"]["torch"]
    assert about["checkpoints"]
    commands = about["commands"]
    for name in ("resume", "evaluate"):
        words = shlex.split(commands[name][-1])
        assert words[0] == "dreamlab"
        assert run(capsys, *words[1:3])[0] == 0
    monkeypatch.chdir(tmp_path)
    copy, train = commands["reproduce"][-2:]
    subprocess.run(copy, shell=True, check=True)
    code, out, _ = run(capsys, *shlex.split(train)[1:], "--cfg", "job")
    assert code == 0
    again, before = yaml.safe_load(out), yaml.safe_load((trained / "a/config.yaml").read_text())
    assert {**again, "run": None} == {**before, "run": None}
    text = run(capsys, "show", trained / "a")[1]
    for part in ("workflow.optimizer.lr", "to resume", "to evaluate", "to reproduce", "hardware"):
        assert part in text


def test_show_prints_the_stored_diff_alone(tmp_path, capsys):
    make(tmp_path / "a", git={"commit": "c" * 40, "dirty": True, "diff": "diff --git a b\n+1\n"})
    assert run(capsys, "show", tmp_path / "a", "--diff")[1] == "diff --git a b\n+1\n"
    text = run(capsys, "show", tmp_path / "a")[1]
    assert f"git checkout {'c' * 40}" in text
    assert "--diff | git apply" in text


def test_tags_live_in_the_manifest(trained, capsys):
    folder = trained / "a"
    assert "first" in run(capsys, "tag", folder)[1]  # from run.tags of its configuration
    code, out, _ = run(capsys, "tag", "a", "second", "third", "--root", trained, "--json")
    assert (code, json.loads(out)["tags"]) == (0, ["first", "second", "third"])
    assert run(capsys, "tag", folder, "--remove", "first", "third")[0] == 0
    assert json.loads((folder / "manifest.json").read_text())["tags"] == ["second"]
    assert names(capsys, trained, "--filter", "tag=second") == ["a"]
    shutil.copyfile(folder / "manifest.json", folder / "kept")
    code, _, err = run(capsys, "tag", folder, "--remove", "secnd")
    assert code == 2
    assert "Did you mean 'second'?" in err
    assert (folder / "manifest.json").read_text() == (folder / "kept").read_text()


def test_a_tag_in_a_read_only_folder_is_an_error_in_one_line(made, capfd):
    main(["tag", str(made / "low"), "first"])  # nobody may not import what is used here
    parents = [p for p in (made, *made.parents) if p.stat().st_uid == os.getuid() and p.parts[2:]]
    modes = [p.stat().st_mode for p in parents]
    for path in parents:
        path.chmod(0o755)
    (made / "low").chmod(0o555)
    try:
        as_nobody(lambda: os._exit(0 if main(["tag", str(made / "low"), "x"]) == 2 else 1))
    finally:
        (made / "low").chmod(0o755)
        for path, mode in zip(parents, modes, strict=True):
            path.chmod(mode)
    err = capfd.readouterr().err
    assert "Permission denied" in err
    assert "Traceback" not in err


def test_diff_names_what_differs_and_nothing_else(tmp_path, capsys):
    code = {"commit": "a" * 40, "diff": "+one\n same\n"}
    other = {"commit": "b" * 40, "diff": "+two\n same\n"}
    same = {"versions": {"torch": "1", "numpy": "2"}, "hardware": {"cpus": 2}}
    make(tmp_path / "a", lr=0.1, git=code, **same)
    make(tmp_path / "b", lr=0.2, git=other, versions={"torch": "3", "numpy": "2"}, hardware={})
    code, out, _ = run(capsys, "diff", tmp_path / "a", tmp_path / "b", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["config"] == {"workflow.lr": [0.1, 0.2]}
    assert found["versions"] == {"versions.torch": ["1", "3"]}
    assert found["hardware"] == {"hardware.cpus": [2, "(absent)"]}
    assert found["commit"] == ["a" * 40, "b" * 40]
    assert {"-+one", "++two"} <= set(found["git_diff"])
    text = run(capsys, "diff", tmp_path / "a", tmp_path / "b")[1]
    assert re.search(r"workflow\.lr +0\.1 -> 0\.2", text)
    assert f"git diff {'a' * 40} {'b' * 40}" in text
    assert "no difference" in run(capsys, "diff", tmp_path / "a", tmp_path / "a")[1]


def test_logs_are_in_the_order_in_which_things_happened(trained, capsys):
    code, out, _ = run(capsys, "logs", trained / "b", "--json")
    assert code == 0
    lines = [json.loads(line) for line in out.splitlines()]
    assert lines[0]["kind"] == "phase"
    assert lines[-1]["kind"] == "finished"
    records = [line for line in lines if line["kind"] == "metrics"]
    assert len(records) == len(Run(trained / "b").metrics())
    assert [r["env_frames"] for r in records] == sorted(r["env_frames"] for r in records)
    text = run(capsys, "logs", trained / "b", "--last", "2")[1].splitlines()
    assert len(text) == 2
    assert "eval/return" in text[0]
    assert "finished" in text[1]


def test_records_after_a_resume_are_dated_by_it(tmp_path, capsys):
    folder = make(tmp_path / "a")
    events = [
        {"time": 1000.0, "event": "phase", "env_frames": 0},
        {"time": 1010.0, "event": "interrupted", "env_frames": 20},
        {"time": 9000.0, "event": "resumed", "env_frames": 20},
    ]
    records = [{"env_frames": 10 * n, "time/wall_s": 5.0 * n} for n in (1, 2, 3)]
    for name, data in (("events", events), ("metrics", records)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(d) + "\n" for d in data))
    out = run(capsys, "logs", folder, "--json")[1]
    assert [json.loads(line)["time"] for line in out.splitlines()] == [
        1000.0, 1005.0, 1010.0, 1010.0, 9000.0, 9005.0,
    ]  # fmt: skip


def test_follow_shows_what_a_running_process_writes_and_ends_with_it(tmp_path, capsys):
    folder = make(tmp_path / "a", status="running", heartbeat=time.time())

    def train() -> None:
        mine = Run(folder)
        with FolderLock(folder):
            time.sleep(0.5)
            mine.event("alert", text="look here")
            with (folder / "metrics.jsonl").open("a") as file:
                file.write('{"env_frames": 10, "episode/return": 3.5}\n{"env_fra')
                file.flush()
                time.sleep(0.5)
                file.write('mes": 20}\n')
            mine.event("finished", env_frames=20)
            mine.update(status="finished")

    child = fork(train)
    code, out, _ = run(capsys, "logs", folder, "--follow")
    assert os.waitpid(child, 0)[1] == 0
    assert code == 0
    for part in ("look here", "10 frames | episode/return 3.5", "20 frames", "finished"):
        assert out.count(part) == 1


def test_index_rebuild_reads_every_folder(made, capsys):
    run(capsys, "index", made)
    code, out, _ = run(capsys, "index", made, "--json")
    assert (code, json.loads(out)) == (0, {"root": str(made), "runs": 4, "read": 0})
    code, out, _ = run(capsys, "index", "--rebuild", made, "--json")
    assert (code, json.loads(out)["read"]) == (0, 4)


def test_the_commands_of_the_page_on_runs_work(trained, tmp_path, capsys, monkeypatch):
    section = (ROOT / "docs" / "runs.md").read_text().split("## Finding runs")[1]
    commands = section.split("```bash\n")[1].split("```")[0].splitlines()
    assert len(commands) >= 10
    shutil.copytree(trained, tmp_path / "experiments")
    monkeypatch.chdir(tmp_path)
    for line in commands:
        words = shlex.split(line.replace("RUN", "a").replace("OTHER", "b"))
        assert words[0] == "dreamlab"
        code, out, err = run(capsys, *words[1:])
        assert code in ((0, 1) if words[1] == "list" else (0,)), f"{line}: {err}"
        assert out or code == 1 or "--diff" in line
