"""Do our agents compute what the originals did? A fixture folder in, a table of errors out.

    python -m dreamlab.interop.parity fixtures/dreamerv3_proprio fixtures/tdmpc2_state

DreamerV3: the folder holds weights, inputs, the original's random samples and everything it
computed from them. The samples are fed in where the original drew them; all the rest is compared:
the forward pass, every loss, and the weights after each of two updates (the second starts with the
original's weights and our optimizer's moments). TD-MPC2 (`parity_tdmpc2`): the forward pass, the
policy for given noise, and every loss for given targets. What only one side has is listed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dreamlab.components.world_models.protocol import Policy
from dreamlab.components.world_models.rssm import Latent
from dreamlab.components.world_models.world_model import Posterior
from dreamlab.core.errors import CheckpointError, LabError
from dreamlab.core.optim import LaProp
from dreamlab.core.readers import read_json
from dreamlab.core.text import one_line, print
from dreamlab.core.types import Array
from dreamlab.interop import dreamerv3, parity_tdmpc2
from dreamlab.interop.array_files import BROKEN
from dreamlab.interop.parity_lines import Line, compare, load_arrays, not_compared
from dreamlab.workflows.dreamer_v3 import Dream, DreamerV3, DreamerV3Config

NEAR, SHARE = 1e-5, 0.96
Arrays = dict[str, Array]


def compare_update(name: str, ours: Array, theirs: Array) -> Line:
    """Return how many entries of an updated tensor agree."""
    error = np.abs(np.asarray(ours, np.float64).reshape(theirs.shape) - theirs)
    share = float((error <= NEAR).mean())
    scale = float(np.abs(theirs).max(initial=0.0)) or 1.0
    largest = float(error.max(initial=0.0))
    return Line(name, largest, largest / scale, share >= SHARE, f"{share:.1%} of the entries agree")


class Fixture:
    """A folder in the format of golden/README.md."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.meta: dict[str, Any] = read_json(folder / "meta.json")
        self.weights = self.load("weights.npz")
        inputs = self.load("inputs.npz")
        self.obs = {k[4:]: v for k, v in inputs.items() if k.startswith("obs/")}
        self.action = torch.from_numpy(inputs["prev_action/action"])
        self.carry = Latent(
            torch.from_numpy(inputs["carry/deter"]),
            torch.from_numpy(inputs["carry/stoch"]).flatten(-2),
        )

    @property
    def is_trimmed(self) -> bool:
        """Whether it holds one update only, and after it not the largest tensors."""
        return bool(self.meta.get("trimmed"))

    def load(self, name: str) -> Arrays:
        """Return the arrays of one file."""
        return load_arrays(self.folder / name)

    def agent(self) -> DreamerV3:
        """Return our agent with the fixture's weights."""
        stoch = self.load("inputs.npz")["carry/stoch"].shape[-2]
        rate = {"lr": self.meta["lr"], "warmup_steps": self.meta["warmup"]}
        optimizer = DreamerV3Config().optimizer.but(**rate)
        config = dreamerv3.config_of(
            self.weights, stoch=stoch, optimizer=optimizer, imagine=self.meta["imagine"]
        )
        agent = DreamerV3(config, dreamerv3.spec_of(self.obs, self.weights))
        dreamerv3.load_weights(agent, self.weights)
        inner = agent.optimizers["agent"].inner
        assert isinstance(inner, LaProp)
        inner.flush = True  # the original ran on XLA's CPU backend
        return agent


def forced(stoch: Array) -> Tensor:
    """Return noise with which a sample of one-hot latents comes out as given."""
    return torch.from_numpy(np.asarray(stoch, np.float32)) * 1e9


def recorded(actions: Array) -> Policy:
    """Return a policy that takes the recorded actions, one step after another."""
    steps = iter(torch.from_numpy(actions).unbind(1))
    return lambda latent: next(steps)


