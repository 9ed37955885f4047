import pytest

from dreamlab.core.errors import ConfigError
from dreamlab.core.phase import Phase
from dreamlab.engine.phase_scheduler import PhaseScheduler, check_phases
from dreamlab.workflows.ppo import PPO


def drive(scheduler, frames=10, decisions=10, replayed=20, limit=10_000):
    """Run a scheduler with fixed answers; return the names of what it asked for."""
    done = []
    while (action := scheduler.next_action()) is not None:
        assert len(done) < limit, "the training never ends"
        done.append(action)
        if action == "collect":
            scheduler.advance(frames=frames, decisions=decisions, replayed=replayed)
        elif action == "update":
            scheduler.advance(updates=1)
        else:
            scheduler.advance()
    return done


def online(**kwargs):
    return Phase("learn", ("collect", "update_controller"), **kwargs)


def test_without_a_ratio_every_cycle_updates_once():
    assert drive(PhaseScheduler([online(duration_steps=30)])) == ["collect", "update"] * 3


def test_phases_follow_each_other_and_end():
    phases = [
        Phase("fill", ("collect",), duration_steps=20),
        Phase("fit", ("update_controller",), type="offline", duration_updates=3),
        Phase("look", ("evaluate", "checkpoint"), type="eval_only", duration_cycles=1),
    ]
    assert drive(PhaseScheduler(phases)) == ["collect"] * 2 + ["update"] * 3 + [
        "evaluate",
        "checkpoint",
    ]


def test_the_train_ratio_counts_replayed_steps_per_decision():
    # 10 decisions at ratio 4 are 40 replayed steps: two batches of 20; the first time one batch
    done = drive(PhaseScheduler([online(duration_steps=100, train_ratio=4)]))
    assert done[:2] == ["collect", "update"]
    assert done[2:5] == ["collect", "update", "update"]
    assert done.count("update") == 1 + 9 * 2


def test_a_ratio_below_one_batch_per_cycle_saves_up():
    done = drive(PhaseScheduler([online(duration_steps=90, train_ratio=0.5)]))
    # owed: 1, then +0.25 per cycle
    assert done == ["collect", "update"] + ["collect"] * 4 + ["update"] + ["collect"] * 4 + [
        "update"
    ]


def test_nothing_is_owed_for_what_was_collected_before_a_batch_could_be_drawn():
    scheduler = PhaseScheduler([online(duration_steps=10_000, train_ratio=100)])
    for _ in range(50):
        assert scheduler.next_action() == "collect"
        scheduler.advance(frames=10, decisions=10, replayed=0)
    scheduler.next_action()
    scheduler.advance(frames=10, decisions=10, replayed=20)
    assert scheduler.owed == 1.0


@pytest.mark.parametrize("total", [40, 200])
def test_total_frames_stretches_the_last_phase(total):
    phases = [Phase("fill", ("collect",), duration_steps=20), online(duration_steps=100)]
    done = drive(PhaseScheduler(phases, total))
    assert done.count("collect") == total // 10
    assert done[:3] == ["collect", "collect", "collect"]
    assert done[3] == "update"


CURRICULUM = [
    Phase("fill", ("collect",), duration_steps=20),
    online(duration_steps=100),
    Phase("fit", ("update_controller",), type="offline", duration_updates=2),
    Phase("look", ("evaluate", "checkpoint"), type="eval_only", duration_cycles=1),
]
EXAM = ["update"] * 2 + ["evaluate", "checkpoint"]


@pytest.mark.parametrize("total", [None, 40, 200])
def test_phases_after_the_last_that_collects_run_whatever_total_frames_says(total):
    scheduler = PhaseScheduler(CURRICULUM, total)
    done = drive(scheduler)
    assert done[-5:] == ["update", *EXAM]
    assert done.count("collect") == (total or 120) // 10
    assert scheduler.next_action() is None
    assert scheduler.phase.name == "look"


def test_a_longer_training_goes_back_to_the_phase_that_is_stretched():
    first = PhaseScheduler(CURRICULUM, 40)
    drive(first)
    second = PhaseScheduler(CURRICULUM, 60)
    second.set_state(first.get_state())
    assert drive(second) == ["collect", "update"] * 2 + EXAM
    same = PhaseScheduler(CURRICULUM, 40)
    same.set_state(first.get_state())
    assert drive(same) == []


