"""Recurrent state-space models before DreamerV3: PlaNet's, DreamerV1's and DreamerV2's.

They differ in the stochastic part of the state (Gaussian or categorical) and in the cell:

| model | stochastic part | cell |
|---|---|---|
| PlaNet | Gaussian | GRU with the reset gate before the matrix product (Cho et al. 2014) |
| DreamerV1 | Gaussian | GRU with the reset gate after the matrix product |
| DreamerV2 | categorical | GRU with all gates from one product, layer-normalized |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from dreamlab.components.world_models.rssm import Latent, OneHot, follow
from dreamlab.core.limits import Positive, Range, Width
from dreamlab.core.types import Mode
from dreamlab.nn.layers import ActKind, LayerNorm, LayerStyle, NormAct, dense
from dreamlab.ops.functional import gumbel, log_softmax, tanh

CellKind = Literal["reset_before", "reset_after", "layer_norm"]


@dataclass(frozen=True)
class PlaNetRSSMConfig:
    """Sizes and layers."""

    deter: Width = 200
    hidden: Width = 200
    stoch: Width = 30
    classes: Annotated[int, Range(0, 65_536)] = 0
    """Classes of each categorical; 0 makes the stochastic part Gaussian."""
    cell: CellKind = "reset_after"
    act: ActKind = "elu"
    min_std: Positive = 0.1
    """Minimum standard deviation of the Gaussians."""

    @property
    def stoch_dim(self) -> int:
        return self.stoch * max(self.classes, 1)


class Random(Protocol):
    """Common interface of stochastic parts."""

    def sample(self, noise: Float[Tensor, " ..."]) -> Float[Tensor, "*b s"]: ...
    def entropy(self) -> Float[Tensor, "*b"]: ...
    def kl(self, other: Any) -> Float[Tensor, "*b"]: ...
    def detach(self) -> Any: ...


class Normals:
    """Independent Gaussians; divergences and entropies are summed over the last axis."""

    def __init__(self, mean: Float[Tensor, "*b s"], std: Float[Tensor, "*b s"]) -> None:
        self.mean, self.std = mean, std

    def sample(self, noise: Float[Tensor, "*b s"]) -> Float[Tensor, "*b s"]:
        """Return reparameterized samples; zero noise gives the mean."""
        return torch.addcmul(self.mean, self.std, noise)

    def entropy(self) -> Float[Tensor, "*b"]:
        return (self.std.log() + 1.4189385).sum(-1)

    def kl(self, other: Normals) -> Float[Tensor, "*b"]:
        """Return KL(self || other)."""
        ratio = (self.std / other.std).square()
        apart = ((self.mean - other.mean) / other.std).square()
        return 0.5 * (ratio + apart - 1 - ratio.log()).sum(-1)

    def detach(self) -> Normals:
        return Normals(self.mean.detach(), self.std.detach())


class Choices(OneHot):
    """Independent categoricals without uniform mixing."""

    def __init__(self, logits: Float[Tensor, "*b s c"]) -> None:
        self.log_probs = log_softmax(logits.float())
        self.probs = self.log_probs.exp()


class ResetBeforeCell(nn.Module):
    """GRU whose candidate reads the gated state; gate biases start at 1."""

    def __init__(self, in_dim: int, size: int) -> None:
        super().__init__()
        self.gates = dense(in_dim + size, 2 * size)
        self.cand = dense(in_dim + size, size)

    def start(self) -> None:
        """Initialize the gate biases to 1."""
        nn.init.ones_(self.gates.bias)

    def forward(
        self, x: Float[Tensor, "b d"], memory: Float[Tensor, "b k"]
    ) -> Float[Tensor, "b k"]:
        gates = torch.sigmoid(self.gates(torch.cat([x, memory], -1)))
        reset, keep = gates.chunk(2, -1)
        cand = tanh(self.cand(torch.cat([x, reset * memory], -1)))
        return keep * memory + (1 - keep) * cand


class LayerNormCell(nn.Module):
    """GRU with all gates from one layer-normalized product; it starts slow to change."""

    def __init__(self, in_dim: int, size: int) -> None:
        super().__init__()
        self.gates = dense(in_dim + size, 3 * size, bias=False)
        self.norm = LayerNorm(3 * size)

    def forward(
        self, x: Float[Tensor, "b d"], memory: Float[Tensor, "b k"]
    ) -> Float[Tensor, "b k"]:
        parts = self.norm(self.gates(torch.cat([x, memory], -1)))
        reset, cand, update = parts.chunk(3, -1)
        cand = tanh(torch.sigmoid(reset) * cand)
        update = torch.sigmoid(update - 1)
        return update * cand + (1 - update) * memory


CELLS = {
    "reset_before": ResetBeforeCell, "reset_after": nn.GRUCell, "layer_norm": LayerNormCell,
}  # fmt: skip


class PlaNetRSSM(nn.Module):
    """The recurrent cell, and the prior and posterior heads."""

    def __init__(self, config: PlaNetRSSMConfig, token_dim: int, action_dim: int) -> None:
        super().__init__()
        c = self.config = config
        style = LayerStyle("none", c.act)
        out_dim = c.stoch_dim if c.classes else 2 * c.stoch
        self.out_dim = c.deter + c.stoch_dim
        self.inputs = NormAct(c.stoch_dim + action_dim, c.hidden, style)
        self.cell = CELLS[c.cell](c.hidden, c.deter)
        self.prior_net = nn.Sequential(NormAct(c.deter, c.hidden, style), dense(c.hidden, out_dim))
        post = NormAct(c.deter + token_dim, c.hidden, style)
        self.post_net = nn.Sequential(post, dense(c.hidden, out_dim))

    def initial(self, num: int, device: Any) -> Latent:
        """Return the initial state: zeros."""
        zeros = lambda n: torch.zeros(num, n, device=device)  # noqa: E731
        return Latent(zeros(self.config.deter), zeros(self.config.stoch_dim))

    def noise(self, *shape: int, device: Any, mode: Mode = Mode.TRAIN) -> Float[Tensor, " ..."]:
        """Sample noise for states of this shape; zeros, for the mode, if fixed."""
        c = self.config
        if mode is Mode.FIXED:
            return torch.zeros(*shape, c.stoch, *([c.classes] if c.classes else []), device=device)
        if c.classes:
            return gumbel(*shape, c.stoch, c.classes, device=device)
        return torch.randn(*shape, c.stoch, device=device)

    def prior(self, deter: Float[Tensor, "*b d"]) -> Float[Tensor, "*b k"]:
        """Return the parameters of the prior."""
        return self.prior_net(deter)

    def posterior(
        self, deter: Float[Tensor, "*b d"], tokens: Float[Tensor, "*b e"]
    ) -> Float[Tensor, "*b k"]:
        """Return the parameters of the posterior."""
        return self.post_net(torch.cat([deter, tokens], -1))

    def dist(self, stats: Float[Tensor, "*b k"]) -> Random:
        """Return the distribution with these parameters."""
        c = self.config
        if c.classes:
            return Choices(stats.unflatten(-1, (c.stoch, c.classes)))
        mean, raw = stats.float().chunk(2, -1)
        return Normals(mean, F.softplus(raw) + c.min_std)

    def step(self, state: Latent, action: Float[Tensor, "b a"]) -> Float[Tensor, "b d"]:
        """Return the deterministic state after an action."""
        return self.cell(self.inputs(torch.cat([state.stoch, action], -1)), state.deter)

    def observe_step(
        self,
        state: Latent,
        action: Float[Tensor, "b a"],
        tokens: Float[Tensor, "b e"],
        is_first: Bool[Tensor, " b"],
        noise: Float[Tensor, "b ..."],
    ) -> tuple[Latent, Float[Tensor, "b k"]]:
        """Return the next state and the posterior parameters; `action` led to this step."""
        keep = (~is_first)[:, None].to(action.dtype)
        deter = self.step(state.masked(keep), action * keep)
        stats = self.posterior(deter, tokens)
        return Latent(deter, self.dist(stats).sample(noise).to(deter.dtype)), stats

    def observe(
        self,
        state: Latent,
        action: Float[Tensor, "b t a"],
        tokens: Float[Tensor, "b t e"],
        is_first: Bool[Tensor, "b t"],
        noise: Float[Tensor, "t b ..."],
    ) -> tuple[Latent, Float[Tensor, "b t k"]]:
        """Filter sequences from `state`; `action[:, i]` led to step i."""
        return follow(self.observe_step, state, (action, tokens, is_first), noise)

    def imagine_step(
        self, state: Latent, action: Float[Tensor, "b a"], noise: Float[Tensor, "b ..."]
    ) -> Latent:
        """Sample the next state from the prior."""
        deter = self.step(state, action)
        return Latent(deter, self.dist(self.prior(deter)).sample(noise).to(deter.dtype))
