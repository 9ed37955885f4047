"""Experiments as data: the run directory and what is made of it."""
