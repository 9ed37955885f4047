"""What a sweep's file may hold: found out before a job runs, with every value and seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from dreamlab.cli import main
from dreamlab.commands.jobs import read_sweep
from dreamlab.core.errors import ConfigError
from dreamlab.sweeps.sweep import SweepConfig, corners, distribution, make_jobs, telling
from tests.sweeps.many import write_sweep

ROOT = Path("/nowhere")


@pytest.mark.parametrize(
    ("verb", "space", "text"),
    [
        ("sweep", {"workflow.optimizer.lrr": [1]}, "Did you mean 'lr'?"),
        (
            "sweep",
            {"workflow.gamma": [0.9, 2, 0.5]},
            "gamma: must be between 0 and 1, got 2",
        ),
        ("sweep", {"workflow.act": ["tanh"]}, "Did you mean 'workflow.network.act'?"),
        ("sweep", {"seed": [0, -1]}, "seed: must be between 0 and 4294967295, got -1"),
        ("sweep", {"training.phases.0.collect_ticks": [8, 5]}, "multiple of collect_ticks=5"),
        ("tune", {"workflow.gamma": {"uniform": [0.5, 1.5]}}, "must be between 0 and 1, got 1.5"),
        (
            "tune",
            {"workflow.epochs": {"int": [0, 5]}},
            "epochs: must be at least 1, got 0",
        ),
        ("tune", {"workflow.network": {"choice": ["mlp", "nlp"]}}, "Did you mean 'mlp'?"),
    ],
)
def test_a_dry_run_finds_keys_and_values_that_no_job_can_have(verb, space, text, tmp_path, capsys):
    path = write_sweep(tmp_path, parameters=space)
    assert main([verb, path, "--dry-run"]) == 2
    captured = capsys.readouterr()
    assert text in captured.err
    assert not captured.out


def test_of_many_numbers_the_least_and_the_greatest_are_looked_at():
    space = {"a": [*range(1, 101), 0.5, "x"], "b": [True, False]}
    jobs = make_jobs(SweepConfig(parameters=space, seeds=(0, 1, 2)), ROOT)
    looked_at = telling(jobs)
    assert len(looked_at) <= 9
    for key, want in (("a", {1, 100, 0.5, "x"}), ("b", {True, False}), ("seed", {0, 2})):
        assert want <= {j.parameters[key] for j in looked_at}


def test_the_ends_of_every_distribution_are_looked_at():
    space = {"u": {"uniform": [0, 1]}, "i": {"int": [2, 9]}, "c": ["p", "q", "r"]}
    assert corners(SweepConfig(parameters=space)) == [
        {"u": 0.0, "i": 2, "c": "p"}, {"u": 1.0, "i": 9, "c": "q"}, {"u": 0.0, "i": 2, "c": "r"},
    ]  # fmt: skip


# -- seeds ----------------------------------------------------------------------------------------


def seeds_of(config: SweepConfig) -> list[list[str]]:
    return [[o for o in j.overrides if "seed=" in o] for j in make_jobs(config, ROOT)]


def test_a_seed_among_the_options_is_the_seed():
    assert seeds_of(SweepConfig(parameters={"seed": [1, 2]})) == [["seed=1"], ["seed=2"]]
    listed = SweepConfig(method="listed", jobs=({"seed": 7}, {"a": 1}))
    assert seeds_of(listed) == [["seed=7"], ["seed=0"]]
    drawn = SweepConfig(method="random", samples=5, parameters={"seed": {"int": [100, 200]}})
    assert all(len(s) == 1 and int(s[0][5:]) >= 100 for s in seeds_of(drawn))
    (job,) = make_jobs(SweepConfig(parameters={"seed": [3]}), ROOT)
    assert job.parameters == {"seed": 3}
    assert job.name.endswith("_seed3")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"parameters": {"seed": [1]}, "seeds": (1, 2)}, "seeds: given twice"),
        ({"jobs": ({"seed": 1},), "seeds": (5,)}, "seeds: given twice"),
        ({"overrides": ("seed=3",)}, "'seed=3' has no effect"),
        ({"overrides": ("++seed=3",)}, "'++seed=3' has no effect"),
        ({"parameters": {"+seed": [3]}}, "'+seed' has no effect"),
        ({"overrides": ("run.dir=x",)}, "'run.dir=x' has no effect"),
        ({"parameters": {"run.dir": ["x"]}}, "'run.dir' has no effect"),
    ],
)
def test_an_option_that_a_sweep_sets_itself_is_refused(options, text):
    with pytest.raises(ConfigError) as error:
        SweepConfig(**options)
    assert text in str(error.value)


# -- files that make no sense ---------------------------------------------------------------------

SPOILT = [
    ("parameters: null\n", "parameters: expected a mapping, got None"),
    ("overrides: null\n", "overrides: expected a list, got None"),
    ("experiment: null\n", "experiment: expected str, got None"),
    ("seeds: null\n", "seeds: expected a list, got None"),
    ("seeds: [-1]\n", "seeds[0]: must be between 0 and 4294967295, got -1"),
    ("limits: null\n", "limits: expected a mapping of Limits options, got None"),
    ("jobs: [null]\n", "jobs[0]: expected a mapping, got None"),
    ("tune: {trials: 0}\n", "tune.trials: must be at least 1, got 0"),
    ("tune: {trails: 1}\n", "Did you mean 'trials'?"),
    ("paramters: {}\n", "Did you mean 'parameters'?"),
    ("method: grid\nmethod: random\n", "line 2: the key 'method' is a duplicate of line 1"),
    ("parameters: {a: [1], a: [2]}\n", "the key 'a' is a duplicate of"),
    ("parameters: {a: &a [*a]}\n", "the alias *a contains itself"),
    ("parameters: {'': [1]}\n", "cannot read the argument '=1': it has no option name"),
    ("", "is empty"),
    ("- a\n", "expected options as `key: value`"),
    ("samples: 1000000000\nmethod: random\n", "samples: must be between 1 and 100000"),
    (
        "parameters:" + "".join(f"\n  k{i}: [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]" for i in range(12)),
        "1,000,000,000,000 combinations, but at most 100,000 are allowed",
    ),
]  # fmt: skip


# a study tries as many as it is told, and knows no lists of jobs
OF_SWEEPS = ("combinations", "jobs")
CASES = [
    (verb, text, message)
    for verb in ("sweep", "tune")
    for text, message in SPOILT
    if verb == "sweep" or not any(word in message for word in OF_SWEEPS)
]


@pytest.mark.parametrize(("verb", "text", "message"), CASES, ids=[f"{v}-{m}" for v, _, m in CASES])
def test_a_sweeps_file_that_makes_no_sense_is_one_message(verb, text, message, tmp_path, capsys):
    (tmp_path / "s.yaml").write_text(text)
    assert main([verb, str(tmp_path / "s.yaml"), "--dry-run"]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) <= 2


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("seeds=[", "seeds is not valid YAML"),
        ("seed=3", "'seed=3' has no effect: set the seeds of a sweep with `seeds: [...]`"),
        ("run.dir=x", "every job has a folder within `dir`"),
        ("parameters.seed=[5,6]", ""),
    ],
)
def test_an_argument_of_a_sweep_is_read_or_refused(argument, message, tmp_path, capsys):
    path = write_sweep(tmp_path, parameters={"workflow.optimizer.lr": [1e-3]})
    assert main(["sweep", path, argument, "--dry-run"]) == (2 if message else 0)
    assert message in capsys.readouterr().err


def test_a_distribution_has_finite_ends_and_whole_numbers_for_integers():
    for node, text in (
        ({"uniform": [0, float("inf")]}, "must be finite"),
        ({"int": [0.5, 3]}, "expected integers"),
    ):
        with pytest.raises(ConfigError, match=text):
            distribution("a", node)


def test_an_option_on_the_command_line_takes_the_place_of_the_files(tmp_path):
    path = write_sweep(tmp_path, parameters={"workflow.gamma": [0.9]})
    config = read_sweep(path, ["training.total_frames=200", "training.total_frames=400"])
    lengths = [o for o in config.overrides if o.startswith("training.total_frames=")]
    assert lengths == ["training.total_frames=400"]
    merged = read_sweep(path, ["env={repeat: 2}", "env={time_limit: 9}"]).overrides
    assert [o for o in merged if o.startswith("env=")] == ["env={repeat: 2}", "env={time_limit: 9}"]


def test_the_results_of_a_sweep_that_was_run_with_other_options_are_shown(tmp_path, capsys):
    path = write_sweep(tmp_path, parameters={"workflow.gamma": [0.9, 0.99]})
    asked = read_sweep(path, ["training.total_frames=200"])
    for job in make_jobs(asked, asked.folder("sweep")):
        job.write(status="failed")
    assert main(["sweep", path, "training.total_frames=200", "--show"]) == 0
    assert "other options" not in capsys.readouterr().out
    assert main(["sweep", path, "--show"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("failed") == 2
    assert "waiting" not in shown
    assert "training.total_frames" in shown.splitlines()[0]
    assert f"2 jobs were run with other options than {path} has now; none of the 2" in shown
    plain = read_sweep(path, [])
    make_jobs(plain, plain.folder("sweep"))[0].write(status="failed")
    assert main(["sweep", "--show", path]) == 0
    shown = capsys.readouterr().out
    assert (shown.count("failed"), shown.count("waiting")) == (3, 1)


def test_a_word_of_another_program_is_answered_in_a_sweep_too(tmp_path, capsys):
    path = write_sweep(tmp_path, parameters={"workflow.gamma": [0.9]})
    assert main(["sweep", path, "learning_rate=1e-3", "--dry-run"]) == 2
    assert f"dreamlab sweep {path} workflow.optimizer.lr=1e-3 --dry-run" in capsys.readouterr().err
    path = write_sweep(tmp_path, parameters={"n_envs": [2, 4]})
    assert main(["sweep", path, "--dry-run"]) == 2
    assert "n_envs: here it is env.num_envs" in capsys.readouterr().err
