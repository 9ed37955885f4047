"""Swap parts of DreamerV3 by configuration: sizes of one, and a critic and dynamics of your own."""

from dataclasses import dataclass

from torch import Tensor, nn

from dreamlab import training
from dreamlab.components.world_models.rssm import RSSM, Latent, RSSMConfig
from dreamlab.config import compose, load_config
from dreamlab.core.limits import Share, Width


@dataclass(frozen=True)
class NormalConfig:
    units: Width = 64


class Normal(nn.Module):
    """A number as a normal of deviation 1: what `dreamlab.components.kinds.NumberHead` asks for."""

    Config = NormalConfig

    def __init__(self, config: NormalConfig, in_dim: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(in_dim, config.units), nn.SiLU())
        self.out = nn.Linear(config.units, 1)

    def forward(self, feature: Tensor) -> Tensor:
        return self.out(self.net(feature)).float()[..., 0]

    def mean(self, logits: Tensor) -> Tensor:
        return logits

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        return 0.5 * (logits - target).square()


@dataclass(frozen=True)
class FadingConfig(RSSMConfig):
    fade: Share = 0.05


class Fading(RSSM):
    """Dynamics whose memory fades a little at each dreamt step."""

    Config = FadingConfig

    def imagine_step(self, state: Latent, action: Tensor, noise: Tensor) -> Latent:
        after = super().imagine_step(state, action, noise)
        return Latent(after.deter * (1 - self.config.fade), after.stoch)


HERE = "swap_world_model_parts"
PARTS = [f"workflow.critic={{_target_: {HERE}.Normal, units: 32}}", "workflow.actor.layers=1",
         f"workflow.rssm={{_target_: {HERE}.Fading, fade: 0.1, deter: 64}}"]  # fmt: skip
QUICK = ["tiny=true", "training.total_frames=300", "log.terminal=off", "eval.video=false"]

if __name__ == "__main__":
    done = training.train(load_config(compose(["+experiment=dreamer_cartpole", *PARTS, *QUICK])))
    print(f"{done[1]}: {done[0].folder}")
