"""Intrinsic rewards for exploration."""
