"""Samplers against those of diffusers on the same schedule, and against what they must do."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from dreamlab.ops.diffusion import (
    add_noise,
    clean_and_noise,
    ddim_step,
    ddpm_step,
    euler_step,
    flow_path,
    network_target,
    noise_levels,
    noisy_times,
    rk4_step,
    spaced_levels,
)
from tests.helpers import need

ONE = torch.tensor(1.0)


def theirs(name: str, num: int = 100, **options):
    scheduler = getattr(need("diffusers"), f"{name}Scheduler")
    return scheduler(num, beta_schedule="squaredcos_cap_v2", **options)


@pytest.mark.parametrize("kind", ["squaredcos_cap_v2", "linear"])
def test_noise_levels_are_those_of_diffusers(kind):
    expected = need("diffusers").DDPMScheduler(100, beta_schedule=kind).alphas_cumprod
    torch.testing.assert_close(noise_levels(kind, 100), expected, rtol=1e-6, atol=0)


def test_the_variance_preserving_betas_are_those_of_diffusion_ql():
    # 1 - exp(-0.1 / 5 - 0.5 * 9.9 * (2 t - 1) / 25) for t = 1 and t = 5
    abar = noise_levels("vp", 5)
    assert abar[0].item() == pytest.approx(math.exp(-0.02 - 4.95 / 25))
    assert (abar[4] / abar[3]).item() == pytest.approx(math.exp(-0.02 - 4.95 * 9 / 25))


@pytest.mark.parametrize("steps", [1, 8, 10, 100])
def test_levels_are_spaced_as_in_diffusers_and_end_without_noise(steps):
    scheduler = theirs("DDIM")
    scheduler.set_timesteps(steps)
    levels = spaced_levels(100, steps)
    assert [t for t, _ in levels] == scheduler.timesteps.tolist()
    assert levels[-1] == (0, -1)
    assert all(before == after for (_, before), (after, _) in itertools.pairwise(levels))


def before(abar: torch.Tensor, level: int) -> torch.Tensor:
    return abar[level] if level >= 0 else ONE


PREDICTIONS = {"epsilon": "epsilon", "sample": "sample", "v": "v_prediction"}


@pytest.mark.parametrize("kind", PREDICTIONS)
@pytest.mark.parametrize("steps", [10, 100])
def test_a_ddpm_step_is_that_of_diffusers(kind, steps):
    scheduler = theirs("DDPM", prediction_type=PREDICTIONS[kind], clip_sample=True)
    scheduler.set_timesteps(steps)
    abar = noise_levels("squaredcos_cap_v2", 100)
    x, out = torch.randn(4, 6, 2), torch.randn(4, 6, 2)
    for level, last in spaced_levels(100, steps)[:: max(1, steps // 10)]:
        generator = torch.Generator().manual_seed(level)
        expected = scheduler.step(out, level, x, generator=generator).prev_sample
        noise = torch.randn(x.shape, generator=generator.manual_seed(level)) if level else None
        clean, _ = clean_and_noise(out, x, abar[level], kind)
        got = ddpm_step(clean.clamp(-1, 1), x, abar[level], before(abar, last), noise)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", PREDICTIONS)
@pytest.mark.parametrize("steps", [8, 100])
def test_a_ddim_step_is_that_of_diffusers(kind, steps):
    scheduler = theirs("DDIM", prediction_type=PREDICTIONS[kind], clip_sample=True)
    scheduler.set_timesteps(steps)
    abar = noise_levels("squaredcos_cap_v2", 100)
    x, out = torch.randn(4, 6, 2), torch.randn(4, 6, 2)
    for level, last in spaced_levels(100, steps):
        expected = scheduler.step(out, level, x).prev_sample
        clean, noise = clean_and_noise(out, x, abar[level], kind)
        got = ddim_step(clean.clamp(-1, 1), noise, before(abar, last))
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", PREDICTIONS)
def test_what_a_network_shall_say_means_the_data_and_the_noise(kind):
    x, noise = torch.randn(64, 2), torch.randn(64, 2)
    abar = noise_levels("squaredcos_cap_v2", 100)[torch.randint(0, 90, (64,)), None]
    noisy = add_noise(x, noise, abar)
    out = network_target(x, noise, abar, kind)
    clean, found = clean_and_noise(out, noisy, abar, kind)
    torch.testing.assert_close(clean, x, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found, noise, rtol=1e-3, atol=1e-3)


def test_noised_data_have_the_moments_of_the_schedule():
    abar = torch.tensor(0.3)
    noisy = add_noise(torch.full((200_000,), 2.0), torch.randn(200_000), abar)
    assert noisy.mean().item() == pytest.approx(2 * math.sqrt(0.3), abs=0.01)
    assert noisy.std().item() == pytest.approx(math.sqrt(0.7), abs=0.01)


@pytest.mark.parametrize("steps", [5, 100])
def test_ddim_recovers_the_data_with_a_perfect_network(steps):
    abar, x = noise_levels("squaredcos_cap_v2", 100), torch.rand(32, 2) * 2 - 1
    levels = spaced_levels(100, steps)
    noisy = add_noise(x, torch.randn(32, 2), abar[levels[0][0]])
    for level, last in levels:
        noise = (noisy - abar[level].sqrt() * x) / (1 - abar[level]).sqrt()  # the perfect network
        clean, noise = clean_and_noise(noise, noisy, abar[level], "epsilon")
        noisy = ddim_step(clean.clamp(-1, 1), noise, before(abar, last))
    torch.testing.assert_close(noisy, x, rtol=1e-3, atol=1e-3)


# -- flow matching --------------------------------------------------------------------------------


def test_a_flow_leads_from_the_noise_to_the_data_on_a_straight_line():
    x, noise = torch.randn(8, 2), torch.randn(8, 2)
    for time, expected in ((0.0, noise), (1.0, x)):
        where, velocity = flow_path(x, noise, torch.tensor(time))
        torch.testing.assert_close(where, expected)
        torch.testing.assert_close(velocity, x - noise)


@pytest.mark.parametrize(("step", "order"), [(euler_step, 1), (rk4_step, 4)])
def test_integrators_have_their_order(step, order):
    def error(num: int) -> float:
        x = torch.ones(1, dtype=torch.float64)
        for i in range(num):
            x = step(lambda y, t: y * math.cos(t), x, i / num, 1 / num)
        return abs(x.item() - math.exp(math.sin(1)))

    assert error(8) / error(16) == pytest.approx(2**order, rel=0.25)


def test_times_are_drawn_more_often_near_the_noise():
    times = noisy_times(100_000, torch.zeros(()))
    assert times.min() >= 0
    assert times.max() <= 0.999
    # the mean of Beta(1.5, 1) is 0.6; below 0.5 are those with Beta > 0.4995: 1 - 0.4995 ^ 1.5
    assert times.mean().item() == pytest.approx(0.999 * 0.4, abs=0.005)
    assert (times < 0.5).float().mean().item() == pytest.approx(1 - 0.4995**1.5, abs=0.01)
