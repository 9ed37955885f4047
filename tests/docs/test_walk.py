"""The walk from a data set to a measured policy is typed as its page has it, only shorter."""

from __future__ import annotations

import json

import pytest

from dreamlab.cli import main as dreamlab
from tests.docs.test_pages import ROOT, commands

PAGE = ROOT / "docs" / "from-data-to-policy.md"
SHORT = {
    "train": ["tiny=true", "eval.episodes=2", "eval.num_envs=2", "log.terminal=off", "device=cpu"],
    "eval": ["--episodes", "2"],
    "record": ["--episodes", "3"],
}
COLLECTS = ("sac_pendulum", "pa_rl_dataset_pendulum")


def shortened(words: list[str]) -> list[str]:
    """Return a command of the page with fewer episodes and updates."""
    verb = words[1] if words[0] == "data" else words[0]
    kept = [w for w in words if not w.startswith("training.total_frames=")]
    if verb == "train" and words[1] in COLLECTS:
        kept.append("training.total_frames=300")
    if verb in ("eval", "record"):
        kept = kept[: kept.index("--episodes")] + kept[kept.index("--episodes") + 2 :]
    return [*kept, *SHORT.get(verb, [])]


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_every_command_of_the_walk_works_in_its_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    typed = [words[1:] for _, words in commands(PAGE) if words[0] == "dreamlab"]
    for words in typed:
        assert dreamlab(shortened(words)) == 0, (words, capsys.readouterr().err[-2000:])
    finished = {
        p.parent.name for p in (tmp_path / "experiments").glob("*/manifest.json")
        if json.loads(p.read_text())["status"] == "finished"
    }  # fmt: skip
    assert finished == {w[-1].split("/")[1] for w in typed if w[0] == "train"}
    assert len(finished) == 7
    assert json.loads((tmp_path / "data" / "better" / "meta" / "info.json").read_text())
