"""The parts of a decision of TD-MPC2, and the layers of its plans beside plain torch.

For plan_kernels.py, which times and checks them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dreamlab.accel import mppi
from dreamlab.accel.latent_plans import Acts, Layers, Norm, Rows
from dreamlab.accel.plan_rows import WholeRows
from dreamlab.accel.plan_whole import Activated
from dreamlab.core.config import load
from dreamlab.core.types import ArraySpec, Spec
from dreamlab.nn import latent_plans
from dreamlab.workflows.tdmpc2 import TDMPC2, TDMPC2Config

Role = tuple[str, str]
"""A kernel, and for how many rows."""
Pairs = list[tuple[Tensor, Tensor]]
"""What a kernel computed, and what it should."""
ACTIONS = 6


def agent_of(size: str, device: str) -> TDMPC2:
    """Return an agent whose rewards and values are not all 0."""
    torch.manual_seed(0)
    spec = Spec({"state": ArraySpec((24,))}, ArraySpec((ACTIONS,), low=-1.0, high=1.0), 500)
    agent = TDMPC2(load(TDMPC2Config, {"size": size}, "workflow"), spec).to(device)
    for weight in (agent.model.reward.out.weight, agent.critics.linears[-1].weight):
        weight.data.normal_(0.0, 0.05)
    return agent


class Parts:
    """The parts of a decision that have kernels, on random numbers."""

    def __init__(self, agent: TDMPC2, envs: int, device: str) -> None:
        self.agent, n = agent, agent.sizes
        rand = lambda *shape: torch.randn(*shape, device=device)  # noqa: E731
        self.task = torch.zeros(envs, dtype=torch.int64, device=device)
        self.z = agent.model.encode({"state": rand(envs, 24)}, self.task)
        h, s = n.planner.horizon, n.planner.samples
        self.plans, self.last = rand(envs, s, h, ACTIONS).clamp(-1, 1), rand(envs, s, ACTIONS)
        self.noise = rand(h, envs, n.proposed, ACTIONS)
        self.pair = torch.tensor([3 % n.critics, 1], device=device)
        self.score = rand(envs, s)
        self.nets = agent.pack(self.z, self.task)

    def gains(self) -> Any:
        found = latent_plans.gains(self.nets, self.plans, self.last, self.pair)
        return torch.cat([found[:-2], found[-2:].sum(0)[None]])

    def plain_gains(self) -> Any:
        given = (self.plans, self.last, self.pair)
        return self.agent.parts.gains(self.z, self.task, None, *given)

    def proposals(self, fast: bool = True) -> Any:
        nets = self.nets if fast else None
        return self.agent.propose(self.z, self.task, self.noise, nets)

    def told(self) -> Callable[[], Any]:
        """Return a launch of a refit alone."""
        c = self.agent.sizes.planner
        score = self.score.contiguous()
        return lambda: mppi.tell(self.plans, score, c.elites, 0.5, 0.05, 2.0)

    def tell(self) -> Any:
        plan = self.agent.planner.start(self.plans[:, 0], self.plans[:, 0])
        return self.agent.planner.tell(plan, self.plans, self.score)


def fill(rows: Rows) -> Rows:
    """Put random numbers into a layer's output, and what its writer says of its parts, if any."""
    rows.x.normal_()
    if not rows.part.numel():
        return rows
    parts = rows.x.float().unflatten(-1, (rows.part.shape[-1], -1))
    rows.part[..., 0, :] = parts.mean(-1)
    rows.part[..., 1, :] = parts.var(-1, correction=0) * parts.shape[-1]
    return rows


def active(x: Tensor, norm: Norm) -> Tensor:
    """Return an activated layer."""
    y = F.layer_norm(x.float(), norm.scale.shape, norm.scale, norm.shift, 1e-5)
    if not norm.group:
        return F.mish(y)
    return y.unflatten(-1, (-1, norm.group)).softmax(-1).flatten(-2)


def written(y: Rows) -> Tensor:
    """Return a layer's output as the writer's means and spreads describe it."""
    parts = y.x.float().unflatten(-1, (y.part.shape[-1], -1))
    return torch.stack([parts.mean(-1), parts.var(-1, correction=0) * parts.shape[-1]], -2)


