"""Ask/tell searches over weight vectors: propose candidates, get their scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from dreamlab.core import world
from dreamlab.core.errors import require
from dreamlab.core.limits import Positive, Range
from dreamlab.core.tree import to_plain

EVOLUTIONS = __name__
"""Where a `_target_` finds them."""


class Evolution(Protocol):
    """A `torch.nn.Module`, built with the number of weights; what it knows is in its state."""

    candidates: Float[Tensor, "p n"]
    """What is to be tried now."""

    def tell(self, fitness: Float[Tensor, " p"]) -> None:
        """Learn how good the candidates were (more is better), and draw the next ones."""
        ...

    def mean(self) -> Float[Tensor, " n"]:
        """Return where the search is: the weights to use, if some must be named."""
        ...

    def step_size(self) -> Float[Tensor, ""]:
        """Return how far candidates are from the mean."""
        ...


@dataclass(frozen=True)
class CMAESConfig:
    """Numbers of World Models (Ha and Schmidhuber 2018)."""

    population: Annotated[int, Range(4, 65_536)] = 64
    sigma: Positive = 0.1
    """Deviation of the first candidates around zero."""


class CMAES(nn.Module):
    """CMA-ES with a full covariance, by the package `cmaes`; it computes on the CPU.

    Its random numbers come from torch's generator, one seed per generation, so that a resumed run
    draws the same candidates.
    """

    Config = CMAESConfig
    candidates: Float[Tensor, "p n"]
    UNUSED = ("_rng", "_funhist_values", "_Emean", "_ESigma")
    """What the package keeps for its own stopping rule and for another variant."""

    def __init__(self, config: CMAESConfig, dim: int) -> None:
        super().__init__()
        library = require("cmaes", "evolution")
        self.search: Any = library.CMA(
            np.zeros(dim), config.sigma, seed=0, population_size=config.population
        )
        self.register_buffer("candidates", torch.zeros(config.population, dim))
        self._draw()

    def _draw(self) -> None:
        """Draw all candidates at once: the package's `ask` multiplies matrices for each of them."""
        rng = np.random.default_rng(world.broadcast(int(torch.randint(2**62, ()))))
        vectors, lengths = self.search._eigen_decomposition()
        noise = rng.standard_normal(self.candidates.shape)
        drawn = self.search._mean + self.search._sigma * ((noise * lengths) @ vectors.T)
        self.candidates.copy_(torch.from_numpy(drawn))

    @torch.no_grad()
    def tell(self, fitness: Float[Tensor, " p"]) -> None:
        """Learn how good the candidates were, and draw the next ones; the package minimises."""
        tried, cost = self.candidates.double().cpu().numpy(), (-fitness).tolist()
        self.search.tell(list(zip(tried, cost, strict=True)))
        self._draw()

    def mean(self) -> Float[Tensor, " n"]:
        """Return the mean of what is drawn next."""
        return torch.from_numpy(self.search._mean).to(self.candidates)

    def step_size(self) -> Float[Tensor, ""]:
        """Return the overall deviation, without the covariance."""
        return torch.tensor(float(self.search._sigma), device=self.candidates.device)

    def get_extra_state(self) -> dict[str, Any]:
        return to_plain({k: v for k, v in vars(self.search).items() if k not in self.UNUSED})

    def set_extra_state(self, state: dict[str, Any]) -> None:
        arrays = {k: v.cpu().numpy().copy() for k, v in state.items() if isinstance(v, Tensor)}
        vars(self.search).update({**state, **arrays})


PARTS = {"cma_es": f"{__name__}.CMAES"}
