"""What only makes something faster: kernels, graphs, compilation. Everything runs without it.

`dispatch` decides between the reference and a faster form. Modules of `nn` and functions of `ops`
ask it; algorithms ask nothing.
"""