class Bench:
    """Each kernel beside what it should compute, on random numbers."""

    def __init__(self, parts: Parts, role: Role) -> None:
        torch.manual_seed(1)
        kind, size = role
        packed = parts.nets
        n, self.parts = packed.sizes, parts
        plans = parts.noise.shape[2] if size == "tiny" else parts.plans.shape[1]
        self.n, self.nets = n, packed.weights
        self.layers: Any = self.form(kind)(n, self.nets, plans, list(packed.log_std))
        self.noise = (parts.noise[0] if size == "tiny" else parts.last).contiguous()
        self.actions = torch.rand(n.envs, plans, n.horizon, n.a, device=parts.z.device) * 2 - 1
        self.first = self.actions[:, :, 0]
        d = self.nets.dynamics
        self.acts = Acts(self.first, self.first.stride(1), d.action)
        self.norms = (Norm(d.first_scale, d.first_shift), Norm(d.second_scale, d.second_shift))
        self.z, self.x = (fill(self.layers.room("layer", k)) for k in (n.d, n.w))
        if "value" in kind:
            self.states = fill(self.layers.room("layer", n.d, n.horizon))
            name = "value_first" if kind == "value_hidden" else "value_hidden"
            self.y = fill(self.layers.room(name, n.w, n.horizon + 2))

    def form(self, kind: str) -> type[Layers]:
        return WholeRows if kind.startswith("row") else Layers

    def read(self, x: Rows, norm: Norm) -> Tensor:
        """Return what a reader makes of a layer's output."""
        return active(x.x, norm)

    def stored(self, y: Tensor, norm: Norm) -> Tensor:
        """Return what is stored of a layer's output."""
        return y

    def hidden(self) -> tuple[Rows, Rows]:
        """Launch two layers."""
        la, d = self.layers, self.nets.dynamics
        one = la.layer(self.z, la.latent, d.first, d.start[1], self.acts)
        return one, la.layer(self.x, self.norms[0], d.second, d.second_bias)

    def start(self) -> tuple[Rows]:
        """Launch what begins at the environments' latents."""
        return (self.layers.begin(self.nets.dynamics, self.acts),)

    def run(self, kind: str) -> Any:
        """Launch a kernel; the one of most layers twice."""
        la, pair = self.layers, self.parts.pair
        if kind.endswith("layer"):
            return self.hidden()
        if kind.endswith("begin"):
            return self.start()
        if kind.endswith("act"):
            out = torch.empty_like(self.actions)[:, :, 0]
            la.choose(self.x, self.noise, None, out)
            return out
        if kind.endswith("value_first"):
            last = self.first.contiguous()
            return (la.value_first(self.states, self.actions, last, pair),)
        if kind.endswith("value_hidden"):
            return (la.value_hidden(self.y, pair),)
        return la.value_out(self.y, pair)

    def pairs(self, kind: str) -> Pairs:
        """Return what a kernel computes, and what it should."""
        name = kind.removeprefix("row_").removeprefix("whole_")
        found, wanted = self.run(kind), getattr(self, f"_{name}")()
        if isinstance(found, Tensor):
            return [(found, wanted)]
        pairs: Pairs = [(y.x, right) for y, right in zip(found, wanted, strict=True)]
        return pairs + [(y.part, written(y)) for y in found if y.part.numel()]

    def _first(self, start: Tensor, action: Tensor, weight: Tensor) -> Tensor:
        """Return the part of a first layer [rows, w] that is not the latent's."""
        own = action.to(weight.dtype).float() @ weight.float()
        return (start.float()[:, None] + own).flatten(0, 1)

    def _layer(self) -> list[Tensor]:
        d = self.nets.dynamics
        one = F.linear(self.read(self.z, self.layers.latent), d.first.float())
        one = one + self._first(d.start[1], self.first, d.action)
        two = F.linear(self.read(self.x, self.norms[0]), d.second.float(), d.second_bias.float())
        return [self.stored(y, norm) for y, norm in zip((one, two), self.norms, strict=True)]

    def _begin(self) -> list[Tensor]:
        d = self.nets.dynamics
        y = active(self._first(d.start[0], self.first, d.action), self.norms[0])
        return [F.linear(y, d.second.float(), d.second_bias.float())]

    def _act(self) -> Tensor:
        p, (low, high) = self.nets.policy, self.layers.bounds
        y = self.read(self.x, Norm(p.second_scale, p.second_shift))
        mean, raw = F.linear(y, p.out.float(), p.out_bias.float()).chunk(2, -1)
        std = torch.exp(low + 0.5 * (high - low) * (torch.tanh(raw) + 1))
        shape = self.first.shape
        return torch.tanh(mean.view(shape) + self.noise * std.view(shape))

    def net(self, job: int, *names: str) -> list[Tensor]:
        """Return weights of the critic or reward that a job is for."""
        own = [getattr(self.nets.critics if job < 2 else self.nets.reward, x) for x in names]
        if job < 2:  # the norms' are flat
            own = [x.reshape(len(self.nets.critics.first), *x.shape[1:] or (-1,)) for x in own]
            own = [x[self.parts.pair[job]] for x in own]
        return own

    def norm(self, job: int, layer: str) -> Norm:
        scale, shift = self.net(job, f"{layer}_scale", f"{layer}_shift")
        return Norm(scale, shift)

    def _value_first(self) -> list[Tensor]:
        r, q, n = self.nets.reward, self.nets.critics, self.n
        jobs: list[Tensor] = []
        for i in self.parts.pair.tolist():
            weight, end = q.first[i], self.read(self.states.at(-1), self.layers.latent)
            own = self._first(q.start[i], self.first, weight[n.step - n.a :])
            jobs.append(end @ weight[: n.d].float() + own)
        for t in reversed(range(n.horizon)):
            y = self._first(r.start[int(t > 0)], self.actions[:, :, t], r.action)
            if t:
                y = y + self.read(self.states.at(t - 1), self.layers.latent) @ r.first.float()
            jobs.append(y)
        return [torch.stack([self.stored(y, self.norm(i, "first")) for i, y in enumerate(jobs)])]

    def _jobs(self, kind: str, name: str) -> list[Tensor]:
        """Return the sums of a layer of critics and rewards."""
        jobs: list[Tensor] = []
        for job in range(self.n.horizon + 2):
            weight, bias = self.net(job, name, f"{name}_bias")
            x = self.read(self.y.at(job), self.norm(job, kind))
            jobs.append(x @ weight.float() + bias.float())
        return jobs

    def _value_hidden(self) -> list[Tensor]:
        jobs = enumerate(self._jobs("first", "second"))
        return [torch.stack([self.stored(y, self.norm(i, "second")) for i, y in jobs])]

    def _value_out(self) -> Tensor:
        logits = torch.stack(self._jobs("second", "out")).softmax(-1)
        up, down = logits.chunk(2, -1)
        mean = ((up - down) * self.nets.centre).sum(-1)
        value = mean.sign() * torch.expm1(mean.abs())
        shape = (self.n.horizon + 2, self.n.envs, -1)
        return torch.cat([value[2:].flip(0), value[:2] / 2]).view(shape)


class WholeBench(Bench):
    """As `Bench`, for kernels whose input is activated, and what they store."""

    def form(self, kind: str) -> type[Layers]:
        return Activated

    def read(self, x: Rows, norm: Norm) -> Tensor:
        return x.x.float()

    def stored(self, y: Tensor, norm: Norm) -> Tensor:
        return active(y, norm)

    def hidden(self) -> tuple[Rows, Rows]:
        la, d = self.layers, self.nets.dynamics
        one = la.finished(self.z.x, d.first, d.start[1], self.norms[0], self.acts)
        two = la.finished(self.x.x, d.second, d.second_bias, self.norms[1])
        return Rows(one, self.x.part), Rows(two, self.x.part)

    def start(self) -> tuple[Rows]:
        d = self.nets.dynamics
        y = self.layers.finished(None, d.first, d.start[0], self.norms[0], self.acts)
        return (Rows(y, self.x.part),)

    def _begin(self) -> list[Tensor]:
        d = self.nets.dynamics
        return [active(self._first(d.start[0], self.first, d.action), self.norms[0])]


def bench_of(parts: Parts, role: Role) -> Bench:
    """Return how a kernel is tried."""
    return (WholeBench if role[0].startswith("whole") else Bench)(parts, role)
