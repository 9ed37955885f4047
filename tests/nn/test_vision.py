"""The encoder of images: its size, its keypoints, its crops."""

from __future__ import annotations

import pytest
import torch

from dreamlab.components.encoder import Encoder, EncoderConfig
from dreamlab.core.config import Part
from dreamlab.core.errors import ConfigError
from dreamlab.core.types import ArraySpec
from dreamlab.nn.vision import ResNet18, ResNet18Config, SpatialSoftmax, cropped, resnet18

SMALL = ResNet18Config(crop=(28, 30), width=16, keypoints=4, out_dim=6)


def test_the_body_has_as_many_weights_as_a_resnet18():
    with torch.device("meta"):
        body = resnet18(3, 64)
    assert sum(p.numel() for p in body.parameters()) == 11_176_512
    groups = [m.num_groups for m in body.modules() if isinstance(m, torch.nn.GroupNorm)]
    assert groups[0] == 4
    assert groups[-1] == 32
    assert body(torch.zeros(1, 3, 84, 84, device="meta")).shape == (1, 512, 3, 3)


def test_a_keypoint_is_where_its_map_is_hot():
    pool = SpatialSoftmax((1, 3, 5), 1)
    torch.nn.init.constant_(pool.maps.weight, 50.0)
    for row, column, point in ((0, 0, [-1, -1]), (2, 1, [-0.5, 1]), (1, 4, [1, 0])):
        x = torch.zeros(1, 1, 3, 5)
        x[0, 0, row, column] = 1.0
        assert pool(x)[0, 0].tolist() == pytest.approx(point, abs=1e-5)


def test_crops_are_random_in_training_and_the_middle_otherwise():
    torch.manual_seed(0)
    image = torch.arange(8 * 8, dtype=torch.uint8).view(1, 8, 8, 1).repeat(1_000, 1, 1, 1)
    middle = cropped(image, (4, 6), random=False)
    assert torch.equal(middle, image[:, 2:6, 1:7])
    corners = cropped(image, (4, 6), random=True)[:, 0, 0, 0]
    assert set(corners.tolist()) == {8 * i + j for i in range(5) for j in range(3)}
    whole = cropped(image, (4, 6), random=True)
    first = whole[:, :1, :1].int()
    expected = first + (torch.arange(4)[:, None] * 8 + torch.arange(6))[None, :, :, None]
    assert torch.equal(whole.int(), expected)


def test_features_are_fixed_in_evaluation_and_vary_in_training():
    torch.manual_seed(0)
    net = ResNet18(SMALL, (32, 32, 3))
    image = torch.randint(0, 256, (3, 2, 32, 32, 3), dtype=torch.uint8)
    assert net(image).shape == (3, 2, 6)
    net.eval()
    assert torch.equal(net(image), net(image))


def test_every_camera_has_an_encoder_of_its_own():
    config = EncoderConfig(
        image=Part.load("resnet18", {"crop": (28, 30), "width": 16, "keypoints": 4, "out_dim": 6})
    )
    picture = ArraySpec((32, 32, 3), "uint8")
    encoder = Encoder(config, {"a": picture, "b": picture, "state": ArraySpec((2,))})
    assert encoder.out_dim == 14
    one, two = (dict(net.named_parameters()) for net in encoder.images.values())
    assert all(one[k] is not two[k] for k in one)


def test_a_crop_larger_than_the_image_is_refused():
    with pytest.raises(ConfigError, match=r"\[84, 84\] does not fit into images of \[64, 96\]"):
        ResNet18(ResNet18Config(crop=(84, 84)), (64, 96, 3))


def test_channels_are_normalised_by_their_own_numbers():
    torch.manual_seed(0)
    one = ResNet18(ResNet18Config(width=16, mean=(0.2, 0.2, 0.2), std=(0.3,)), (32, 32, 3)).eval()
    other = ResNet18(ResNet18Config(width=16, mean=(0.2, 0.2, 0.6), std=(0.3,)), (32, 32, 3)).eval()
    other.load_state_dict(one.state_dict())
    dark = torch.zeros(1, 32, 32, 3, dtype=torch.uint8)
    light = dark.clone()
    light[..., 2] = 102  # 0.4 lighter, where 0.4 more is taken off
    torch.testing.assert_close(one(dark), other(light))
    with pytest.raises(ConfigError, match="mean: 2 numbers for 3 channels"):
        ResNet18(ResNet18Config(mean=(0.1, 0.2)), (32, 32, 3))
