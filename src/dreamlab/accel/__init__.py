"""Optional acceleration: kernels, graphs, compilation. Everything also runs without it.

`dispatch` decides between the reference and a faster form. It is called by modules of `nn` and
functions of `ops`, never by algorithms.
"""
