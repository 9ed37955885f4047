"""Hub folders: complete, loaded like a run; pushed to and fetched from a hub by the real client."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from dreamlab import build, training
from dreamlab.cli import main
from dreamlab.core.errors import LabError
from dreamlab.envs.suites import make
from dreamlab.export import hub
from dreamlab.interop import strangers
from tests.export.hub_server import COMMIT, TOKEN, HubServer, Repo
from tests.helpers import need, some_of, trained_once

FAST = (
    "tiny=true", "eval.episodes=1", "eval.every_frames=0", "eval.video=false", "device=cpu",
    "training.total_frames=200",
)  # fmt: skip
POLICIES = {
    "ppo": ("+experiment=ppo_cartpole", "++env.normalize_obs={}"),
    "sac": ("+experiment=sac_pendulum",),
    "dreamer": ("+experiment=dreamer_cartpole",),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Returns the folder of a short run, trained once for all tests that ask for it."""
    secret = ("++watch.webhook=http://secret", "++watch.command=secret")
    options = {name: (head, *FAST, *rest, *secret) for name, (head, *rest) in POLICIES.items()}
    return trained_once(tmp_path_factory.mktemp("runs"), options)


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# -- folders --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", some_of(list(POLICIES)))
def test_a_hub_folder_is_complete_and_loads_back(name, trained, tmp_path):
    folder = tmp_path / "hub"
    assert main(["export-policy", str(trained(name)), "--hub", str(folder)]) == 0
    films = ["dream.mp4"] if name == "dreamer" else []
    assert sorted(p.name for p in folder.iterdir()) == sorted([*hub.FILES, *films])
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: dreamlab")
    assert "| eval/return |" in card
    original, back = training.load_policy(trained(name)), training.load_policy(folder)
    assert back.env_frames == original.env_frames > 0
    assert hub.weights(back.workflow).keys() == hub.weights(original.workflow).keys()
    for key, value in hub.weights(original.workflow).items():
        assert torch.equal(hub.weights(back.workflow)[key], value)
    scores = [
        build.build_evaluator(t.config).run(t.workflow, t.statistics).returns
        for t in (original, back)
    ]
    assert scores[0] == scores[1]


def test_the_card_has_results_and_films_that_the_hubs_own_reader_finds(trained, tmp_path):
    cards = need("huggingface_hub")
    run, folder = tmp_path / "run", tmp_path / "hub"
    shutil.copytree(trained("dreamer"), run)
    (run / "videos").mkdir(exist_ok=True)
    (run / "videos" / "eval_7.mp4").write_bytes(b"an episode")
    dream = sorted((run / "report").glob("openloop_*.mp4"))[-1].read_bytes()
    assert main(["export-policy", str(run), "--hub", str(folder)]) == 0
    card = cards.ModelCard.load(folder / "README.md")
    final = json.loads((run / "manifest.json").read_text())["final_eval"]
    found = {r.metric_name: r.metric_value for r in card.data.eval_results}
    assert found == final
    assert card.data.eval_results[0].metric_type == "mean_reward"
    assert card.data.library_name == "dreamlab"
    assert card.data.tags == ["reinforcement-learning", "CartPole-v1", "DreamerV3"]
    assert (folder / "replay.mp4").read_bytes() == b"an episode"
    assert (folder / "dream.mp4").read_bytes() == dream
    assert 'src="replay.mp4"' in card.text
    assert 'src="dream.mp4"' in card.text


def test_what_is_private_stays_at_home(trained, tmp_path):
    main(["export-policy", str(trained("sac")), "--hub", str(tmp_path / "hub")])
    manifest = json.loads((tmp_path / "hub" / "manifest.json").read_text())
    assert manifest["id"] == json.loads((trained("sac") / "manifest.json").read_text())["id"]
    assert "diff" not in manifest["git"]
    for content in files(tmp_path / "hub").values():
        assert b"secret" not in content
        assert str(trained("sac")).encode() not in content


def test_eval_measures_a_hub_folder_and_leaves_it_as_it_is(trained, tmp_path, capsys):
    folder, out = tmp_path / "hub", tmp_path / "out"
    main(["export-policy", str(trained("sac")), "--hub", str(folder)])
    before = files(folder)
    capsys.readouterr()
    assert main(["eval", str(trained("sac")), "--episodes", "1"]) == 0
    of_run = capsys.readouterr().out
    assert main(["eval", str(folder), "--episodes", "1"]) == 0
    assert capsys.readouterr().out == of_run
    assert main(["eval", str(folder), "--episodes", "1", "--video"]) == 2
    assert "hub folders are read-only: add --out" in capsys.readouterr().err
    assert main(["eval", str(folder), "--episodes", "1", "--video", "--out", str(out)]) == 0
    assert sorted(files(out)) == ["report/eval.json", "videos/eval_seed20000.mp4"]
    assert files(folder) == before


