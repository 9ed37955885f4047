"""Agents, policies and critics by name, for programs that bring their own loop.

Thin: each function names a workflow or a component and gives it the options that YAML would.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from dreamlab.components import HOME
from dreamlab.components.critics.q_function import QConfig, QFunction
from dreamlab.components.policies.protocol import Policy
from dreamlab.core.config import Part, dump, load
from dreamlab.core.errors import ConfigError, unknown
from dreamlab.core.files import write_atomic
from dreamlab.core.phase import Phase
from dreamlab.core.types import Batch, Metrics, Mode, Obs, Spec, Tree
from dreamlab.core.workflow import Workflow
from dreamlab.workflows.diffusion_rl import DiffusionRL
from dreamlab.workflows.imitation import Imitation
from dreamlab.workflows.iql import IQL
from dreamlab.workflows.pa_rl import PARL

PolicyKind = Literal["gaussian", "diffusion", "flow", "autoregressive", "categorical"]
CriticKind = Literal["standard", "ensemble", "distributional"]
AgentKind = Literal["imitation", "actor_critic", "offline_rl", "diffusion_rl"]
Options = Mapping[str, Any]

CRITICS: dict[str, Options] = {
    "standard": {"num_critics": 1},
    "ensemble": {"num_critics": 5, "subset": 2},
    "distributional": {"num_critics": 2, "readout": "two_hot"},
}
"""Each kind of critic as options of a Q-function."""
HOOKS: dict[str, tuple[str, ...]] = {
    "imitation": ("update_policy",),
    "actor_critic": ("update_critic", "update_policy"),
    "offline_rl": ("update_controller",),
    "diffusion_rl": ("update_critic", "update_policy"),
}
"""The update steps of each kind of agent, in order."""


class MissingCriticError(ConfigError, ValueError):
    """A kind of agent that needs a critic was given none."""


@dataclass
class Agent:
    """A workflow with the few verbs that a loop of one's own needs; it carries what it learnt."""

    workflow: Workflow[Any]
    phase: Phase
    state: Tree = None
    """What the next action depends on in addition to the observation."""

    @torch.no_grad()
    def act(self, obs: Obs, is_first: Tensor | None = None, evaluation: bool = False) -> Tensor:
        """Return actions for observations [n, ...]; `is_first` [n] marks the start of episodes.

        In evaluation it is the agent's best, with averaged weights where an optimizer keeps them;
        else it explores.
        """
        num = len(next(iter(obs.values())))
        if self.state is None:
            self.state = self.workflow.initial_state(num)
            is_first = torch.ones(num, dtype=torch.bool) if is_first is None else is_first
        flags = torch.zeros(num, dtype=torch.bool) if is_first is None else is_first
        mode = Mode.EVAL if evaluation else Mode.TRAIN
        flags = flags.to(self.workflow.device)
        with self.workflow.averaged() if evaluation else nullcontext():
            decision = self.workflow.decide(obs, flags, self.state, mode)
        self.state = decision.state
        return decision.action

    def update(self, batch: Batch) -> Metrics:
        """Learn from windows of steps; return what is worth logging."""
        found: Metrics = {}
        for name in self.phase.update_hooks:
            result = getattr(self.workflow, name)(batch, phase=self.phase)
            found |= result[0] if isinstance(result, tuple) else result
        return found

    def save(self, path: Path) -> None:
        """Write weights and optimizers to a file."""
        state = self.workflow.state_dict()
        write_atomic(path, lambda file: torch.save(state, file))

    def load(self, path: Path) -> None:
        """Restore what `save` wrote for an agent with the same options."""
        self.workflow.load_state_dict(torch.load(path, weights_only=True))


def create_policy_model(kind: PolicyKind, spec: Spec, **options: Any) -> Policy:
    """Return a policy of a kind; its options are those of `workflow.policy`."""
    _check("policy", kind, get_args(PolicyKind))
    return Part.load(kind, options, HOME, Policy, f"create_policy_model({kind!r})").build(spec)


def create_q_critic(kind: CriticKind, spec: Spec, horizon: int = 1, **options: Any) -> QFunction:
    """Return critics of a kind; their options are those of `QConfig`."""
    config = _critic_config({"kind": kind, **options}, f"create_q_critic({kind!r})")
    return QFunction(config, spec, horizon)


def create_agent(
    kind: AgentKind,
    spec: Spec,
    policy: Options | None = None,
    critic: Options | None = None,
    **options: Any,
) -> Agent:
    """Return an agent of a kind.

    `policy` is what YAML would say (`{"_target_": "diffusion", ...}`), `critic` a kind of critic
    with its options (`{"kind": "ensemble", ...}`); `options` are the rest of the workflow's.
    """
    where = f"create_agent({kind!r})"
    _check("agent", kind, get_args(AgentKind))
    if kind == "imitation" and critic is not None:
        raise ConfigError(f"{where}: critic: imitation has no critic; remove it")
    if kind != "imitation" and critic is None:
        known = ", ".join(repr(k) for k in CRITICS)
        raise MissingCriticError(
            f"{where}: critic is missing: add one, such as critic={{'kind': 'ensemble'}} "
            f"(known kinds: {known}), or make an 'imitation' agent"
        )
    given = dict(options) if policy is None else {"policy": policy, **options}
    if critic is not None:
        given = _with_critic(kind, _critic_config(critic, f"{where}.critic"), given)
    workflow = _workflow(kind)
    made = workflow(load(workflow.Config, given, where), spec)
    return Agent(made, Phase(kind, HOOKS[kind], "offline" if kind == "offline_rl" else "online"))


def _workflow(kind: str) -> Any:
    table: dict[str, type[Workflow[Any]]] = {
        "imitation": Imitation, "actor_critic": PARL, "offline_rl": IQL,
        "diffusion_rl": DiffusionRL,
    }  # fmt: skip
    return table[kind]


def _with_critic(kind: str, critic: QConfig, options: Options) -> dict[str, Any]:
    """Return a workflow's options with its critic where it has it."""
    if kind == "actor_critic":  # online: nothing is to be held down that the data lacks
        return {"conservative": {"weight": 0.0}, **options, "critic": dump(critic)}
    return {**options, "critic": {"q": dump(critic)}}


def _critic_config(options: Options, where: str) -> QConfig:
    kind = options.get("kind")
    _check("critic", kind, CRITICS)
    given = {k: v for k, v in options.items() if k != "kind"}
    return load(QConfig, {**CRITICS[str(kind)], **given}, where)


def _check(what: str, kind: Any, known: Any) -> None:
    if kind not in known:
        raise ConfigError(unknown(f"kind of {what}", str(kind), known, f"create_{what}"))


__all__ = [
    "Agent",
    "MissingCriticError",
    "create_agent",
    "create_policy_model",
    "create_q_critic",
]
