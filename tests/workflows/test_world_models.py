"""World Models: sizes of the original, what each hook does, and a curriculum of all of them."""

from __future__ import annotations

import math
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from tests.helpers import config_of, metrics, need, open_loop, run_for, run_until

from dreamlab.components.world_models.mdn_rnn import MDNRNN, Latent, MDNConfig, Target, VMModel
from dreamlab.components.world_models.vae import Code, ConvVAE, VAEConfig, VectorVAE, vae_losses
from dreamlab.core.errors import ConfigError
from dreamlab.core.phase import Phase
from dreamlab.core.types import ArraySpec, Batch, Mode, Spec
from dreamlab.nn.lstm import OneBiasLSTM
from dreamlab.ops.mixtures import mixture_log_prob, sample_mixture
from dreamlab.workflows.world_models import LinearController, first_returns

IMAGE = {"image": ArraySpec((64, 64, 3), "uint8")}
CAR = ArraySpec((3,), low=-1.0, high=1.0)
VECTOR = {"state": ArraySpec((4,))}
PHASE = Phase("test", ("update_controller",), duration_updates=1)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def count(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def make(spec: Spec | None = None, **options):
    need("cmaes")
    from dreamlab.core.config import load
    from dreamlab.workflows.world_models import WorldModels, WorldModelsConfig

    small = {
        "vae": {"latent": 3, "units": 8, "layers": 1}, "mdn": {"hidden": 8, "mixtures": 2},
        "controller": {"rollouts": 2}, "evolution": {"population": 4}, "dream": {"horizon": 5},
    }  # fmt: skip
    node = {k: {**small.get(k, {}), **options.get(k, {})} for k in {**small, **options}}
    torch.manual_seed(0)
    return WorldModels(
        load(WorldModelsConfig, node, "workflow"), spec or Spec(VECTOR, ArraySpec((), "int64", 2))
    )


def batch_of(workflow, b: int, t: int) -> Batch:
    zeros = torch.zeros(b, t)
    obs = {"state": torch.randn(b, t, 4)}
    code = workflow.model.vae.encode(workflow.model.vae.preprocess(obs))
    codes = {k: v.detach() for k, v in workflow.codes(code).items()}
    action, flags = torch.randint(2, (b, t)), zeros.bool()
    return Batch(obs, action, zeros + 1, flags, flags.clone(), flags.clone(), codes)


# -- the original's sizes -------------------------------------------------------------------------


def test_the_parameters_are_as_many_as_in_the_original():
    assert count(ConvVAE(VAEConfig(), IMAGE)) == 4_348_547
    assert count(ConvVAE(VAEConfig(latent=64), IMAGE)) == 4_446_915
    assert count(MDNRNN(MDNConfig(reward=False, done=False), 32, 3)) == 422_368
    assert count(LinearController(32 + 256, CAR)) == 867


def test_the_memory_is_an_lstm_whose_forget_gate_begins_open():
    ours, theirs = OneBiasLSTM(3, 5), torch.nn.LSTM(3, 5, batch_first=True)
    enter, new, forget, out = ours.gates.weight.detach().chunk(4)
    weight = torch.cat([enter, forget, new, out])
    bias = ours.gates.bias.detach().chunk(4)
    with torch.no_grad():
        theirs.weight_ih_l0.copy_(weight[:, :3])
        theirs.weight_hh_l0.copy_(weight[:, 3:])
        theirs.bias_ih_l0.copy_(torch.cat([bias[0], bias[2] + 1, bias[1], bias[3]]))
        theirs.bias_hh_l0.zero_()
    x, memory = torch.randn(2, 6, 3), (torch.randn(2, 5), torch.randn(2, 5))
    first = torch.zeros(2, 6, dtype=torch.bool)
    h, c = ours(x, memory, first)
    wanted, (_, cell) = theirs(x, (memory[0][None], memory[1][None]))
    torch.testing.assert_close(h, wanted)
    torch.testing.assert_close(c[:, -1], cell[0])
    stepped = ours.step(x[:, 0], memory)
    torch.testing.assert_close(stepped[0], wanted[:, 0])
    first[:, 3] = True
    anew, _ = ours(x, memory, first)
    alone, _ = theirs(x[:, 3:])
    torch.testing.assert_close(anew[:, 3:], alone)


def test_images_of_other_sizes_need_other_layers_and_are_told_so():
    small = {"image": ArraySpec((16, 16, 3), "uint8")}
    vae = ConvVAE(VAEConfig(latent=4, channels=(8, 16), kernels=(6, 6)), small)
    ready = vae.preprocess({"image": torch.zeros(2, 3, 16, 16, 3, dtype=torch.uint8)})
    assert vae.encode(ready).mean.shape == (2, 3, 4)
    assert vae.decode(torch.zeros(2, 4)).shape == (2, 16, 16, 3)
    with pytest.raises(ConfigError, match="leave nothing"):
        ConvVAE(VAEConfig(), small)
    with pytest.raises(ConfigError, match=r"draw images of 64x64.*env.size"):
        ConvVAE(VAEConfig(), {"image": ArraySpec((96, 96, 3), "uint8")})
    with pytest.raises(ValueError, match="as many as"):
        VAEConfig(channels=(8, 8))


# -- losses ---------------------------------------------------------------------------------------


def test_the_loss_of_v_sums_over_pixels_and_frees_the_divergence_as_a_whole():
    vae = VectorVAE(c := VAEConfig(latent=2, units=4, layers=1, free_nats=0.5), VECTOR)
    with torch.no_grad():
        for p in vae.parameters():
            p.zero_()
        vae.mean.bias.copy_(torch.tensor([2.0, 0.0]))
    ready = torch.full((3, 4), 0.5)
    losses = vae_losses(vae, c, ready, torch.zeros(3, 2))
    assert losses["reconstruction"].item() == pytest.approx(4 * 0.25)
    assert losses["kl"].item() == pytest.approx(2.0)  # not 2 + a free half each
    with torch.no_grad():
        vae.mean.bias.zero_()
    assert vae_losses(vae, c, ready, torch.zeros(3, 2))["kl"].item() == pytest.approx(1.0)


def test_a_mixture_is_that_of_torch():
    params, value = torch.randn(7, 3, 6), torch.randn(7, 3)
    logits, mean, log_std = params.chunk(3, -1)
    theirs = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(logits=logits),
        torch.distributions.Normal(mean, log_std.exp()),
    )
    torch.testing.assert_close(mixture_log_prob(params, value), theirs.log_prob(value))
    many = sample_mixture(params.expand(40_000, 7, 3, 6), torch.randn(40_000, 7, 3, 2))
    torch.testing.assert_close(many.mean(0), theirs.mean, atol=0.15, rtol=0)
    torch.testing.assert_close(many.var(0), theirs.variance, atol=0.5, rtol=0.1)


