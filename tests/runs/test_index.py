"""The index: runs write themselves, readers trust the folders, and no damage reaches either."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import shutil
import signal
import sqlite3
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from dreamlab.core.errors import LabError
from dreamlab.runs import index, index_file, run_row
from dreamlab.runs.locks import is_writing
from dreamlab.runs.run import FolderLock, Run
from tests.runs.made import as_nobody, finish, fork, make


@pytest.fixture
def root(tmp_path, monkeypatch):
    """The folder `experiments`, which has an index without being asked."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiments").mkdir()
    return tmp_path / "experiments"


@pytest.fixture
def open_path(monkeypatch):
    """The same where every user can look into it; pytest's own folder is closed to others."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    monkeypatch.chdir(folder)
    (folder / "experiments").mkdir(mode=0o755)
    yield folder / "experiments"
    shutil.rmtree(folder)


def begun(folder: Path, **manifest) -> Run:
    run = Run(make(folder, **{"status": "created", "env_frames": 0, **manifest}))
    run.update(status="running")
    return run


def row(root: Path, name: str, *paths: str):
    return next(r for r in index.read(root, paths).rows if r["path"] == name)


def stored(root: Path, name: str):
    """What the index itself says, without a look at the folders."""
    with closing(sqlite3.connect(root / index.FILE)) as db:
        db.row_factory = sqlite3.Row
        return dict(db.execute("SELECT * FROM runs WHERE path = ?", (name,)).fetchone())


def whole(root: Path) -> bool:
    with closing(sqlite3.connect(root / index.FILE)) as db:
        return db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def messages(folder: Path) -> list[str]:
    path = folder / "events.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [e["text"] for e in map(json.loads, lines) if "the index" in e.get("text", "")]


# -- what a run writes ---------------------------------------------------------------------------


def test_a_run_registers_itself_when_it_starts(root):
    git = {"commit": "c" * 40, "dirty": True, "diff": "+1"}
    begun(root / "a", id="1234", seed=7, git=git, versions={"torch": "2"})
    found = stored(root, "a")
    assert found["id"] == "1234"
    assert (found["algorithm"], found["env"], found["seed"]) == ("ppo", "CartPole-v1", 7)
    assert (found["status"], found["commit"]) == ("running", "c" * 40)
    assert len(found["diff"]) == len(found["config_hash"]) == 12
    listing = index.read(root, ["workflow.lr", "env.gray", "workflow.hidden", "versions.torch"])
    assert listing.read == 0
    values = [listing.rows[0][k] for k in ("workflow.lr", "env.gray", "workflow.hidden")]
    assert values == [1e-3, False, [8, 8]]
    assert listing.rows[0]["versions.torch"] == "2"


def test_a_heartbeat_reaches_the_index_once_a_second_and_a_status_at_once(root):
    run = begun(root / "a")
    run.update(env_frames=5)
    assert stored(root, "a")["frames"] == 0
    assert row(root, "a")["frames"] == 5  # a reader looks at the folder
    run.update(env_frames=6, status="finished")
    assert (stored(root, "a")["frames"], stored(root, "a")["status"]) == (6, "finished")
    run.entry.due = 0.0
    run.update(env_frames=7)
    assert stored(root, "a")["frames"] == 7


def test_returns_stay_known_and_the_best_is_kept_over_a_resume(root):
    run = begun(root / "a")
    run.update(last_return=30.0)
    run.update(last_return=None)
    assert row(root, "a")["last_return"] == 30.0
    again = Run(root / "a")
    again.update(status="running")
    again.update(last_return=20.0)
    found = row(root, "a")
    assert (found["return"], found["last_return"], found["best_return"]) == (20.0, 20.0, 30.0)


def test_a_run_that_is_evaluated_is_rated_by_that_alone(root):
    run = begun(root / "a")
    run.update(last_return=90.0)
    run.update(last_return=95.0, last_eval=40.0)
    run.update(last_return=99.0, last_eval=None)
    run.update(last_eval=25.0, status="finished", final_eval={"eval/return": 25.0})
    found = row(root, "a")
    assert (found["return"], found["last_return"], found["best_return"]) == (25.0, 99.0, 40.0)


def test_a_run_that_died_before_it_trained_is_crashed(root):
    make(root / "a", status="created", created="2026-01-02T03:04:05+0000", heartbeat=None)
    assert row(root, "a")["status"] == "crashed"
    with FolderLock(root / "a"):
        assert row(root, "a")["status"] == "created"


def test_wall_time_counts_every_process(root):
    begun(root / "a", wall_s=100.0).update(status="interrupted")
    assert 100.0 < row(root, "a")["wall_s"] < 110.0
    Run(root / "a").tag(["x"])
    assert 100.0 < row(root, "a")["wall_s"] < 110.0


def test_the_hash_is_of_what_the_numbers_depend_on():
    config = {"workflow": {"lr": 1}, "seed": 0, "run": {"dir": "a"}, "log": {}, "name": "a"}
    same = run_row.config_hash({**config, "run": {"dir": "b"}, "log": {"every_frames": 1}})
    assert run_row.config_hash(config) == same
    assert run_row.config_hash({**config, "seed": 1}) != same


def test_a_scratch_run_without_an_id_is_not_indexed(root):
    run = Run(root / "scratch")
    run.folder.mkdir()
    run.update(env_frames=1)
    assert not (root / index.FILE).exists()


# -- where there is one ---------------------------------------------------------------------------


def test_a_run_elsewhere_makes_no_index_and_nor_does_a_look_at_it(root, tmp_path):
    there = tmp_path / "elsewhere"
    begun(there / "x").update(status="finished")
    assert [p.name for p in there.iterdir()] == ["x"]
    assert [r["path"] for r in index.read(there, ["workflow.lr"]).rows] == ["x"]
    assert index.known_paths(there) >= {"workflow.lr"}
    assert [p.name for p in there.iterdir()] == ["x"]
    assert not (tmp_path / index.FILE).exists()


def test_an_index_that_was_asked_for_is_kept_up_to_date(root, tmp_path):
    there = tmp_path / "elsewhere"
    begun(there / "x").update(status="finished")
    assert index.read(there, make=True).read == 1
    begun(there / "deep" / "y").update(status="finished")
    assert stored(there, "deep/y")["status"] == "finished"
    assert index.read(there).read == 0


def test_a_run_at_any_depth_is_in_the_index_of_the_experiments(root):
    begun(root / "sweep" / "runs" / "x").update(status="finished", env_frames=7)
    assert stored(root, "sweep/runs/x")["frames"] == 7
    assert not (root / "sweep" / "runs" / index.FILE).exists()
    assert index.read(root).read == 0


def test_the_experiments_may_be_a_link(tmp_path, monkeypatch):
    (tmp_path / "large").mkdir()
    (tmp_path / "experiments").symlink_to(tmp_path / "large")
    monkeypatch.chdir(tmp_path)
    begun(tmp_path / "large" / "a").update(status="finished")
    assert stored(tmp_path / "large", "a")["status"] == "finished"


def test_a_database_of_another_program_is_never_removed(root):
    make(root / "a")
    with closing(sqlite3.connect(root / index.FILE)) as db:
        db.execute("CREATE TABLE thesis (chapter)")
        db.execute("INSERT INTO thesis VALUES ('all of it')")
        db.commit()
    before = (root / index.FILE).read_bytes()
    for _ in range(2):
        listing = index.read(root)
        assert [r["path"] for r in listing.rows] == ["a"]
        assert "it is not a run index" in listing.notes[0]
    assert not index.remove(root)
    begun(root / "b")
    assert (root / index.FILE).read_bytes() == before


def test_what_is_no_database_is_left_alone_elsewhere(root, tmp_path):
    there = make(tmp_path / "elsewhere" / "a").parent
    (there / index.FILE).write_text("my index of something else")
    assert [r["path"] for r in index.read(there).rows] == ["a"]
    assert (there / index.FILE).read_text() == "my index of something else"
    assert index.read(there, make=True).read == 1


# -- alive or not --------------------------------------------------------------------------------

DAY_S = 86_400.0


@pytest.mark.parametrize(
    ("age", "locked", "status"),
    [
        (1.0, False, "running"),
        (DAY_S, True, "running"),  # a slow stage, or the clock jumped ahead
        (DAY_S, False, "crashed"),
        (-5.0, False, "running"),  # another machine's clock is a little ahead
        (-DAY_S, True, "running"),  # the clock was set back
        (-DAY_S, False, "crashed"),
    ],
)
def test_a_run_is_alive_if_it_was_heard_of_or_holds_its_folder(root, age, locked, status):
    folder = make(root / "a", status="running", heartbeat=time.time() - age)
    if locked:
        with FolderLock(folder):
            assert row(root, "a")["status"] == status
    else:
        (folder / ".lock").touch()
        assert row(root, "a")["status"] == status


def test_looking_whether_a_run_is_alive_does_not_keep_it_from_starting(root):
    folder = make(root / "a")
    glance = (folder / ".lock").open("a+")
    fcntl.flock(glance, fcntl.LOCK_SH)
    assert not is_writing(folder)  # two who look do not see each other
    threading.Timer(0.03, glance.close).start()
    with FolderLock(folder):
        assert is_writing(folder)


# -- an index that is missing, damaged or out of reach ---------------------------------------------


def missing(path: Path) -> None:
    index.remove(path.parent)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def garbage(path: Path) -> None:
    path.write_bytes(b"no database" * 1000)


def torn(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(bytes(data))


def older(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.executescript("DROP TABLE runs; DROP TABLE facts; CREATE TABLE runs (x);")
        db.execute(f"PRAGMA user_version = {index.SCHEMA - 1}")


def no_tables(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.executescript("DROP TABLE runs; DROP TABLE facts;")


def odd_columns(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE runs SET tags = '['")
        db.commit()


DAMAGES = [missing, empty, garbage, torn, older, no_tables]


@pytest.mark.parametrize("damage", [*DAMAGES, odd_columns])
def test_a_reader_makes_a_damaged_index_anew(root, damage):
    for name in ("a", "b"):
        make(root / name)
    before = index.read(root, ["workflow.lr"]).rows
    damage(root / index.FILE)
    again = index.read(root, ["workflow.lr"])
    assert again.rows == before
    assert again.read == 2
    assert index.read(root).read == 0
    assert whole(root)


@pytest.mark.parametrize("damage", DAMAGES)
def test_training_goes_on_beside_a_damaged_index(root, damage):
    run = begun(root / "a")
    damage(root / index.FILE)
    for frames in range(5):
        run.entry.due = 0.0
        run.update(env_frames=frames)
    run.update(status="finished")
    assert len(messages(root / "a")) == (0 if damage is missing else 1)
    found = row(root, "a", "workflow.lr")
    assert (found["frames"], found["status"], found["workflow.lr"]) == (4, "finished", 1e-3)


def test_the_index_of_a_newer_program_is_left_alone(root):
    make(root / "a")
    index.read(root)
    with closing(sqlite3.connect(root / index.FILE)) as db:
        db.execute(f"PRAGMA user_version = {index.SCHEMA + 1}")
    listing = index.read(root)
    assert [r["path"] for r in listing.rows] == ["a"]
    assert "schema" in listing.notes[0]
    with closing(sqlite3.connect(root / index.FILE)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (index.SCHEMA + 1,)


def test_a_locked_index_delays_training_once_and_briefly(root):
    run = begun(root / "a")
    with closing(sqlite3.connect(root / index.FILE, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        run.entry.due = 0.0
        run.update(env_frames=1)
        assert run.entry.due > time.monotonic() + index.RETRY_S / 2  # it does not wait every time
        assert "locked" in messages(root / "a")[0]
        assert row(root, "a")["frames"] == 1
        other.execute("ROLLBACK")
    run.update(status="finished")
    assert stored(root, "a")["status"] == "finished"


def test_a_read_only_folder_can_be_listed(open_path):
    for name in ("a", "b"):
        make(open_path / name)

    def look(read: int) -> None:
        listing = index.read(open_path, ["workflow.lr"])
        assert [r["workflow.lr"] for r in listing.rows] == [1e-3, 1e-3]
        assert listing.read == read

    open_path.chmod(0o555)
    as_nobody(lambda: look(2))  # there is no index and none can be made
    open_path.chmod(0o755)
    index.read(open_path)
    open_path.chmod(0o555)
    as_nobody(lambda: look(0))
    open_path.chmod(0o755)
    make(open_path / "b", env_frames=200)
    open_path.chmod(0o555)
    as_nobody(lambda: look(1))
    open_path.chmod(0o755)


def test_training_goes_on_where_the_index_is_read_only(open_path):
    make(open_path / "other")
    index.read(open_path)
    folder = make(open_path / "mine")
    for path in (folder, folder / "manifest.json"):
        path.chmod(0o777)
    open_path.chmod(0o555)

    def train() -> None:
        run = Run(folder)
        run.update(status="running")
        run.update(status="finished", env_frames=3)
        assert len(messages(folder)) == 1

    as_nobody(train)
    open_path.chmod(0o755)
    assert row(open_path, "mine")["frames"] == 3


def test_a_full_disk_stops_neither_training_nor_listing(root):
    run = begun(root / "a")
    for i in range(60):
        make(root / f"other{i:02d}")
    small = 16_384  # bytes: enough for a manifest, less than the index needs

    def with_a_full_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (small, small))
        run.update(status="finished", env_frames=9)
        assert len(messages(root / "a")) == 1
        listing = index.read(root)
        assert len(listing.rows) == 61
        assert "reading the run directories instead" in listing.notes[0]

    finish(fork(with_a_full_disk))
    assert index.read(root).notes == []
    assert row(root, "a")["frames"] == 9
    assert whole(root)


def test_a_network_file_system_gets_no_write_ahead_log(root, monkeypatch):
    mounts = [("none", "/", "ext4"), ("host:/x", f"{root}/far", "nfs4")]
    found = [SimpleNamespace(device=d, mountpoint=m, fstype=f) for d, m, f in mounts]
    with monkeypatch.context() as patch:
        patch.setattr(psutil, "disk_partitions", lambda all: found)
        assert index_file.is_network(root / "far" / "runs")
        assert not index_file.is_network(root / "near")
    monkeypatch.setattr(index_file, "is_network", lambda root: True)
    begun(root / "a").update(status="finished")
    with closing(sqlite3.connect(root / index.FILE)) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    assert stored(root, "a")["status"] == "finished"


# -- many at once --------------------------------------------------------------------------------


def test_sixteen_writers_and_readers_lose_nothing(root):
    def write(number: int) -> None:
        run = begun(root / f"run{number}")
        for frames in range(10):
            run.entry.due = 0.0
            run.update(env_frames=frames, last_return=float(number))
        run.update(status="finished", env_frames=1000 + number)

    def look() -> None:
        for _ in range(15):
            listing = index.read(root)
            assert listing.notes == []

    finish(*(fork(lambda n=n: write(n)) for n in range(16)), fork(look), fork(look))
    found = {r["path"]: r for r in index.read(root).rows}
    assert len(found) == 16
    for number in range(16):
        mine = found[f"run{number}"]
        assert (mine["status"], mine["frames"]) == ("finished", 1000 + number)
        assert mine["return"] == number
    assert whole(root)


def test_kill_9_loses_no_more_than_the_last_heartbeat(root):
    begun(root / "other").update(status="finished", env_frames=77)

    def write_forever() -> None:
        run = begun(root / "a")
        with FolderLock(run.folder):
            for frames in range(1_000_000):
                run.entry.due = 0.0
                run.update(env_frames=frames)

    child = fork(write_forever)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        frames = {r["path"]: r["frames"] for r in index.read(root).rows}.get("a") or 0
        if frames >= 5:
            break
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    manifest = json.loads((root / "a" / "manifest.json").read_text())
    assert manifest["env_frames"] >= frames >= 5
    assert row(root, "a")["frames"] == manifest["env_frames"]
    assert row(root, "other")["frames"] == 77
    assert whole(root)
    manifest["heartbeat"] -= 2 * run_row.STALE_S
    (root / "a" / "manifest.json").write_text(json.dumps(manifest))
    assert row(root, "a")["status"] == "crashed"


def test_tags_given_during_training_stay(root):
    run = begun(root / "a")

    def train() -> None:
        for frames in range(100):
            run.update(env_frames=frames)

    child = fork(train)
    for number in range(10):
        Run(root / "a").tag([f"t{number}"])
    finish(child)
    found = row(root, "a")
    assert found["tags"] == [f"t{n}" for n in range(10)]
    assert found["frames"] == 99


@pytest.mark.slow
def test_ten_thousand_runs_are_read_once(root):
    text = json.dumps({"id": "%05d", "name": "r", "status": "finished", "last_return": 0.5})
    for number in range(10_000):
        (root / f"r{number:05d}").mkdir()
        (root / f"r{number:05d}" / "manifest.json").write_text(text % number)
    assert index.read(root).read == 10_000
    (root / "r00007" / "manifest.json").write_text(text % 7 + " ")
    shutil.rmtree(root / "r00008")
    again = index.read(root)
    assert again.read == 1
    assert len({r["id"] for r in again.rows}) == 9_999


# -- folders that move -----------------------------------------------------------------------------


def test_a_copied_run_is_shown_twice_with_a_warning(root):
    make(root / "a", id="1234")
    shutil.copytree(root / "a", root / "copy")
    listing = index.read(root)
    assert [r["id"] for r in listing.rows] == ["1234", "1234"]
    assert "run 1234 exists 2 times" in listing.notes[0]


def test_a_moved_run_and_a_moved_root_are_found_where_they_are(root):
    make(root / "x" / "a")
    make(root / "x" / "b")
    index.read(root / "x", make=True)
    (root / "x" / "a").rename(root / "x" / "c")
    assert {r["path"] for r in index.read(root / "x").rows} == {"b", "c"}
    (root / "x").rename(root / "y")
    listing = index.read(root / "y")
    assert {r["folder"] for r in listing.rows} == {str(root / "y" / n) for n in "bc"}
    assert listing.read == 0


def test_runs_lie_at_any_depth_and_a_link_that_leads_back_is_no_trap(root):
    make(root / "sweep" / "lr_1" / "seed_0")
    make(root / "sweep" / "lr_1" / "seed_0" / "inside")  # a run holds no runs
    (root / "sweep" / "up").symlink_to(root)
    found = {r["path"] for r in index.read(root).rows}
    assert "sweep/lr_1/seed_0" in found
    assert not any("inside" in path for path in found)
    assert len(found) <= 2


@pytest.mark.parametrize("text", ["", "{", "[]", "\xff"])
def test_a_broken_manifest_is_named_and_the_others_are_listed(root, text):
    make(root / "good")
    make(root / "bad")
    (root / "bad" / "manifest.json").write_bytes(text.encode("latin-1"))
    listing = index.read(root)
    assert {r["path"]: r["status"] for r in listing.rows} == {"good": "finished", "bad": "broken"}
    assert f"{root / 'bad' / 'manifest.json'} " in listing.notes[0]


def test_odd_values_in_a_manifest_are_left_out(root):
    odd = {"seed": 2**80, "last_return": float("nan"), "env_frames": "many", "name": "\ud800"}
    make(root / "a", **odd)
    found = row(root, "a")
    assert found["seed"] == float(2**80)
    assert (found["return"], found["frames"], found["name"]) == (None, None, "?")


@pytest.mark.parametrize("name", ["", "two words", "a=b", "a,b"])
def test_a_tag_that_could_not_be_asked_for_is_refused(root, name):
    with pytest.raises(LabError, match="is not a valid tag"):
        Run(make(root / "a")).tag([name])


def test_reading_many_runs_says_how_far_it_is(root, monkeypatch):
    monkeypatch.setattr(index, "CHUNK", 2)
    for name in "abcde":
        make(root / name)
    told: list[tuple[int, int]] = []
    assert index.read(root, progress=lambda *n: told.append(n)).read == 5
    assert told == [(0, 5), (2, 5), (4, 5)]
    assert index.read(root, progress=lambda *n: told.append(n)).read == 0
    assert len(told) == 3
