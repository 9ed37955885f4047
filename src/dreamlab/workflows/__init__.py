"""Algorithms, one file each."""
