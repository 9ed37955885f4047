"""One lab for agents that learn a model of their world, and for their baselines."""

__version__ = "0.1.0"
