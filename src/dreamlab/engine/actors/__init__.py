"""Collectors, evaluation and logging in their own processes; collectors also on a Ray cluster."""
