"""Policies for other programs: files of a network, folders for a model hub."""
