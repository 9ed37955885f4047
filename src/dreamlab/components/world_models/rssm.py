"""Recurrent state-space model (Hafner et al. 2019, arXiv:1811.04551), as in DreamerV3.

A latent state has a deterministic part `deter` and a stochastic part `stoch`: 32 categoricals of
`classes` each, one-hot. The posterior depends on the observation of its step, the prior does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from dreamlab.core.limits import Decay, Depth, NonNegative, Width
from dreamlab.core.types import Metrics, Mode
from dreamlab.core.workflow import compilable
from dreamlab.nn import scan
from dreamlab.nn.layers import ACTS, BlockLinear, LayerStyle, NormAct, NormMLP, dense, norm
from dreamlab.ops.functional import gumbel, one_hot_max, softmax, tanh


class Latent(NamedTuple):
    """States of the world model: a deterministic and a stochastic part."""

    deter: Float[Tensor, "*b d"]
    stoch: Float[Tensor, "*b s"]

    @property
    def feature(self) -> Float[Tensor, "*b f"]:
        """Return the input of the heads: both parts concatenated."""
        return torch.cat([self.deter, self.stoch], -1)

    def detach(self) -> Latent:
        return Latent(self.deter.detach(), self.stoch.detach())

    def float(self) -> Latent:
        return Latent(self.deter.float(), self.stoch.float())

    def flat(self) -> Latent:
        """Reshape [b, t, ...] to [b * t, ...]."""
        return Latent(self.deter.flatten(0, 1), self.stoch.flatten(0, 1))

    def masked(self, keep: Float[Tensor, "*b 1"]) -> Latent:
        """Set states to zero where `keep` is 0, as before the start of an episode."""
        return Latent(self.deter * keep, self.stoch * keep)


@dataclass(frozen=True)
class RSSMConfig(LayerStyle):
    """Sizes and layers."""

    deter: Width = 8192
    hidden: Width = 1024
    stoch: Width = 32
    classes: Width = 64
    blocks: Width = 8
    unimix: Decay = 0.01
    """Share of the uniform distribution in every categorical, to bound probabilities from zero."""
    prior_layers: Depth = 2
    post_layers: Depth = 1
    dyn_layers: Depth = 1
    free_nats: NonNegative = 1.0
    """Free nats of KL divergence between posterior and prior per step."""

    def __post_init__(self) -> None:
        if self.deter % self.blocks:
            raise ValueError(f"deter={self.deter} must be a multiple of blocks={self.blocks}")


class BlockGRU(nn.Module):
    """Recurrent cell with a block-diagonal GRU."""

    def __init__(self, config: RSSMConfig, action_dim: int) -> None:
        super().__init__()
        c = self.config = config
        stoch = c.stoch * c.classes
        self.inputs = nn.ModuleList(NormAct(n, c.hidden, c) for n in (c.deter, stoch, action_dim))
        width = c.deter // c.blocks
        dims = [width + 3 * c.hidden] + [width] * c.dyn_layers
        pairs = pairwise(dims)
        self.hidden = nn.ModuleList(BlockLinear(c.blocks, a, b) for a, b in pairs)
        self.norms = nn.ModuleList(norm(c.norm, c.deter) for _ in range(c.dyn_layers))
        self.gates = BlockLinear(c.blocks, width, 3 * width)
        self.act = ACTS[c.act]

    def forward(self, state: Latent, action: Float[Tensor, "b a"]) -> Float[Tensor, "b d"]:
        """Return the next deterministic state."""
        deter, blocks = state.deter, self.config.blocks
        n = deter.shape[0]  # not len(): a traced number of rows may vary
        parts = (deter, state.stoch, action)
        x = torch.cat([net(p) for net, p in zip(self.inputs, parts, strict=True)], -1)
        memory = deter.view(n, blocks, -1)
        for i, (linear, normalise) in enumerate(zip(self.hidden, self.norms, strict=True)):
            y = linear(memory, x) if i == 0 else linear(x)
            x = self.act(normalise(y.flatten(1))).view(n, blocks, -1)
        reset, cand, update = self.gates(x).chunk(3, -1)
        cand = tanh(torch.sigmoid(reset) * cand)
        update = torch.sigmoid(update - 1)
        return (update * cand + (1 - update) * memory).reshape(n, -1)


class OneHot:
    """Independent categoricals, mixed with a small uniform share."""

    def __init__(self, logits: Float[Tensor, "*b s c"], unimix: float) -> None:
        probs = softmax(logits.float())
        if unimix:
            probs = (1 - unimix) * probs + unimix / logits.shape[-1]
        self.probs, self.log_probs = probs, torch.log(probs)

    def sample(self, noise: Float[Tensor, "*b s c"]) -> Float[Tensor, "*b s*c"]:
        """Return one-hot samples with straight-through gradients to `probs`.

        `noise` is Gumbel noise of the logits' shape: zeros give the mode.
        """
        hard = one_hot_max(self.log_probs.detach() + noise)
        if self.probs.requires_grad:
            hard = hard + (self.probs - self.probs.detach())
        return hard.flatten(-2)

    def entropy(self) -> Float[Tensor, "*b"]:
        return -(self.probs * self.log_probs).sum((-1, -2))

    def kl(self, other: OneHot) -> Float[Tensor, "*b"]:
        """Return KL(self || other), summed over the categoricals."""
        return (self.probs * (self.log_probs - other.log_probs)).sum((-1, -2))

    def detach(self) -> OneHot:
        out = object.__new__(OneHot)
        out.probs, out.log_probs = self.probs.detach(), self.log_probs.detach()
        return out


def follow(
    step: Callable[..., tuple[Latent, Float[Tensor, "b ..."]]],
    state: Latent,
    inputs: Sequence[Shaped[Tensor, "b t ..."]],
    noise: Float[Tensor, "t b ..."],
) -> tuple[Latent, Float[Tensor, "b t ..."]]:
    """Apply `step` along sequences; return its stacked results."""
    states: list[Latent] = []
    stats: list[Tensor] = []
    for *now, chance in zip(*(x.unbind(1) for x in inputs), noise, strict=True):
        state, out = step(state, *now, chance)
        states.append(state)
        stats.append(out)
    deter, stoch = (torch.stack(x, 1) for x in zip(*states, strict=True))
    return Latent(deter, stoch), torch.stack(stats, 1)


class RSSM(nn.Module):
    """The recurrent cell, and the prior and posterior heads."""

    Config = RSSMConfig

    def __init__(self, config: RSSMConfig, token_dim: int, action_dim: int) -> None:
        super().__init__()
        c = self.config = config
        self.deter_dim, self.stoch_dim = c.deter, c.stoch * c.classes
        self.out_dim = self.deter_dim + self.stoch_dim
        self.cell = BlockGRU(c, action_dim)
        self.prior_net = NormMLP(c.deter, c.hidden, c.prior_layers, c)
        self.prior_out = dense(self.prior_net.out_dim, self.stoch_dim)
        self.post_net = NormMLP(c.deter + token_dim, c.hidden, c.post_layers, c)
        self.post_out = dense(self.post_net.out_dim, self.stoch_dim)
        usual = (c.norm, c.act) == scan.STYLE and c.dyn_layers == c.post_layers == 1
        self.scannable = usual and scan.fits(c.deter, c.blocks, c.hidden, self.stoch_dim)

    def initial(self, num: int, device: Any) -> Latent:
        """Return the initial state: zeros."""
        zeros = lambda n: torch.zeros(num, n, device=device)  # noqa: E731
        return Latent(zeros(self.config.deter), zeros(self.stoch_dim))

    def noise(self, *shape: int, device: Any, mode: Mode = Mode.TRAIN) -> Float[Tensor, "... s c"]:
        """Sample Gumbel noise for states of this shape; zeros, for the mode, if fixed."""
        shape = (*shape, self.config.stoch, self.config.classes)
        return (
            torch.zeros(shape, device=device)
            if mode is Mode.FIXED
            else gumbel(*shape, device=device)
        )

    def prior(self, deter: Float[Tensor, "*b d"]) -> Float[Tensor, "*b s c"]:
        """Return the prior logits."""
        return self._logits(self.prior_out(self.prior_net(deter)))

    def posterior(
        self, deter: Float[Tensor, "*b d"], tokens: Float[Tensor, "*b e"]
    ) -> Float[Tensor, "*b s c"]:
        """Return the posterior logits."""
        return self._logits(self.post_out(self.post_net(torch.cat([deter, tokens], -1))))

    def _logits(self, flat: Float[Tensor, "*b k"]) -> Float[Tensor, "*b s c"]:
        return flat.unflatten(-1, (self.config.stoch, self.config.classes))

    def dist(self, logits: Float[Tensor, "*b s c"]) -> OneHot:
        """Return the distribution with these logits."""
        return OneHot(logits, self.config.unimix)

    def observe_step(
        self,
        state: Latent,
        action: Float[Tensor, "b a"],
        tokens: Float[Tensor, "b e"],
        is_first: Bool[Tensor, " b"],
        noise: Float[Tensor, "b s c"],
    ) -> tuple[Latent, Float[Tensor, "b s c"]]:
        """Return the next state and the posterior logits; `action` led to this step."""
        keep = (~is_first)[:, None].to(action.dtype)
        state, action = state.masked(keep), action * keep
        deter = self.cell(state, action)
        logits = self.posterior(deter, tokens)
        return Latent(deter, self.dist(logits).sample(noise).to(deter.dtype)), logits

    def observe(
        self,
        state: Latent,
        action: Float[Tensor, "b t a"],
        tokens: Float[Tensor, "b t e"],
        is_first: Bool[Tensor, "b t"],
        noise: Float[Tensor, "t b s c"] | None = None,
    ) -> tuple[Latent, Float[Tensor, "b t s c"]]:
        """Filter sequences from `state`; `action[:, i]` led to step i; return states, logits."""
        b, t = is_first.shape
        noise = self.noise(t, b, device=tokens.device) if noise is None else noise
        if self.scannable and scan.available(tokens):
            return self._scan(state, action, tokens, is_first, noise)
        return follow(self.follow_step, state, (action, tokens, is_first), noise)

    @compilable
    def follow_step(
        self,
        state: Latent,
        action: Float[Tensor, "b a"],
        tokens: Float[Tensor, "b e"],
        is_first: Bool[Tensor, " b"],
        noise: Float[Tensor, "b s c"],
    ) -> tuple[Latent, Float[Tensor, "b s c"]]:
        """Call `observe_step` within a sequence."""
        return self.observe_step(state, action, tokens, is_first, noise)

    def _scan(
        self,
        state: Latent,
        action: Float[Tensor, "b t a"],
        tokens: Float[Tensor, "b t e"],
        is_first: Bool[Tensor, "b t"],
        noise: Float[Tensor, "t b s c"],
    ) -> tuple[Latent, Float[Tensor, "b t s c"]]:
        """Compute `follow` with `observe_step` in one fused call."""
        c, cell = self.config, self.cell
        layers = scan.Layers(
            cell.inputs[0], cell.inputs[1], cell.hidden[0], cell.norms[0], cell.gates,
            self.post_net[0], self.post_out,
        )  # fmt: skip
        choices = scan.Choices(c.stoch, c.classes, c.unimix)
        inputs = (self.read_action(action, is_first), tokens, is_first)
        deter, random, logits = scan.scan(
            layers, choices, inputs, noise, (state.deter, state.stoch)
        )
        return Latent(deter, random), self._logits(logits)

    @compilable
    def read_action(
        self, action: Float[Tensor, "b t a"], is_first: Bool[Tensor, "b t"]
    ) -> Float[Tensor, "b t u"]:
        """Return the cell's input layer of actions, which are zero where an episode starts."""
        return self.cell.inputs[2](action * (~is_first)[..., None].to(action.dtype))

    def compress(self, latent: Latent) -> dict[str, Shaped[Tensor, " ..."]]:
        """Return states in the replay's format: half precision, and class indices."""
        index = self._logits(latent.stoch).argmax(-1)
        return {"deter": latent.deter.to(torch.bfloat16), "stoch": index.to(torch.uint8)}

    def decompress(self, extras: dict[str, Shaped[Tensor, " ..."]]) -> Latent:
        """Return the states stored by `compress`."""
        stoch = F.one_hot(extras["stoch"].long(), self.config.classes).flatten(-2)
        return Latent(extras["deter"].float(), stoch.float())

    def imagine_step(
        self, state: Latent, action: Float[Tensor, "b a"], noise: Float[Tensor, "b s c"]
    ) -> Latent:
        """Sample the next state from the prior."""
        deter = self.cell(state, action)
        return Latent(deter, self.dist(self.prior(deter)).sample(noise).to(deter.dtype))

    def kl(
        self, post: Float[Tensor, "*b s c"], prior: Float[Tensor, "*b s c"]
    ) -> tuple[Float[Tensor, "*b"], Float[Tensor, "*b"], Metrics]:
        """Return the KL losses of the prior and of the posterior."""
        p, q, free = self.dist(post), self.dist(prior), self.config.free_nats
        dyn = p.detach().kl(q).clamp(min=free)
        rep = p.kl(q.detach()).clamp(min=free)
        return dyn, rep, {"dyn_ent": q.entropy().mean(), "rep_ent": p.entropy().mean()}
