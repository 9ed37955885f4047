"""Diffusion and flow policies: they learn distributions, and are guided through them."""

from __future__ import annotations

import pytest
import torch

from dreamlab.components import HOME
from dreamlab.components.policies.generative import GenerativePolicy, Guidance, Guided
from dreamlab.core.config import Part
from dreamlab.core.errors import ConfigError, LabError
from dreamlab.core.types import ArraySpec, Mode, Spec
from tests.helpers import need, some_of

SPEC = Spec({"state": ArraySpec((1,))}, ArraySpec((1,), low=-1.0, high=1.0))
NET = {"width": 32, "blocks": 2, "time_dim": 16, "dropout": 0.0}
KINDS = {
    "ddpm": ("diffusion", {"levels": 20}),
    "ddim": ("diffusion", {"levels": 20, "sampler": "ddim", "sample_steps": 10}),
    "sample": ("diffusion", {"levels": 20, "prediction": "sample"}),
    "v": ("diffusion", {"levels": 20, "prediction": "v"}),
    "vp": ("diffusion", {"levels": 5, "betas": "vp"}),
    "euler": ("flow", {"sample_steps": 10}),
    "rk4": ("flow", {"sample_steps": 4, "sampler": "rk4", "times": "uniform"}),
}


def make(name: str, spec: Spec = SPEC, **options) -> GenerativePolicy:
    torch.manual_seed(0)
    kind, own = KINDS[name]
    return Part.load(kind, {"net": NET, **own, **options}, HOME).build(spec)