def test_temperature_evens_the_choice_and_widens_by_its_root():
    params = torch.tensor([[[4.0, 0.0, -1.0, 1.0, math.log(0.1), math.log(0.1)]]])
    noise = torch.randn(20_000, 1, 2)
    cold, hot = (sample_mixture(params.expand(20_000, 1, 6), noise, t) for t in (1.0, 4.0))
    shares = [(x > 0).float().mean().item() for x in (cold, hot)]
    assert shares[0] == pytest.approx(torch.sigmoid(torch.tensor(-4.0)).item(), abs=0.01)
    assert shares[1] == pytest.approx(torch.sigmoid(torch.tensor(-1.0)).item(), abs=0.02)
    spreads = [(x[x < 0] + 1).std().item() for x in (cold, hot)]
    assert spreads[1] == pytest.approx(2 * spreads[0], rel=0.1)


def test_m_predicts_nothing_across_a_seam_and_forgets_there():
    model = VMModel(VAEConfig(latent=3), MDNConfig(hidden=8), Spec(VECTOR, CAR), 1.0)
    z, action = torch.randn(2, 6, 3), torch.randn(2, 6, 3)
    first = torch.zeros(2, 6, dtype=torch.bool)
    first[:, 0] = first[:, 3] = True
    target = Target(torch.randn(2, 6), first, torch.zeros_like(first))
    whole = model.mdn_losses(z, action, target)
    z[:, 2] += 9  # the last of an episode: predicted itself, but predicts nothing
    cut = Target(target.reward, first, target.is_terminal)
    changed = model.mdn_losses(z, action, cut)
    assert changed["reward"].item() == pytest.approx(whole["reward"].item())
    assert changed["mdn"].item() != pytest.approx(whole["mdn"].item())


def windows(workflow, b: int = 3, t: int = 6) -> Batch:
    """Return windows with an end and a seam inside one, and rewards of their own."""
    batch = batch_of(workflow, b, t)
    batch.reward.copy_(torch.randn(b, t))
    batch.is_first[:, 0] = True
    batch.is_terminal[1, 2] = batch.is_last[1, 2] = batch.is_first[1, 3] = True
    return batch


