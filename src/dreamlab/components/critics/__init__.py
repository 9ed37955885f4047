"""Critics: what an action is worth, and the transitions they learn it from.

`PARTS` are the readouts that configuration can name: what the outputs of a critic stand for.
"""

PARTS = {
    "mse": "dreamlab.components.critics.readout.MSE",
    "huber": "dreamlab.components.critics.readout.Huber",
    "two_hot": "dreamlab.components.critics.readout.TwoHot",
    "hl_gauss": "dreamlab.components.critics.readout.HLGauss",
    "c51": "dreamlab.components.critics.readout.C51",
    "quantile": "dreamlab.components.critics.readout.Quantile",
}
HOME = "dreamlab.components.critics"
"""Where configuration looks up their short names."""