def run_update(
    agent: DreamerV3, fixture: Fixture, outputs: Arrays
) -> tuple[Posterior, Dream, dict[str, Tensor]]:
    """Compute the losses of the fixture's batch with the original's samples."""
    tensor = lambda k: torch.from_numpy(fixture.obs[k])  # noqa: E731
    obs = {k: tensor(k) for k in agent.spec.obs}
    reward, first, last, terminal = (tensor(k) for k in dreamerv3.FLAGS)
    noise = forced(outputs["post/stoch"]).transpose(0, 1)
    seen = agent.model.observe(obs, fixture.action, first, fixture.carry, noise)
    losses, _ = agent.model.losses(seen, obs, reward, terminal)
    dreamt = forced(outputs["imagine/stoch"][:, 1:]).transpose(0, 1)
    dream = agent.dream(seen.latent.flat(), recorded(outputs["imagine/action"]), dreamt)
    more, _ = agent.actor_critic_losses(dream, seen.feature, reward, last, terminal)
    return seen, dream, losses | more


@torch.no_grad()
def computed(
    agent: DreamerV3, fixture: Fixture, seen: Posterior, dream: Dream
) -> dict[str, Tensor]:
    """Return everything the original wrote down, as we compute it, under its names."""
    model, flat = agent.model, seen.latent.flat()
    shape, rssm = seen.tokens.shape[:2], model.rssm
    stoch = lambda x: x.unflatten(-1, (rssm.config.stoch, rssm.config.classes))  # noqa: E731
    reward, cont = model.reward(seen.feature), model.cont(seen.feature)
    out = {
        "tokens": seen.tokens, "feat": seen.feature, "post/deter": seen.latent.deter,
        "post/stoch": stoch(seen.latent.stoch), "post/logit": seen.post,
        "prior/logit": model.rssm.prior(seen.latent.deter),
        "reward/logits": reward, "reward/pred": model.reward.mean(reward),
        "cont/logit": cont, "cont/prob": torch.sigmoid(cont),
    }  # fmt: skip
    decoded = model.decoder(flat.deter, flat.stoch)
    out |= {f"decoder/{k}": v.view(*shape, *v.shape[1:]) for k, v in decoded.items()}
    deter, chosen = dream.feature.split([rssm.config.deter, rssm.stoch_dim], -1)
    dist = agent.actor(dream.feature)
    logits = agent.critic(dream.feature)
    before = seen.post.flatten(0, 1)[:, None]
    slow = agent.slow.mean(agent.slow(dream.feature))
    value_loss = agent.critic.loss(logits[:, :-1], dream.ret)
    value_loss = value_loss + agent.critic.loss(logits[:, :-1], slow[:, :-1])
    out |= {
        "imagine/deter": deter, "imagine/stoch": stoch(chosen), "imagine/action": dream.action,
        "imagine/logit": torch.cat([before, rssm.prior(deter[:, 1:])], 1),
        "imagine/reward": dream.reward, "imagine/cont": dream.cont, "imagine/value": dream.value,
        "imagine/slow_value": slow, "imagine/value_logits": logits,
        "imagine/return": dream.ret, "imagine/logp": dist.log_prob(dream.action),
        "imagine/entropy": dist.entropy(), "imagine/value_loss": value_loss * dream.weight[:, :-1],
    }  # fmt: skip
    if agent.spec.action.is_discrete:
        out["imagine/policy_logits"] = dist.logits
    else:
        out |= {"imagine/policy_mean": dist.mean, "imagine/policy_std": dist.log_std.exp()}
    tensor = lambda k: torch.from_numpy(fixture.obs[k])  # noqa: E731
    reward, _, last, terminal = (tensor(k) for k in dreamerv3.FLAGS)
    out["replay/return"] = agent.replay_return(dream.ret[:, 0].view(shape), reward, last, terminal)
    return out