def losses_by_hand(model: VMModel, z: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
    """Return the mean losses of every step that follows another: three codes, two normals each."""
    code, reward, done = [], [], []
    for i in range(z.shape[0]):
        for t in range(z.shape[1] - 1):
            if batch.is_first[i, t]:
                memory = (torch.zeros(1, 8), torch.zeros(1, 8))
            chosen = torch.eye(2)[batch.action[i, t]]
            memory = model.mdn.lstm.step(torch.cat([z[i, t], chosen])[None], memory)
            if batch.is_first[i, t + 1]:
                continue
            out = model.mdn.out(memory[0])[0]
            logits, mean, log_std = out[:18].view(3, 3, 2).unbind(1)
            unit = (z[i, t + 1, :, None] - mean) / log_std.exp()
            each = logits.softmax(-1) * (-(unit**2) / 2).exp() / log_std.exp()
            code += list(-(each.sum(-1) / math.sqrt(2 * math.pi)).log())
            reward.append(0.5 * (out[18] - batch.reward[i, t + 1]) ** 2)
            chance = out[19].sigmoid()
            over = bool(batch.is_terminal[i, t + 1])
            done.append(-10 * chance.log() if over else -(1 - chance).log())
    terms = {"mdn": code, "reward": reward, "done": done}
    return {k: torch.stack(v).mean() for k, v in terms.items()}


def test_ms_losses_are_those_of_the_formulas():
    workflow = make()
    batch, model = windows(workflow), workflow.model
    with torch.no_grad():
        for p in model.mdn.parameters():
            p.add_(0.3 * torch.randn_like(p))
    z = torch.randn(3, 6, 3)
    target = Target(batch.reward, batch.is_first, batch.is_terminal)
    found, wanted = model.mdn_losses(z, batch.action, target), losses_by_hand(model, z, batch)
    assert found.keys() == wanted.keys()
    for name, loss in wanted.items():
        torch.testing.assert_close(found[name], loss, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_each_entry_of_ms_gradient_is_clipped_at_one(scale):
    """With rewards of hundreds some entries pass the bound; a rate of 1 shows the gradient."""
    workflow = make(mdn={"reward_scale": scale}, mdn_optimizer={"_target_": "sgd", "lr": 1.0})
    batch, mdn = windows(workflow), workflow.model.mdn
    batch.reward.mul_(300.0)
    old = [p.detach().clone() for p in mdn.parameters()]
    torch.manual_seed(3)
    drawn = torch.randn_like(batch.extras["mean"])
    z = batch.extras["mean"] + (0.5 * batch.extras["logvar"]).exp() * drawn
    losses = losses_by_hand(workflow.model, z, batch)
    grads = torch.autograd.grad(
        losses["mdn"] + scale * losses["reward"] + losses["done"], list(mdn.parameters())
    )
    torch.manual_seed(3)
    found = workflow.update_mdn(batch, phase=PHASE)
    assert found["loss/reward"].item() == pytest.approx(losses["reward"].item(), rel=1e-4)
    within = torch.cat([g.abs().flatten() < 1 for g in grads]).float().mean()
    assert 0.1 < within < 0.9
    for now, was, grad in zip(mdn.parameters(), old, grads, strict=True):
        torch.testing.assert_close(was - now, grad.clamp(-1, 1), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_a_step_of_v_follows_the_sum_of_its_losses(scale):
    options = {"kl_scale": scale, "free_nats": 0.0}
    workflow = make(vae=options, vae_optimizer={"_target_": "sgd", "lr": 1.0})
    batch, vae = batch_of(workflow, 3, 4), workflow.model.vae
    copy = make(vae=options).model.vae  # of the same weights
    old = [p.detach().clone() for p in vae.parameters()]
    torch.manual_seed(3)
    workflow.update_vae(batch, phase=PHASE)
    torch.manual_seed(3)
    noise = torch.randn(12, 3)
    copy.watch(copy.preprocess(batch.obs).flatten(0, 1))
    ready = copy.preprocess(batch.obs).flatten(0, 1)
    mean, logvar = copy.encode(ready)
    error = (copy.decode(mean + (0.5 * logvar).exp() * noise) - ready).pow(2).sum(-1).mean()
    kl = 0.5 * (logvar.exp() + mean.pow(2) - 1 - logvar).sum(-1).mean()
    grads = torch.autograd.grad(error + scale * kl, list(copy.parameters()))
    for now, was, grad in zip(vae.parameters(), old, grads, strict=True):
        torch.testing.assert_close(was - now, grad, rtol=1e-3, atol=1e-5)


def test_following_codes_is_what_acting_step_by_step_remembers():
    workflow = make()
    model, obs = workflow.model, torch.randn(2, 5, 4)
    first = torch.zeros(2, 5, dtype=torch.bool)
    first[:, 0] = first[1, 3] = True
    state, latents = workflow.initial_state(2), []
    for t in range(5):
        with torch.no_grad():
            d = workflow.decide({"state": obs[:, t]}, first[:, t], state, Mode.FIXED)
        state = d.state
        latents.append((workflow.unpack_state(state), d.action))
    z = torch.stack([x.z for x, _ in latents], 1)
    action = torch.stack([a for _, a in latents], 1)
    led = torch.cat([action[:, :1], action[:, :-1]], 1)
    past = torch.cat([torch.zeros_like(z[:, :1]), z[:, :-1]], 1)
    start = model.initial(2, "cpu")
    followed = model.follow(z, past, led, first, start)
    torch.testing.assert_close(followed.h, torch.stack([x.h for x, _ in latents], 1))
    assert not followed.h[1, 3].any()
    assert followed.h[0, 3].any()


# -- the controller -------------------------------------------------------------------------------


def test_actions_are_a_line_through_what_is_seen_and_remembered():
    line = LinearController(2, CAR)
    weights = torch.arange(9.0)[None] / 10
    feature = torch.tensor([[[1.0, 2.0]]])
    wanted = torch.tanh(feature[0, 0] @ weights[0, :6].view(2, 3) + weights[0, 6:])
    torch.testing.assert_close(line(feature, weights)[0, 0], wanted)
    several = LinearController(2, ArraySpec((2,), "int64", (3, 4)))
    assert several(feature, torch.randn(1, several.weights.numel())).shape == (1, 1, 2)


def test_environments_play_the_candidates_in_turn_and_the_mean_is_measured():
    workflow = make()
    with torch.no_grad():
        workflow.evolution.candidates.zero_()
        workflow.evolution.candidates[1, -1] = 1.0  # prefers the second action
        workflow.evolution.candidates[:1, -2] = 1.0
    obs, first = {"state": torch.zeros(6, 4)}, torch.ones(6, dtype=torch.bool)
    d = workflow.decide(obs, first, workflow.initial_state(6), Mode.TRAIN)
    assert d.action.tolist()[:2] == [0, 1]
    assert d.action.tolist()[4:] == [0, 1]  # four candidates, six environments
    measured = workflow.decide(obs, first, workflow.initial_state(6), Mode.EVAL)
    assert measured.action.tolist() == [0] * 6


def test_a_candidate_is_told_the_mean_of_its_first_episodes():
    workflow = make()
    told = []
    workflow.evolution.tell = lambda fitness: told.append(fitness.tolist())
    reward = torch.tensor([[0.0, 1, 2, 5, 5], [0, 1, 1, 1, 1], [0, 3, 9, 9, 9], [0, 0, 0, 0, 0]])
    last = torch.zeros(4, 5, dtype=torch.bool)
    last[0, 2] = last[2, 1] = True
    empty = torch.zeros(4, 5)
    batch = Batch({}, empty.long(), reward, ~last, last, last)
    assert first_returns(batch).tolist() == [3, 4, 3, 0]
    assert workflow.update_controller(batch, phase=PHASE) == {"controller_evaluations": 4}
    assert not told
    found = workflow.update_controller(batch, phase=PHASE)
    assert told == [[3, 4, 3, 0]]
    assert found["controller_evaluations"] == 4  # those of this update, as before
    assert not workflow.played.any()


def test_fewer_environments_than_candidates_measure_them_over_several_rounds():
    workflow = make(controller={"rollouts": 1})
    told = []
    workflow.evolution.tell = lambda fitness: told.append(fitness.tolist())
    flags = torch.zeros(3, 2, dtype=torch.bool)
    for values in ([1.0, 2.0, 3.0], [4.0, 10.0, 20.0]):
        reward = torch.tensor(values)[:, None] * torch.tensor([0.0, 1.0])
        workflow.update_controller(Batch({}, flags, reward, flags, flags, flags), phase=PHASE)
    # the second round plays candidates 3, 0, 1
    assert told == [[5.5, 11.0, 3.0, 4.0]]


def test_dreams_start_at_the_ends_of_windows_in_turn_and_not_where_an_episode_ended():
    workflow = make(controller={"rollouts": 5})
    batch = windows(workflow)
    batch.extras["logvar"].fill_(-100.0)  # codes without spread
    batch.is_last[2, -1] = True  # cut off there, without a termination
    start, awake = workflow.dream_starts(batch)
    torch.testing.assert_close(start.z, batch.extras["mean"][[0, 1, 2, 0, 1], -1])
    assert awake.tolist() == [True, True, False, True, True]


def test_in_a_dream_the_end_counts_and_what_comes_after_it_does_not():
    workflow = make(dream={"horizon": 10}, mdn={"reward": False})
    model = workflow.model
    with torch.no_grad():
        model.mdn.out.weight.zero_()
        model.mdn.out.bias.zero_()
        model.mdn.out.bias[-1] = -1.0
    start = model.initial(2, "cpu")
    awake = torch.tensor([True, False])
    assert workflow.dream_returns(start, awake).tolist() == [[10.0, 0.0]] * 4
    assert model.predict_reward(start)["reward"].tolist() == [1.0, 1.0]
    with torch.no_grad():
        model.mdn.out.bias[-1] = 1.0  # it ends at once
    assert workflow.dream_returns(start, awake).tolist() == [[1.0, 0.0]] * 4


def test_a_dream_that_says_nothing_is_refused():
    workflow = make(mdn={"reward": False, "done": False})
    with pytest.raises(ConfigError, match=r"workflow\.mdn\.reward"):
        workflow.update_controller_in_dream(batch_of(workflow, 4, 3), phase=PHASE)


def test_the_search_finds_the_controller_that_a_dream_rewards():
    """The dreamt reward is the last action's class: candidates learn to choose it."""
    workflow = make(evolution={"population": 8}, controller={"rollouts": 4})
    model = workflow.model

    def rewarding(latent, action, chance):
        seen = model.mdn.predict(latent.h)
        return latent, seen._replace(
            reward=action.float(), done=torch.full_like(latent.z[:, 0], -1.0)
        )

    model.dream_step = rewarding
    batch = batch_of(workflow, 4, 3)
    for _ in range(100):
        found = workflow.update_controller_in_dream(batch, phase=PHASE)
        if found["fitness"] > 4.5:
            break
    assert found["fitness"] > 4.5
    assert workflow.policy(Latent(torch.zeros(3, 3), torch.zeros(3, 8), torch.zeros(3, 8))).all()


# -- the search -----------------------------------------------------------------------------------


def test_cma_es_finds_the_top_of_a_hill_and_goes_on_exactly_where_it_was():
    need("cmaes")
    from dreamlab.components.evolution import CMAES, CMAESConfig

    top = torch.linspace(-1, 1, 6)
    torch.manual_seed(0)
    search = CMAES(CMAESConfig(population=12, sigma=0.5), 6)
    hill = lambda: -(search.candidates - top).square().sum(1)  # noqa: E731
    for _ in range(30):
        search.tell(hill())
    saved, state = {k: _copied(v) for k, v in search.state_dict().items()}, torch.get_rng_state()
    for _ in range(30):
        search.tell(hill())
    torch.testing.assert_close(search.mean(), top, atol=1e-2, rtol=0)
    after = search.candidates.clone()
    again = CMAES(CMAESConfig(population=12, sigma=0.5), 6)
    again.load_state_dict(saved)
    torch.set_rng_state(state)
    for _ in range(30):
        again.tell(-(again.candidates - top).square().sum(1))
    assert torch.equal(again.candidates, after)


def test_a_fitness_that_is_not_finite_counts_as_the_worst_and_is_said_once():
    need("cmaes")
    from dreamlab.components.evolution import CMAES, CMAESConfig, as_worst

    torch.manual_seed(0)
    search, other = (CMAES(CMAESConfig(population=6), 3) for _ in range(2))
    other.candidates.copy_(search.candidates)
    odd = torch.tensor([3.0, math.nan, 1.0, math.inf, 2.0, -math.inf])
    assert as_worst(odd).tolist() == [3.0, 1.0, 1.0, 1.0, 2.0, 1.0]
    assert as_worst(odd[[1, 3, 5]]).tolist() == [0.0, 0.0, 0.0]  # there is no other
    with pytest.warns(UserWarning, match="3 of 6 candidates is not finite"):
        search.tell(odd)
    other.tell(torch.tensor([3.0, 1.0, 1.0, 1.0, 2.0, 1.0]))
    assert torch.equal(search.mean(), other.mean())
    assert search.candidates.isfinite().all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        search.tell(odd)


def _copied(value):
    if isinstance(value, dict):
        return {k: _copied(v) for k, v in value.items()}
    return value.clone() if isinstance(value, torch.Tensor) else value


# -- a whole curriculum ---------------------------------------------------------------------------

CURRICULUM = (
    "+experiment=world_models_cartpole", "tiny=true", "device=cpu", "eval.episodes=2",
    "env.num_envs=4", "eval.video=false", "log.every_updates=1", "checkpoint.every_s=0",
)  # fmt: skip


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    need("cmaes")
    folder = tmp_path_factory.mktemp("curriculum")
    open_loop(folder, *CURRICULUM).run()
    return metrics(folder)


def test_encoding_leaves_no_stale_code(records):
    found = [r["train/stale_codes"] for r in records if "train/stale_codes" in r]
    assert found
    assert not any(found)


def test_a_run_says_how_many_controllers_were_measured_and_reports_its_dreams(records):
    assert records[-1]["train/controller_evaluations"] == 8
    assert np.isfinite(records[-1]["report/openloop/state_h4"])
    assert np.isfinite(records[-1]["report/exploit_gap"])


IN_DREAMS, FOR_REAL = "world_models_cartpole", "world_models_carracing"


@pytest.mark.parametrize("name", [IN_DREAMS, pytest.param(FOR_REAL, marks=pytest.mark.slow)])
def test_resume_is_exact_in_the_middle_of_every_phase(name, tmp_path):
    need("cmaes")
    options = (
        f"+experiment={name}", "tiny=true", "device=cpu", "eval.episodes=1", "eval.video=false",
        "env.id=CartPole-v1", "env.suite=gym", "env.num_envs=2", "env.vector=sync", "env.size=null",
        "training.total_frames=600", "checkpoint.every_s=0", "log.every_frames=100",
    )  # fmt: skip
    straight = open_loop(tmp_path / "a", *options)
    straight.run()
    phases = len(config_of(*options).training.phases)
    for index in range(phases):
        loop = open_loop(tmp_path / "b", *options)
        stop = partial(_inside, loop, index)
        assert run_until(loop, stop) == "interrupted", index
        assert loop.scheduler.index == index
    resumed = open_loop(tmp_path / "b", *options)
    assert run_for(resumed, None) == "finished"
    ours, theirs = straight.workflow.state_dict(), resumed.workflow.state_dict()
    assert _same(ours, theirs)
    assert metrics(tmp_path / "a") == metrics(tmp_path / "b")


def _inside(loop, index: int) -> bool:
    """Tell whether a phase has begun and is not over."""
    s = loop.scheduler
    return s.index == index and (s.frames_in > 0 or s.updates_in > 0 or s.cycles_in > 0)


def _same(a, b) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def test_codes_are_drawn_with_their_own_spread():
    code = Code(torch.zeros(10_000, 1), torch.full((10_000, 1), 2 * math.log(3.0)))
    drawn = code.at(torch.randn(10_000, 1))
    assert drawn.std().item() == pytest.approx(3.0, rel=0.05)


def test_pictures_are_seen_dreamt_and_filmed(tmp_path):
    need("cmaes")
    options = ("env.suite=dummy", "env.id=pixels", "env.time_limit=null", "env.num_envs=2",
               "workflow.vae.channels=[4, 8]", "workflow.vae.kernels=[6, 6]")  # fmt: skip
    loop = open_loop(tmp_path, *CURRICULUM, *options, "training.phases.6.duration_updates=2")
    assert loop.run() == "finished"
    assert np.isfinite(metrics(tmp_path)[-1]["report/openloop/image_h4"])
    assert [p.name for p in (tmp_path / "report").iterdir() if "image" in p.name]


@pytest.mark.slow
def test_a_car_is_driven_by_candidates_and_by_their_mean(tmp_path):
    need("cmaes")
    need("Box2D")
    options = ("+experiment=world_models_carracing", "tiny=true", "device=cpu", "env.num_envs=2",
               "env.vector=sync", "eval.episodes=1", "eval.num_envs=1", "eval.max_steps=5",
               "eval.video=false", "training.total_frames=600", "log.every_frames=100")  # fmt: skip
    loop = open_loop(tmp_path, *options)
    assert loop.workflow.spec.obs["image"].shape == (64, 64, 3)
    assert loop.run() == "finished"
    assert any("train/fitness" in r for r in metrics(tmp_path))
