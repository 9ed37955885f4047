"""Policies: features in, a distribution over actions out."""