def test_a_hub_folder_has_one_policy_only(trained, tmp_path, capsys):
    main(["export-policy", str(trained("sac")), "--hub", str(tmp_path / "hub")])
    for verb in (["eval"], ["export-policy", "--out", str(tmp_path / "p.onnx")]):
        assert main([*verb, str(tmp_path / "hub"), "--checkpoint", "best"]) == 2
        assert "is a hub folder: it has no checkpoint 'best'" in capsys.readouterr().err


def test_a_hub_folder_is_not_trained_in(trained, tmp_path, capsys):
    folder = tmp_path / "hub"
    assert main(["export-policy", str(trained("sac")), "--hub", str(folder)]) == 0
    before = files(folder)
    assert main(["resume", str(folder)]) == 2
    assert "can be evaluated but not trained" in capsys.readouterr().err
    assert files(folder) == before


def test_a_hub_folder_is_exported_to_a_file_of_its_own(trained, tmp_path, capsys):
    folder, path = str(tmp_path / "hub"), tmp_path / "p.pt"
    main(["export-policy", str(trained("sac")), "--hub", folder])
    assert main(["export-policy", folder, "--format", "torchscript"]) == 2
    assert "hub folders are read-only" in capsys.readouterr().err
    assert main(["export-policy", folder, "--format", "torchscript", "--out", str(path)]) == 0
    assert path.exists()


def test_the_dream_of_a_hub_folder_is_an_environment(trained, tmp_path):
    main(["export-policy", str(trained("dreamer")), "--hub", str(tmp_path / "hub")])
    dreams = [
        make("imagined", str(folder), {"length": 5, "starts": 10}).reset(seed=1)[0]["state"]
        for folder in (trained("dreamer"), tmp_path / "hub")
    ]
    assert (dreams[0] == dreams[1]).all()


def test_a_hub_folder_is_not_overwritten_and_a_wrong_one_is_refused(trained, tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    assert main(["export-policy", str(trained("sac")), "--hub", str(tmp_path / "mine")]) == 2
    assert "already exists" in capsys.readouterr().err
    with pytest.raises(LabError, match="not a run directory"):
        training.load_policy(tmp_path / "mine")
    main(["export-policy", str(trained("sac")), "--hub", str(tmp_path / "hub")])
    text = (tmp_path / "hub" / "config.yaml").read_text()
    (tmp_path / "hub" / "config.yaml").write_text(text.replace("num_critics: 2", "num_critics: 3"))
    with pytest.raises(LabError, match="the weights do not fit its configuration: online"):
        training.load_policy(tmp_path / "hub")
    (tmp_path / "hub" / "model.safetensors").write_bytes(b"half a file")
    with pytest.raises(LabError, match=r"model.safetensors cannot be read"):
        training.load_policy(tmp_path / "hub")


# -- the hub of Hugging Face, its client for real, its server in this process ---------------------


@pytest.fixture
def client(tmp_path, monkeypatch):
    """Gives the client a cache of its own, as HF_HUB_CACHE would before it is imported."""
    constants = need("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return constants


@pytest.fixture
def server(client, monkeypatch):
    """A hub that the client talks to, as HF_ENDPOINT would make it."""
    with HubServer() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(client, "ENDPOINT", server.url)
        monkeypatch.setattr(client, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server
        server.shutdown()


def test_a_policy_is_pushed_and_measured_from_the_hub(server, trained, tmp_path, capsys):
    run = str(trained("sac"))
    assert main(["export-policy", run, "--push", "me/policy", "--private"]) == 0
    out = capsys.readouterr().out
    assert f"{server.url}/me/policy" in out
    assert "dreamlab eval hub:me/policy" in out
    repo = server.repos["me/policy"]
    assert repo.private
    assert repo.messages == ["SAC on Pendulum-v1, 200 env frames"]
    assert sorted(repo.files) == sorted(hub.FILES)
    assert b"dreamlab eval hub:me/policy" in repo.files["README.md"]

    assert main(["eval", "hub:me/policy", "--episodes", "1"]) == 0
    assert main(["eval", run, "--episodes", "1"]) == 0
    texts = capsys.readouterr().out.split("env_frames")
    assert texts[1] == texts[2]
    fetched = tmp_path / "cache" / "models--me--policy" / "snapshots" / COMMIT
    assert sorted(p.name for p in fetched.iterdir()) == sorted(hub.FILES)

    assert main(["export-policy", run, "--push", "me/policy", "--hub", str(tmp_path / "h")]) == 0
    assert (tmp_path / "h" / "README.md").read_bytes() == repo.files["README.md"]


def test_a_private_policy_does_not_go_to_a_public_place(server, trained, capsys):
    assert main(["export-policy", str(trained("sac")), "--push", "me/open"]) == 0
    server.repos["me/open"].files.clear()
    assert main(["export-policy", str(trained("sac")), "--push", "me/open", "--private"]) == 2
    assert "the repository exists and is public; nothing was uploaded" in capsys.readouterr().err
    assert server.repos["me/open"].files == {}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--push", "nobody"], "'nobody' is not a hub repository"),
        (["--push", "me/policy@v1"], "pushes go to the main branch"),
        (["--push", "strangers/policy"], "your token does not allow it"),
        (["--private"], "--private has no effect without --push"),
    ],
)
def test_a_push_that_cannot_be_is_one_line(arguments, text, server, trained, capsys):
    assert main(["export-policy", str(trained("sac")), *arguments]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1
    assert not server.repos


def test_without_a_token_nothing_is_pushed(server, trained, capsys, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    assert main(["export-policy", str(trained("sac")), "--push", "me/policy"]) == 2
    assert "log in with `hf auth login`, or set HF_TOKEN" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hub:me/missing", "there is no such repository, or it is private: log in"),
        ("hub:me/other", "is not a dreamlab policy"),
        ("hub:me/other@v9", "there is no such revision"),
        ("hub:other", "'other' is not a hub repository"),
    ],
)
def test_what_the_hub_does_not_have_is_one_line(name, text, server, capsys):
    server.repos["me/other"] = Repo(files={"config.yaml": b"a: 1", "big.bin": b"not ours"})
    assert main(["eval", name]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.split("LabError")[1].count("\n") == 1  # after the progress of a download


def test_a_hub_that_does_not_answer_is_one_line(client, trained, capsys, monkeypatch):
    monkeypatch.setattr(client, "ENDPOINT", "http://127.0.0.1:9")
    assert main(["eval", "hub:me/policy"]) == 2
    assert "it is not in the cache, and the hub cannot be reached" in capsys.readouterr().err
    assert main(["export-policy", str(trained("sac")), "--push", "me/policy"]) == 2
    assert "the hub cannot be reached (ConnectError)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("_target_: dreamlab.workflows.sac.SAC", "_target_: subprocess.Popen"),
        ("_target_: replay", "_target_: os.system"),
        ("id: Pendulum-v1", "id: subprocess:getoutput"),
    ],
)
def test_a_strangers_configuration_calls_nothing_from_elsewhere(
    old, new, server, trained, tmp_path, capsys
):
    assert main(["export-policy", str(trained("sac")), "--push", "me/policy"]) == 0
    found = server.repos["me/policy"].files
    assert old.encode() in found["config.yaml"]
    found["config.yaml"] = found["config.yaml"].replace(old.encode(), new.encode())
    assert main(["eval", "hub:me/policy"]) == 2
    assert f"hub:me/policy would run '{new.split(': ')[1]}'" in capsys.readouterr().err