def check_update(agent: DreamerV3, fixture: Fixture, number: int) -> Iterator[Line]:
    """Compare one update: what it computes, its losses, and the weights it leaves."""
    suffix = "" if number == 1 else f"_step{number}"
    outputs = fixture.load(f"outputs{suffix}.npz")
    seen, dream, losses = run_update(agent, fixture, outputs)
    found = computed(agent, fixture, seen, dream)
    found |= {f"loss/{k.removeprefix('rec/')}": v for k, v in losses.items()}
    with torch.no_grad():
        scale = (agent.return_high - agent.return_low).clamp(min=1.0)
        dist = agent.actor(dream.feature)
        advantage = (dream.ret - dream.value[:, :-1]) / scale
        gain = dist.log_prob(dream.action)[:, :-1] * advantage
        gain = gain + agent.config.entropy * dist.entropy()[:, :-1]
        found["imagine/policy_loss"] = -dream.weight[:, :-1] * gain
    found["loss/total"] = agent.learn(losses)["loss"]
    prefix = f"update {number}: "
    for name, theirs in sorted(outputs.items()):
        if name in found:
            yield compare(prefix + name, found[name], theirs)
        else:
            yield not_compared(prefix + name, "dreamlab does not compute it")
    after = fixture.load(f"weights_step{number}.npz")
    names = dreamerv3.official_names(agent)
    params = dict(agent.named_parameters())
    for ours, theirs_name in sorted(names.items(), key=lambda pair: pair[1]):
        if fixture.is_trimmed and theirs_name not in after:
            continue
        value = dreamerv3.to_theirs(params[ours], theirs_name)
        yield compare_update(prefix + theirs_name, value, after[theirs_name])
    for buffer, name in (
        (agent.return_low, "retnorm/lo/value"),
        (agent.return_high, "retnorm/hi/value"),
    ):
        yield compare(prefix + name, buffer, after[name])


def check(folder: Path) -> Iterator[Line]:
    """Compare everything in a fixture, line by line; its files determine the algorithm."""
    with usable(folder):
        compared = 0
        for line in _check(folder):
            compared += line.compared
            yield line
        if not compared:
            raise CheckpointError("nothing in it can be compared")


def _check(folder: Path) -> Iterator[Line]:
    if (folder / parity_tdmpc2.CHECKPOINT).is_file():
        yield from parity_tdmpc2.check(folder)
        return
    if not (folder / "weights.npz").is_file():
        raise CheckpointError(
            f"it has neither {parity_tdmpc2.CHECKPOINT} (TD-MPC2) nor weights.npz (DreamerV3)"
        )
    fixture = Fixture(folder)
    agent = fixture.agent()
    yield from check_update(agent, fixture, 1)
    if fixture.is_trimmed:
        return
    # An entry whose gradient is rounding noise may have moved the other way. Such entries must not
    # blur the second comparison: it starts from the original's weights, with our own moments.
    dreamerv3.load_weights(agent, fixture.load("weights_step1.npz"))
    yield from check_update(agent, fixture, 2)


@contextmanager
def usable(folder: Path) -> Iterator[None]:
    """Say in one line why a folder cannot be compared: anything can be in its files."""
    try:
        yield
    except KeyError as error:
        raise CheckpointError(f"{folder} cannot be compared: it lacks {error}") from None
    except (LabError, *BROKEN) as error:
        reason = (
            one_line(" ".join(str(error).split()).removeprefix("import: "))[:400]
            or type(error).__name__
        )
        raise CheckpointError(f"{folder} cannot be compared: {reason}") from error


def main() -> int:
    """Print a line per tensor; return 0 if all agree, 2 if a folder could not be compared."""
    parser = argparse.ArgumentParser(prog="python -m dreamlab.interop.parity", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="+")
    lines: list[Line] = []
    broken = False
    for folder in parser.parse_args().folder:
        print(f"# {folder.name}")
        try:
            for line in check(folder):
                print(line)
                lines.append(line)
        except LabError as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            broken = True
    compared = [line for line in lines if line.compared]
    wrong = sum(not line.ok for line in compared)
    rest = f", {len(lines) - len(compared)} not compared" if len(compared) < len(lines) else ""
    print(f"{len(compared) - wrong} of {len(compared)} agree{rest}")
    return 2 if broken else 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
