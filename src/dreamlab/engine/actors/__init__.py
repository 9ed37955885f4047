"""Collectors and evaluation in processes of their own, here or on a Ray cluster."""