def test_what_the_client_downloads_into_a_folder_is_a_strangers(server, trained, tmp_path):
    repo = Repo(files=dict.fromkeys(("config.yaml", "sub/config.yaml"), b"x"))
    server.repos["me/runs"] = repo
    folder = tmp_path / "local"
    need("huggingface_hub").snapshot_download("me/runs", local_dir=folder)
    assert strangers.is_strange(folder)
    assert strangers.is_strange(folder / "sub")
    (folder / "mine").mkdir()
    (folder / "mine" / "config.yaml").touch()
    assert not strangers.is_strange(folder / "mine")
    assert not strangers.is_strange(trained("sac"))


def cached(folder: Path, cache: Path) -> None:
    """Put a hub's folder into a cache as the client keeps it: files as links to blobs."""
    repo = cache / "models--me--policy"
    for name in ("blobs", "refs", f"snapshots/{COMMIT}"):
        (repo / name).mkdir(parents=True)
    (repo / "refs" / "main").write_text(COMMIT)
    for path in folder.iterdir():
        shutil.copy(path, repo / "blobs" / path.name)
        (repo / "snapshots" / COMMIT / path.name).symlink_to(f"../../blobs/{path.name}")


def test_the_cache_is_enough_without_a_network(trained, tmp_path):
    main(["export-policy", str(trained("dreamer")), "--hub", str(tmp_path / "hub")])
    cached(tmp_path / "hub", tmp_path / "cache")
    before = files(tmp_path / "cache")
    env = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
    code = f"""
from dreamlab import training
from dreamlab.cli import main
from dreamlab.envs.suites import make
assert main(["eval", "hub:me/policy", "--episodes", "1"]) == 0
assert main(["eval", "hub:me/policy@{COMMIT}", "--episodes", "1"]) == 0
make("imagined", "hub:me/policy", {{"length": 5, "starts": 10}}).reset(seed=1)
assert training.load_policy("hub:me/policy").env_frames >= 200
assert main(["eval", "hub:me/elsewhere"]) == 2
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("eval/return  ") == 2
    assert "it is not in the cache, and the hub cannot be reached" in done.stderr
    assert files(tmp_path / "cache") == before
