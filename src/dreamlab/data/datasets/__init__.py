"""Datasets of other programs and of our own runs, read into one form and written."""
