"""Make a small diffusion policy of LeRobot's, and write down what it does: run by its own Python.

    PYTHON tests/interop/make_lerobot_checkpoint.py FOLDER [pixels] [ddpm|ddim]

`FOLDER/pretrained_model` is as LeRobot saves it; `FOLDER/expected.safetensors` has observations in
their own units, noise, the seed of the noise on the way, and the actions that came of them.
"""

import importlib.util
import re
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file


def mend_torchvision() -> None:
    """Let a build for GPUs be imported with a torch for CPUs: its operators exist, none runs."""
    found = importlib.util.find_spec("torchvision")
    text = (Path(found.origin).parent / "_meta_registrations.py").read_text()
    names = re.findall(r'(?:register_meta\("|torchvision::)(\w+)', text)
    mend_torchvision.kept = library = torch.library.Library("torchvision", "FRAGMENT")
    for name in sorted(set(names)):
        library.define(f"{name}(Tensor x) -> Tensor")


if not torch.cuda.is_available():
    mend_torchvision()

from lerobot.configs.types import FeatureType, PolicyFeature  # noqa: E402
from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig  # noqa: E402
from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy  # noqa: E402
from lerobot.policies.diffusion.processor_diffusion import (  # noqa: E402
    make_diffusion_pre_post_processors,
)

SIZE = 32


def features(pixels: bool) -> dict[str, PolicyFeature]:
    state = {"observation.state": PolicyFeature(FeatureType.STATE, (2,))}
    if pixels:  # in this order: ours is that of the alphabet
        names = ("observation.images.top", "observation.images.front")
        return {**state, **{n: PolicyFeature(FeatureType.VISUAL, (3, SIZE, SIZE)) for n in names}}
    return {**state, "observation.environment_state": PolicyFeature(FeatureType.ENV, (3,))}


def statistics(shapes: dict[str, tuple[int, ...]]) -> dict[str, dict[str, torch.Tensor]]:
    out = {}
    for name, shape in shapes.items():
        size = (3, 1, 1) if len(shape) == 3 else shape
        if len(shape) == 3:
            mean, std = torch.tensor([0.4, 0.5, 0.6]), torch.tensor([0.2, 0.3, 0.25])
            out[name] = {"mean": mean.view(size), "std": std.view(size)}
        else:
            low = -5 - torch.rand(size)
            out[name] = {"min": low, "max": low + 7 + torch.rand(size)}
    return out


def main() -> None:
    folder, words = Path(sys.argv[1]), sys.argv[2:]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    inputs = features("pixels" in words)
    config = DiffusionConfig(
        input_features=inputs,
        output_features={"action": PolicyFeature(FeatureType.ACTION, (2,))},
        horizon=8, n_action_steps=4, down_dims=(8, 16), diffusion_step_embed_dim=8, n_groups=4,
        num_train_timesteps=20, crop_shape=(28, 28) if "pixels" in words else None,
        use_separate_rgb_encoder_per_camera=True, spatial_softmax_num_keypoints=4,
        noise_scheduler_type="DDIM" if "ddim" in words else "DDPM",
        num_inference_steps=5 if "ddim" in words else None, device="cpu",
    )  # fmt: skip
    shapes = {k: tuple(v.shape) for k, v in inputs.items()}
    stats = statistics({**shapes, "action": (2,)})
    policy = DiffusionPolicy(config).eval()
    before, after = make_diffusion_pre_post_processors(config, stats)
    place = folder / "pretrained_model"
    policy.save_pretrained(place)
    before.save_pretrained(place)
    after.save_pretrained(place)
    obs = {k: _observed(shape) for k, shape in shapes.items()}
    noise = torch.randn(6, 8, 2)
    scaled = {k: v for k, v in before(dict(obs)).items() if k in obs}
    if policy.config.image_features:
        pictures = [scaled.pop(k) for k in policy.config.image_features]
        scaled["observation.images"] = torch.stack(pictures, dim=2)
    torch.manual_seed(7)
    with torch.no_grad():
        action = after(policy.diffusion.generate_actions(scaled, noise=noise))
    save_file({**obs, "noise": noise, "action": action}, folder / "expected.safetensors")


def _observed(shape: tuple[int, ...]) -> torch.Tensor:
    """Return observations of six rows and two steps; colours are bytes over 255."""
    if len(shape) == 3:
        return torch.randint(0, 256, (6, 2, *shape)) / 255
    return torch.rand(6, 2, *shape) * 6 - 5


if __name__ == "__main__":
    main()
