"""Ask/tell evolution strategies over weight vectors."""

from __future__ import annotations

import warnings
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
"""Module in which `_target_` looks up evolution strategies."""


class Evolution(Protocol):
    """A `torch.nn.Module` built with the number of weights; its state dict holds the search."""

    candidates: Float[Tensor, "p n"]
    """Current candidates."""

    def tell(self, fitness: Float[Tensor, " p"]) -> None:
        """Update the search with the candidates' fitness (higher is better); sample new ones.

        A fitness that is not finite has to count as the worst: see `as_worst`.
        """
        ...

    def mean(self) -> Float[Tensor, " n"]:
        """Return the search mean, the weights to use for acting."""
        ...

    def step_size(self) -> Float[Tensor, ""]:
        """Return the step size of the search."""
        ...


def as_worst(fitness: Float[Tensor, " p"]) -> Float[Tensor, " p"]:
    """Return the fitness with NaN and infinities replaced by the lowest that is finite."""
    fine = fitness.isfinite()
    lowest = torch.where(fine, fitness, torch.inf).amin()
    return torch.where(fine, fitness, torch.where(lowest.isfinite(), lowest, 0.0))


@dataclass(frozen=True)
class CMAESConfig:
    """Hyperparameters of World Models (Ha and Schmidhuber 2018)."""

    population: Annotated[int, Range(4, 65_536)] = 64
    sigma: Positive = 0.1
    """Initial standard deviation of the candidates around zero."""


class CMAES(nn.Module):
    """CMA-ES with a full covariance, by the package `cmaes`; it runs on the CPU.

    Each generation is seeded from torch's generator, so that a resumed run samples the same
    candidates.
    """

    Config = CMAESConfig
    candidates: Float[Tensor, "p n"]
    UNUSED = ("_rng", "_funhist_values", "_Emean", "_ESigma")
    """State of the package's own stopping rule and of another variant."""

    def __init__(self, config: CMAESConfig, dim: int) -> None:
        super().__init__()
        library = require("cmaes", "evolution")
        self.search: Any = library.CMA(
            np.zeros(dim), config.sigma, seed=0, population_size=config.population
        )
        self.told = False  # that some fitness was not finite
        self.register_buffer("candidates", torch.zeros(config.population, dim))
        self._draw()

    def _draw(self) -> None:
        """Sample all candidates at once: the package's `ask` is slower, one by one."""
        rng = np.random.default_rng(world.broadcast(int(torch.randint(2**62, ()))))
        vectors, lengths = self.search._eigen_decomposition()
        noise = rng.standard_normal(self.candidates.shape)
        drawn = self.search._mean + self.search._sigma * ((noise * lengths) @ vectors.T)
        self.candidates.copy_(torch.from_numpy(drawn))

    @torch.no_grad()
    def tell(self, fitness: Float[Tensor, " p"]) -> None:
        """Update the search and sample new candidates; the package minimizes."""
        odd = int((~fitness.isfinite()).sum())
        if odd and not self.told:
            self.told = True
            text = "the fitness of {} of {} candidates is not finite: it counts as the worst"
            warnings.warn(text.format(odd, len(fitness)), stacklevel=2)
        tried, cost = self.candidates.double().cpu().numpy(), (-as_worst(fitness)).tolist()
        self.search.tell(list(zip(tried, cost, strict=True)))
        self._draw()

    def mean(self) -> Float[Tensor, " n"]:
        """Return the mean of the sampling distribution."""
        return torch.from_numpy(self.search._mean).to(self.candidates)

    def step_size(self) -> Float[Tensor, ""]:
        """Return the overall step size, without the covariance."""
        return torch.tensor(float(self.search._sigma), device=self.candidates.device)

    def get_extra_state(self) -> dict[str, Any]:
        return to_plain({k: v for k, v in vars(self.search).items() if k not in self.UNUSED})

    def set_extra_state(self, state: dict[str, Any]) -> None:
        arrays = {k: v.cpu().numpy().copy() for k, v in state.items() if isinstance(v, Tensor)}
        vars(self.search).update({**state, **arrays})


PARTS = {"cma_es": f"{__name__}.CMAES"}
