"""Modules without reinforcement learning in them.

A *network* maps features over time to features: `network(x [b, t, f], state, is_first [b, t])`
returns `(y [b, t, out_dim], state)`; it has `out_dim` and `initial_state(batch, device)`. A network
without memory ignores the state. An *image encoder* maps `[*b, h, w, c]` bytes to `[*b, out_dim]`.
"""

PARTS = {
    "mlp": "dreamlab.nn.mlp.MLP",
    "identity": "dreamlab.nn.mlp.Identity",
    "rnn": "dreamlab.nn.rnn.RNN",
    "transformer": "dreamlab.nn.transformer.Transformer",
    "cnn": "dreamlab.nn.conv.CNN",
    "impala": "dreamlab.nn.conv.Impala",
    "patches": "dreamlab.nn.conv.Patches",
}
