"""Collectors and evaluation in their own processes, here or on a Ray cluster."""
