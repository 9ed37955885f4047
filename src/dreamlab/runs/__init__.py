"""Experiments as data: the run folder and what is made of it."""
