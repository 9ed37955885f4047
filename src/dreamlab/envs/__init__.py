"""Environments: suites that make them, wrappers, vectors, a validator, and dummies for tests."""