def test_a_longer_training_goes_on_amid_the_last_phase_as_if_it_had_not_stopped():
    def learn():
        return [online(duration_steps=100, train_ratio=3)]

    first = PhaseScheduler(learn(), 40)
    head = drive(first)
    second = PhaseScheduler(learn(), 80)
    second.set_state(first.get_state())
    assert head + drive(second) == drive(PhaseScheduler(learn(), 80))


@pytest.mark.parametrize(
    ("phases", "message"),
    [
        (CURRICULUM, "leaves nothing for phase 'learn': the phases before it collect 20 frames"),
        (
            [Phase("fill", ("collect",), duration_steps=5), online(duration_cycles=3)],
            "phase 'learn' after it could not collect",
        ),
    ],
)
def test_a_length_that_would_leave_a_phase_out_is_refused(phases, message):
    check_phases(phases, PPO, BUFFERS)
    with pytest.raises(ConfigError, match=message):
        check_phases(phases, PPO, BUFFERS, total_frames=20)


def test_progress_runs_from_zero_to_one():
    scheduler = PhaseScheduler([online(duration_steps=40)])
    seen = []
    while (action := scheduler.next_action()) is not None:
        seen.append(scheduler.phase.progress)
        scheduler.advance(frames=10 if action == "collect" else 0, updates=int(action == "update"))
    assert seen == [0, 0.25, 0.25, 0.5, 0.5, 0.75, 0.75, 1.0]


def test_an_offline_training_measures_progress_in_updates():
    scheduler = PhaseScheduler(
        [Phase("fit", ("update_controller",), type="offline", duration_updates=4)]
    )
    scheduler.next_action()
    scheduler.advance(updates=1)
    assert scheduler.progress() == 0.25


def test_state_round_trip_in_the_middle_of_a_debt():
    def make():
        return PhaseScheduler([online(duration_steps=60, train_ratio=6)])

    whole, first = drive(make()), make()
    head = []
    for _ in range(5):
        action = first.next_action()
        head.append(action)
        if action == "collect":
            first.advance(frames=10, decisions=10, replayed=20)
        else:
            first.advance(updates=1)
    second = make()
    second.set_state(first.get_state())
    assert head + drive(second) == whole


BUFFERS = ("replay",)


@pytest.mark.parametrize(
    ("phase", "message"),
    [
        (
            Phase("x", ("collect", "update_contoller"), duration_steps=1),
            "Did you mean 'update_controller'",
        ),
        (Phase("x", ("collect",), buffer="repaly", duration_steps=1), "Did you mean 'replay'"),
        (Phase("x", ("collect",)), "exactly one of"),
        (Phase("x", ("collect",), duration_steps=1, duration_cycles=1), "exactly one of"),
        (Phase("x", ("update_controller",), duration_steps=1), "must collect"),
        (Phase("x", ("collect",), duration_updates=1), "needs an update hook"),
        (Phase("x", ("collect",), type="offline", duration_steps=1), "cannot collect"),
        (Phase("x", ("update_controller",), type="eval_only", duration_updates=1), "cannot call"),
        (Phase("x", ("update_controller",), duration_updates=1, train_ratio=1), "must collect"),
    ],
)
def test_a_phase_that_cannot_work_is_refused_with_the_reason(phase, message):
    with pytest.raises(ConfigError, match=message):
        check_phases([phase], PPO, BUFFERS)


def test_fresh_episodes_without_collecting_are_refused():
    phase = Phase(
        "fit", ("update_controller",), type="offline", duration_updates=1, fresh_episodes=True
    )
    with pytest.raises(ConfigError, match="fresh_episodes has no effect"):
        check_phases([phase], PPO, ["replay"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"proportional": ("update_controller",)}, "no effect without sources"),
        ({"proportional": ("collect",), "sources": {"replay": 1.0}}, "update hook 'collect'"),
    ],
)
def test_drawing_in_proportion_needs_sources_and_a_hook(options, message):
    phase = Phase("fit", ("update_controller",), type="offline", duration_updates=1, **options)
    with pytest.raises(ConfigError, match=message):
        check_phases([phase], PPO, ["replay"])
