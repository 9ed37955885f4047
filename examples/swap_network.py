"""Swap networks by configuration: other sizes, other kinds, and a module of your own."""

import torch
from torch import Tensor, nn

from dreamlab import training
from dreamlab.config import compose, load_config


class Gated(nn.Module):
    """A network of ours: `x [*b, in_dim]` in, `(y [*b, out_dim], state)` out; it has no memory."""

    recurrent = False

    def __init__(self, in_dim: int, width: int = 32) -> None:
        super().__init__()
        self.value, self.gate = nn.Linear(in_dim, width), nn.Linear(in_dim, width)
        self.out_dim = width

    def forward(
        self, x: Tensor, state: object = (), is_first: object = None
    ) -> tuple[Tensor, object]:
        return self.value(x) * self.gate(x).sigmoid(), state


class Downsampled(nn.Module):
    """An image encoder of ours: bytes `[*b, h, w, c]` in, features `[*b, out_dim]` out."""

    def __init__(self, shape: tuple[int, int, int], every: int = 2) -> None:
        super().__init__()
        self.every = every
        self.out_dim = torch.zeros(shape)[::every, ::every].numel()

    def forward(self, image: Tensor) -> Tensor:
        return image[..., :: self.every, :: self.every, :].flatten(-3).float() / 255


PIXELS = ["env=dummy", "env.id=pixels"]
OURS = "workflow.encoder.image={_target_: swap_network.Downsampled, every: 4}"
VARIANTS = {
    "a wider MLP": ["workflow.network={hidden: [128, 128], act: relu}"],
    "a GRU": ["workflow.network=rnn"],
    "our own network": ["workflow.network={_target_: swap_network.Gated, width: 48}"],
    "our own image encoder": [*PIXELS, OURS],
    "a residual network": [*PIXELS, "workflow.encoder.image={_target_: impala, depths: [4, 8]}"],
}


def main() -> None:
    common = ["+experiment=ppo_cartpole", "training.total_frames=300", "workflow.epochs=2"]
    quiet = ["log.terminal=off", "eval.episodes=1", "eval.video=false", "threads=1"]
    for name, overrides in VARIANTS.items():
        run, status = training.train(load_config(compose([*common, *overrides, *quiet])))
        policy = training.load_policy(run.folder).workflow
        print(f"{name}: {sum(p.numel() for p in policy.parameters()):,} parameters, {status}")


if __name__ == "__main__":
    main()
