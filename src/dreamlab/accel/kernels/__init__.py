"""Triton kernels, imported by `dispatch.kernels` where they are launched.

No import hook may cover this package: a decorated kernel cannot be compiled.
"""