def two_modes(rows: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return states of one sign and actions near 0.7 or -0.3, less the sign: two in each state."""
    state = torch.randint(0, 2, (rows, 1, 1)) * 2.0 - 1
    action = torch.randint(0, 2, (rows, 1, 1)) - 0.3 - 0.3 * state.clamp(min=0)
    return {"state": state}, action.float() * 0.8 + 0.03 * torch.randn(rows, 1, 1)


def fit(policy: GenerativePolicy, steps: int = 400) -> GenerativePolicy:
    opt = torch.optim.Adam(policy.parameters(), 3e-3)
    for _ in range(steps):
        loss = policy.loss(*two_modes(256)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return policy.eval()


@pytest.fixture(scope="module")
def fitted():
    cache: dict[str, GenerativePolicy] = {}

    def get(name: str) -> GenerativePolicy:
        if name not in cache:
            with torch.enable_grad(), torch.random.fork_rng():
                cache[name] = fit(make(name))
        return cache[name]

    return get


# not "vp": five steps are not enough
@pytest.mark.parametrize("name", some_of(["ddpm", "euler", "ddim", "sample", "v", "rk4"], 2))
@torch.no_grad()
def test_both_modes_of_the_data_are_sampled(name, fitted):
    seen, data = two_modes(2000)
    got = fitted(name).sample(seen)[:, 0]
    for sign in (-1, 1):
        mine, theirs = (x[seen["state"] == sign] for x in (got, data))
        middle = (theirs.max() + theirs.min()) / 2
        assert (mine > middle).float().mean().item() == pytest.approx(0.5, abs=0.15)
        for side in (1, -1):  # where the modes are, and that nothing is between them
            a, b = (x[side * (x - middle) > 0] for x in (mine, theirs))
            assert a.median().item() == pytest.approx(b.median().item(), abs=0.1)
        assert ((mine - middle).abs() < 0.15).float().mean() < 0.12


def worth(action: torch.Tensor) -> torch.Tensor:
    return -(action - 0.4).square().sum((2, 3))


@pytest.mark.parametrize("name", some_of(["ddpm", "euler", "ddim", "v", "rk4"], 2))
def test_guidance_raises_the_value_the_more_the_larger_its_scale(name, fitted):
    seen, _ = two_modes(500)
    means = []
    for scale in (0.0, 1.0, 5.0, 20.0):
        torch.manual_seed(1)
        with torch.no_grad():
            action = fitted(name).sample(seen, 2, guidance=Guidance(worth, scale))
        assert not action.requires_grad
        means.append(worth(action).mean().item())
    assert means == sorted(means)
    assert means[-1] - means[0] > 0.05


@pytest.mark.parametrize("name", ["ddpm", "ddim", "euler"])
def test_guidance_of_scale_zero_is_bit_identical_to_none(name):
    policy, (seen, _) = make(name).eval(), two_modes(20)
    draws = []
    for guidance in (None, Guidance(worth, 0.0)):
        torch.manual_seed(1)
        draws.append(policy.sample(seen, 3, guidance=guidance))
    assert torch.equal(*draws)


def test_a_scale_that_grows_acts_at_the_end_alone():
    guidance = Guidance(worth, 0.0, last_scale=2.0)
    assert guidance.acts
    assert [guidance.at(x) for x in (0.0, 0.5, 1.0)] == [0.0, 1.0, 2.0]


def test_a_normalised_direction_has_the_length_of_the_scale():
    guided = Guided(Guidance(lambda x: 1e3 * x.sum((2, 3)), 0.5, normalize=True), 1)
    slope = guided.direction(torch.zeros(4, 1, 1), lambda x: 0.1 * x, 0.0)
    torch.testing.assert_close(slope, torch.full((4, 1, 1), 0.5))


def test_the_same_noise_becomes_the_same_actions():
    policy, (seen, _) = make("ddim").eval(), two_modes(20)
    noise = torch.randn(20, 3, 1, 1)
    once, again = (policy.sample(seen, 3, noise=noise) for _ in range(2))
    assert torch.equal(once, again)
    assert not torch.equal(once, policy.sample(seen, 3))


def test_gradients_flow_through_the_whole_chain():
    policy = make("vp")
    first = policy.net.into.weight
    (grad,) = torch.autograd.grad(policy.sample(two_modes(8)[0], 2).sum(), first)
    assert grad.abs().sum() > 0


def test_more_weight_on_the_observations_narrows_what_is_sampled():
    """With the condition dropped in half of the rows, a larger scale moves away from the mean."""
    torch.manual_seed(0)
    plain = make("ddim", drop_cond=0.5)
    opt = torch.optim.Adam(plain.parameters(), 3e-3)
    for _ in range(300):
        state = torch.randint(0, 2, (256, 1, 1)) * 2.0 - 1
        loss = plain.loss({"state": state}, 0.4 * state + 0.2 * torch.randn_like(state)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    strong = make("ddim", drop_cond=0.5, cond_scale=2.0)
    strong.load_state_dict(plain.state_dict())
    seen = {"state": torch.ones(500, 1, 1)}
    with torch.no_grad():
        usual, more = (p.eval().sample(seen).mean().item() for p in (plain, strong))
    assert usual == pytest.approx(0.4, abs=0.1)
    assert more > usual + 0.05


def test_guidance_by_the_condition_needs_rows_without():
    with pytest.raises(ConfigError, match="cond_scale needs drop_cond"):
        make("ddpm", cond_scale=1.0)


def test_more_steps_than_levels_are_refused():
    with pytest.raises(ConfigError, match="sample_steps=30 is more than there are levels=20"):
        make("ddpm", sample_steps=30)


def test_it_says_that_it_has_no_log_probability():
    with pytest.raises(LabError, match="DiffusionPolicy has no log-probability"):
        make("ddpm").log_prob(*two_modes(2))


@pytest.mark.parametrize(("name", "theirs"), [("ddpm", "DDPM"), ("ddim", "DDIM")])
@torch.no_grad()
def test_a_whole_sample_is_that_of_diffusers(name, theirs):
    policy, (seen, _) = make(name).eval(), two_modes(16)
    scheduler = getattr(need("diffusers"), f"{theirs}Scheduler")(
        20, beta_schedule="squaredcos_cap_v2", clip_sample=True
    )
    scheduler.set_timesteps(len(policy.path))
    noise = torch.randn(16, 1, 1, 1)
    torch.manual_seed(3)
    x, cond = noise[:, 0], policy.encoder(seen)
    for t in scheduler.timesteps:
        x = scheduler.step(policy.net(x, t.expand(16).float(), cond), t, x).prev_sample
    torch.manual_seed(3)
    got = policy.sample(seen, noise=noise, mode=Mode.EVAL)[:, 0]
    torch.testing.assert_close(got, x.clamp(-1, 1), rtol=1e-4, atol=1e-4)
