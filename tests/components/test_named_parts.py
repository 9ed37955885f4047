"""Every part of DreamerV3's agent can be another class, and is ours where nothing is said."""

from __future__ import annotations

import pytest
import torch

from dreamlab.components import PARTS
from dreamlab.components.world_models.rssm import RSSM
from dreamlab.core.config import dump, load
from dreamlab.core.errors import ConfigError
from dreamlab.core.locate import locate
from dreamlab.core.types import ArraySpec, Spec
from dreamlab.workflows.dreamer_v3 import DreamerV3, DreamerV3Config
from tests.components import own_parts
from tests.helpers import config_of, open_loop

HERE = "tests.components.own_parts"
OWN = {
    "encoder": "{_target_: FlatEncoder, width: 7}",
    "decoder": "{_target_: FlatDecoder, scale: 2}",
    "rssm": "{_target_: Forgetful, forget: 0.1, deter: 24, blocks: 4, hidden: 8, classes: 4}",
    "reward": "PlainHead",
    "cont": "Probability",
    "critic": "PlainHead",
    "actor": "Alike",
}
SPEC = Spec({"state": ArraySpec((4,))}, ArraySpec((), "int64", classes=2))
SMALL = ("+experiment=dreamer_cartpole", "tiny=true", "device=cpu", "training.total_frames=200")


def word(part: str) -> str:
    text = OWN[part]
    named = text.replace("_target_: ", f"_target_: {HERE}.") if "{" in text else f"{HERE}.{text}"
    return f"workflow.{part}={named}"


@pytest.mark.slow
def test_an_agent_of_other_classes_learns_and_resumes(tmp_path):
    words = [*SMALL, *(word(part) for part in OWN), "checkpoint.every_s=0"]
    loop = open_loop(tmp_path / "r", *words)
    model, agent = loop.workflow.model, loop.workflow
    made = {**vars(model)["_modules"], "actor": agent.actor, "critic": agent.critic}
    for part, text in OWN.items():
        name = text.removeprefix("{_target_: ").split(",")[0]
        assert type(made[part]) is getattr(own_parts, name), part
    assert (model.encoder.out_dim, model.rssm.deter_dim, model.decoder.scale) == (7, 24, 2.0)
    assert loop.run() == "finished"
    assert loop.counters.updates > 0
    again = open_loop(tmp_path / "r", *words)
    assert again.load()
    for a, b in zip(loop.workflow.parameters(), again.workflow.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("part", ["reward", "cont", "critic", "actor", "rssm", "decoder"])
def test_a_class_that_cannot_do_the_work_is_refused(part):
    with pytest.raises(ConfigError, match=rf"workflow\.{part}: .* is not a"):
        config_of("+experiment=dreamer_cartpole", f"workflow.{part}=torch.nn.Linear")
    with pytest.raises(ConfigError, match="with parameters, forward"):
        config_of("+experiment=dreamer_cartpole", "workflow.encoder=pathlib.Path")


def test_a_class_with_the_same_config_takes_the_options_of_the_size():
    options = {"size": "12m", "actor": f"{HERE}.Alike"}
    config = load(DreamerV3Config, options, "workflow")
    assert (config.actor.target, config.actor.config.units) == (f"{HERE}.Alike", 256)
    other = {**options, "rssm": {"_target_": f"{HERE}.Forgetful", "deter": 64}}
    found = load(DreamerV3Config, other, "workflow").rssm.config
    assert (found.deter, found.hidden) == (64, 1024)  # its own: a size says nothing of it


def test_where_nothing_is_said_the_parts_are_ours_and_the_kernels_take_them():
    config = load(DreamerV3Config, {"size": "12m"}, "workflow")
    with torch.device("meta"):
        agent = DreamerV3(config, SPEC)
    assert type(agent.model.rssm) is RSSM
    assert agent.model.rssm.scannable
    for part in ("encoder", "decoder", "rssm", "reward", "cont"):
        target = getattr(config, part).target
        assert type(getattr(agent.model, part)) is locate(PARTS[target], part)


def test_actor_and_critic_have_networks_of_their_own():
    options = {"size": "1m", "actor": {"units": 8, "layers": 1}, "critic": {"norm": "layer"}}
    agent = DreamerV3(load(DreamerV3Config, options, "workflow"), SPEC)
    assert [m.linear.out_features for m in agent.actor.net] == [8]
    assert [m.linear.out_features for m in agent.critic.net] == [64, 64, 64]
    assert type(agent.critic.net[0].norm).__name__ == "LayerNorm"
    assert type(agent.actor.net[0].norm).__name__ == "RMSNorm"


@pytest.mark.parametrize("size", ["1m", "12m", "200m", "400m"])
def test_what_a_size_gives_is_written_out_and_read_as_the_same(size):
    config = load(DreamerV3Config, {"size": size, "rssm": {"stoch": 8}}, "workflow")
    plain = dump(config)
    assert plain["rssm"]["stoch"] == 8
    assert all(isinstance(plain[k]["units"], int) for k in ("encoder", "actor", "critic"))
    assert load(DreamerV3Config, plain, "workflow") == config


def test_a_misspelt_option_of_a_part_names_its_path():
    with pytest.raises(ConfigError, match=r"workflow\.rssm\.detre: .*Did you mean 'deter'\?"):
        config_of("+experiment=dreamer_cartpole", "workflow.rssm.detre=8")
    with pytest.raises(ConfigError, match=r"workflow\.deter: .*Did you mean 'rssm.deter'\?"):
        config_of("+experiment=dreamer_cartpole", "workflow.deter=8")
