"""One lab for agents that learn a model of their world, and for the baselines they are measured against."""

__version__ = "0.1.0"
