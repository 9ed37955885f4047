"""Deep Q-network (Mnih et al. 2015, doi:10.1038/nature14236) and its best-known improvements.

Double (van Hasselt et al. 2016, arXiv:1509.06461), dueling (Wang et al. 2016, arXiv:1511.06581),
prioritized (Schaul et al. 2016, arXiv:1511.05952) and distributional (C51, Bellemare et al. 2017,
arXiv:1707.06887) are options; n-step targets come from a replay with windows of n + 1 steps. All of
them together are Rainbow (Hessel et al. 2018, arXiv:1710.02298) without noisy layers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dreamlab.components.critics import HOME
from dreamlab.components.critics.readout import Readout
from dreamlab.components.critics.transitions import Transitions, transitions
from dreamlab.components.encoder import Encoder, EncoderConfig
from dreamlab.core.config import Part, part
from dreamlab.core.errors import ConfigError
from dreamlab.core.limits import PositiveInt, Share, SomeShare
from dreamlab.core.optim import optimizer_field
from dreamlab.core.phase import Phase
from dreamlab.core.types import ArraySpec, Batch, Decision, Metrics, Mode, Obs, Spec, Tree
from dreamlab.core.workflow import Workflow, compilable, hook, many_kernels
from dreamlab.nn.counter import Count
from dreamlab.nn.mlp import chain, linear
from dreamlab.nn.target import TargetNetwork, frozen_copy

TOGETHER = 8
"""Gradient steps in one call: with small networks, a tenth of a compiled one is overhead."""
Minibatch = tuple[Transitions, Tensor | None, Tensor | None]
"""Transitions, their targets if known, and their weights if the replay is prioritized."""


@dataclass(frozen=True)
class DQNConfig:
    """Defaults of the Nature paper where they also suit small problems."""

    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    network: Part = part("mlp", hidden=(256, 256), act="relu", gain=None)
    """Network between encoder and values; with `dueling`, one each for value and advantage."""
    double: bool = False
    """Choose the next action with the online network, evaluate it with the target network."""
    dueling: bool = False
    """Predict the state value and the action advantages separately."""
    readout: Part = part("huber", HOME, Readout)
    """Prediction of the return: its mean (`huber`, `mse`) or distribution (`c51`, `quantile`)."""
    minibatch: PositiveInt | None = None
    """Windows per gradient step, to split one batch into several steps; None uses the whole batch.
    The target network is updated between batches only.
    """
    optimizer: Part = optimizer_field("adam", lr=3e-4, clip=10.0)
    gamma: Share = 0.99
    target_every_gradient_steps: PositiveInt = 1_000
    """Gradient steps between target network updates."""
    tau: SomeShare = 1.0
    """Step size of the target network towards the online one; 1 copies it."""
    epsilon: Share = 1.0
    epsilon_final: Share = 0.05
    epsilon_decisions: PositiveInt = 10_000
    """Decisions (over all environments) during which epsilon decays linearly."""
    eval_epsilon: Share = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon_final <= self.epsilon <= 1:
            raise ValueError("epsilon must fall: 1 >= epsilon >= epsilon_final >= 0")


class QNetwork(nn.Module):
    """Encoder, one or two streams, and `outputs` values per action."""

    def __init__(self, config: DQNConfig, spec: Spec, num_actions: int, outputs: int) -> None:
        super().__init__()
        self.shape = (num_actions, outputs)
        self.encoder = Encoder(config.encoder, spec.obs)
        self.advantage, self.advantage_out = self._stream(config, num_actions * outputs)
        if config.dueling:
            self.value, self.value_out = self._stream(config, outputs)
        self.dueling = config.dueling

    def _stream(self, config: DQNConfig, out_dim: int) -> tuple[nn.Module, nn.Linear]:
        net = config.network.build(self.encoder.out_dim)
        if net.recurrent:
            raise ConfigError(
                "workflow.network: DQN learns from single transitions, so its network cannot have "
                f"a memory; {config.network.target!r} has one. Use 'mlp' or 'identity'."
            )
        return net, linear(net.out_dim, out_dim)

    def forward(self, obs: Obs) -> Float[Tensor, "b a k"]:
        """Return the outputs for each action."""
        z = self.encoder(obs)
        out = chain(self.advantage, self.advantage_out, z)[0].float().view(-1, *self.shape)
        if not self.dueling:
            return out
        value = chain(self.value, self.value_out, z)[0].float()[:, None]
        return value + out - out.mean(1, keepdim=True)  # eq. 9 of Wang et al.


def taken(out: Float[Tensor, "b a k"], action: Int[Tensor, " b"]) -> Float[Tensor, "b k"]:
    """Select the outputs of the taken actions."""
    if out.shape[-1] == 1:  # the most common case, and cheaper than two indices
        return out[..., 0].gather(1, action[:, None])
    return out[torch.arange(len(action), device=out.device), action]


class DQN(Workflow[DQNConfig]):
    """Q-learning with a target network on replayed transitions."""

    Config = DQNConfig
    tiny: ClassVar[dict[str, Any]] = {"network": {"hidden": (8, 8)}}
    former_names: ClassVar[dict[str, str]] = {"returns.support": "readout.support"}

    def build(self, spec: Spec) -> None:
        c = self.config
        if not isinstance(spec.action.classes, int):
            others = "PPO" if spec.action.is_discrete else "SAC or PPO"
            raise ConfigError(
                "workflow: DQN needs one discrete action, but this environment's actions are "
                f"{_describe(spec.action)}. Use {others} instead."
            )
        self.num_actions = spec.action.classes
        self.readout: Readout = c.readout.build()
        self.online = QNetwork(c, spec, self.num_actions, self.readout.outputs)
        self.target = frozen_copy(self.online)
        self.target_network = TargetNetwork(self.target, self.online)
        self.opt = self.optimizer("dqn", self.online.parameters(), c.optimizer)
        self.decisions, self.steps = Count(), Count()

    def rows_per_step(self, steps: int) -> int:
        """Return the number of rows in a minibatch."""
        return min(self.config.minibatch or steps, steps)

    # -- acting -----------------------------------------------------------------------------------

    def decide(self, obs: Obs, is_first: Bool[Tensor, " n"], state: Tree, mode: Mode) -> Decision:
        """Act epsilon-greedily."""
        greedy = self.readout.decode(self.online(obs)).argmax(-1)
        if mode is Mode.FIXED:
            return Decision(greedy)
        epsilon = self.epsilon() if mode.samples else self.config.eval_epsilon
        if mode is Mode.TRAIN:
            self.decisions.add(len(greedy))
        anything = torch.randint_like(greedy, self.num_actions)
        explore = torch.rand_like(greedy, dtype=torch.float32) < epsilon
        return Decision(torch.where(explore, anything, greedy))

    def decided(self, num: int) -> None:
        """Count the decisions of all actors, which determine epsilon."""
        self.decisions.add(num)

    def epsilon(self) -> float:
        """Return the current fraction of random actions."""
        c = self.config
        fall = (c.epsilon - c.epsilon_final) / max(c.epsilon_decisions, 1)
        return max(c.epsilon_final, c.epsilon - fall * self.decisions.value)

    # -- learning ---------------------------------------------------------------------------------

    @hook
    def update_controller(
        self, batch: Batch, *, phase: Phase
    ) -> Metrics | tuple[Metrics, dict[str, Float[Tensor, " b"]]]:
        """Take a gradient step per minibatch; return priorities if the replay requests them."""
        t, weight = transitions(batch, self.config.gamma), batch.extras.get("weight")
        # the target network is fixed during a batch, so targets can be computed once, except with
        # double Q-learning, where the online network chooses the actions
        ahead = None if self.config.double else self.targets(t)
        size = self.config.minibatch or len(t.reward)
        steps = math.ceil(len(t.reward) / size)
        together = split(t, ahead, weight, size * math.gcd(steps, TOGETHER))
        done = [self.gradient_steps(*rows) for rows in together]
        losses, norms, priorities = (torch.cat(x) for x in zip(*done, strict=True))
        self.follow(steps)
        metrics = {
            "loss": losses.mean(),
            "grad_norm": norms.mean(),
            "epsilon": torch.tensor(self.epsilon()),
        }
        return metrics if weight is None else (metrics, {"priority": priorities})

    @compilable
    @many_kernels
    def gradient_steps(
        self,
        t: Transitions,
        ahead: Float[Tensor, "b j"] | None,
        weight: Float[Tensor, " b"] | None,
    ) -> tuple[Float[Tensor, " k"], Float[Tensor, " k"], Float[Tensor, " b"]]:
        """Take a gradient step for each of a few minibatches, in one compiled call.

        They are split in here: what is compiled checks every tensor that it is given.
        """
        rows = split(t, ahead, weight, self.config.minibatch or len(t.reward))
        losses, norms, priorities = zip(*(self.gradient_step(*x) for x in rows), strict=True)
        return torch.stack(losses), torch.stack(norms), torch.cat(priorities)

    def gradient_step(
        self,
        t: Transitions,
        ahead: Float[Tensor, "b j"] | None,
        weight: Float[Tensor, " b"] | None,
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""], Float[Tensor, " b"]]:
        """Regress action values on targets; return loss, gradient norm and priorities."""
        target = self.targets(t) if ahead is None else ahead
        out = taken(self.online(t.obs), t.action)
        errors = self.readout.distance(out, target)
        loss = (errors if weight is None else errors * weight).mean()
        norm = self.opt.step(loss)
        return loss.detach(), norm, self.readout.priority(out, target, errors).detach()

    @torch.no_grad()
    def targets(self, t: Transitions) -> Float[Tensor, "b j"]:
        """Compute the targets of the taken actions' outputs."""
        out = self.target(t.next_obs)
        chooser = self.online(t.next_obs) if self.config.double else out
        best = self.readout.decode(chooser).argmax(-1)
        return self.readout.ahead(taken(out, best), t.reward, t.factor)

    def follow(self, steps: int) -> None:
        """Update the target network by `tau` if its period is over."""
        before, self.steps.value = self.steps.value, self.steps.value + steps
        period = self.config.target_every_gradient_steps
        if self.steps.value // period > before // period:
            self.target_network.update(self.config.tau)


def split(
    t: Transitions,
    ahead: Float[Tensor, "b j"] | None,
    weight: Float[Tensor, " b"] | None,
    size: int,
) -> list[Minibatch]:
    """Split transitions, targets and weights into minibatches."""
    parts = t.split(size)
    aheads = [None] * len(parts) if ahead is None else ahead.split(size)
    weights = [None] * len(parts) if weight is None else weight.split(size)
    return list(zip(parts, aheads, weights, strict=True))


def _describe(action: ArraySpec) -> str:
    kind = "continuous" if action.classes is None else f"{action.size} discrete ones at once"
    return f"{kind} (shape {action.shape})"
