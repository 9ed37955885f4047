"""Critics: action values, and the transitions they are trained on.

`PARTS` are the readouts that a configuration can name: the meaning of a critic's outputs.
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
"""Package in which a configuration looks up short names."""
