"""Neural network modules, independent of reinforcement learning.

A *network* maps features over time to features: `network(x [b, t, f], state, is_first [b, t])`
returns `(y [b, t, out_dim], state)`; it has `out_dim` and `initial_state(batch, device)`. A network
without memory ignores the state. An *image encoder* maps `[*b, h, w, c]` bytes to `[*b, out_dim]`.
A *denoiser* maps noisy sequences `[b, h, a]`, times `[b]` and conditions `[b, t, d]` to sequences.
"""

PARTS = {
    "mlp": "dreamlab.nn.mlp.MLP",
    "identity": "dreamlab.nn.mlp.Identity",
    "fourier": "dreamlab.nn.fourier.Fourier",
    "rnn": "dreamlab.nn.rnn.RNN",
    "transformer": "dreamlab.nn.transformer.Transformer",
    "cnn": "dreamlab.nn.conv.CNN",
    "impala": "dreamlab.nn.conv.Impala",
    "patches": "dreamlab.nn.conv.Patches",
    "resnet18": "dreamlab.nn.vision.ResNet18",
    "resnet_mlp": "dreamlab.nn.resnet_mlp.ResNetMLP",
    "unet1d": "dreamlab.nn.unet1d.UNet1d",
    "denoising_transformer": "dreamlab.nn.denoising_transformer.DenoisingTransformer",
}
