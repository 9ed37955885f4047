"""Env steps per second, side by side with Stable-Baselines3 and SBX (its JAX form).

    python benchmarks/vs_peers.py [--rounds 3] [--only ppo dqn sac] [--threads N]
        [--peer-python PATH] [--record]

Same machine, same hyperparameters. Each system trains in its own process, in turn, several rounds;
a ratio is that of the medians. Every process first trains a little without being timed: compiling
falls into that, and how long it took is in the table. A peer is given whichever number of threads
suits it better; ours is as `dreamlab train` would set it. `--threads` gives everyone as many: one,
where the machine is not idle. The peers live in an environment of their
own: that of `--peer-python`, or one that is made from PyPI in `~/.cache/dreamlab/peers` the first
time. The last lines are ratios, ours to theirs: uncompiled, then with `compile=true`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from peers import FRAMES, WARM_UP

PEERS = ("sb3", "sbx")
NAMES = {"sb3": "Stable-Baselines3", "sbx": "SBX"}
WANTED = ("stable-baselines3==2.9.2", "sbx-rl==0.28.0", "gymnasium")
EXPERIMENTS = {"ppo": "ppo_cartpole", "dqn": "dqn_cartpole", "sac": "sac_pendulum"}
HERE = Path(__file__).parent
CACHE = Path.home() / ".cache" / "dreamlab" / "peers"


# -- one measurement of ours ----------------------------------------------------------------------


def ours(name: str, compiled: bool, threads: int) -> dict[str, Any]:
    """Return env frames per second of our experiment, where the time went, and the warm-up's."""
    import tempfile

    from dreamlab.accel.before_torch import prepare

    prepare()  # as the command line does
    from dreamlab import build, training
    from dreamlab.config import compose, load_config
    from dreamlab.engine.terminal import Terminal

    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        options = [
            f"+experiment={EXPERIMENTS[name]}", f"run.dir={folder}/run", "log.terminal=off",
            "device=cpu", "eval.every_frames=0", "checkpoint.every_frames=0",
            "checkpoint.every_s=0", "seed=1", f"compile={compiled}",
            f"training.total_frames={WARM_UP[name] + FRAMES[name]}",
        ]  # fmt: skip
        options += [f"threads={threads}"] if threads else []
        with training.open_run(load_config(compose(options))) as opened:
            loop = build.build(opened.config, opened.run, Terminal("off", opened.config.name))
            opened.keep()
        speed = _speed(WARM_UP[name])
        loop.observers.add(speed)
        loop.run()
    total = sum(speed.seconds.values())
    shares = {k: v / total for k, v in speed.seconds.items()}
    return {"speed": speed.frames_per_s, "warm_up_s": speed.since[0] - began, "shares": shares}


def _speed(warm_up: int) -> Any:
    """Return an observer that times training, and training alone, from a frame on."""
    from dreamlab.engine.observer import StageTimes

    class Speed(StageTimes):
        frames_per_s, since = 0.0, (0.0, 0)

        def started(self, loop: Any) -> None:
            self.loop = loop

        def before(self, action: str) -> None:
            frames = self.loop.counters.env_frames
            if not self.since[1] and frames >= warm_up:
                self.since, self.seconds = (time.perf_counter(), frames), {}
            super().before(action)

        def after(self, action: str) -> None:
            super().after(action)
            if self.loop.scheduler.next_action() is None:
                elapsed = time.perf_counter() - self.since[0]
                self.frames_per_s = (self.loop.counters.env_frames - self.since[1]) / elapsed
                self.seconds["rest"] = elapsed - sum(self.seconds.values())
                self.loop.stop()  # without the evaluation of the end

    return Speed()


# -- all of them, in turn -------------------------------------------------------------------------


def peer_python(given: Path | None) -> Path:
    """Return the Python that has the peers; make its environment if none was given."""
    python = given or CACHE / "bin" / "python"
    if given is not None and not given.exists():
        raise SystemExit(f"--peer-python: there is no {given}")
    if not (python.parent.parent / ".complete").exists() and given is None:
        print(f"installing {', '.join(WANTED)} into {CACHE}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(CACHE)], check=True)
        limits = str(HERE.parent / "constraints.txt")
        line = [str(python), "-m", "pip", "install", "--quiet", "-c", limits, *WANTED]
        subprocess.run(line, check=True)
        (CACHE / ".complete").touch()
    return python


def in_process(python: Path | str, script: str, *arguments: str) -> dict[str, Any]:
    """Run one measurement in a fresh process and return what it printed."""
    command = [str(python), str(HERE / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def measure(name: str, rounds: int, python: Path, threads: int) -> dict[str, Any]:
    """Alternate all systems and return, for each, the run of median speed.

    Peers run with one thread and with two; the better median counts.
    """

    def mine(compiled: str) -> dict[str, Any]:
        return in_process(sys.executable, "vs_peers.py", "--one", name, compiled, str(threads))

    def peer(system: str, threads: int) -> dict[str, Any]:
        return in_process(python, "peers.py", system, name, str(threads))

    choices = (threads,) if threads else (1, 2)
    runs: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for _ in range(rounds):
        runs["compiled"].append(mine("true"))
        for n in choices:
            runs["sbx", n].append(peer("sbx", n))
        runs["plain"].append(mine("false"))
        for n in choices:
            runs["sb3", n].append(peer("sb3", n))
    for system, done in runs.items():
        print(name, system, " ".join(f"{r['speed']:,.0f}" for r in done), flush=True)
    found = {k: _median(v) for k, v in runs.items()}
    best = {s: max(choices, key=lambda n, s=s: found[s, n]["speed"]) for s in PEERS}
    return {"threads": best, **found, **{s: found[s, n] for s, n in best.items()}}


def _median(runs: list[dict[str, Any]]) -> dict[str, Any]:
    speed = statistics.median(r["speed"] for r in runs)
    return {**min(runs, key=lambda r: abs(r["speed"] - speed)), "speed": speed}


def table(results: dict[str, dict[str, Any]]) -> list[str]:
    """Return the lines of the table: env steps per second, seconds of warm-up, shares."""
    lines = [
        "| algorithm | compiled | uncompiled | SB3 | SBX | warm-up, s | compiled: "
        "collect/update/rest |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, r in results.items():
        shares = r["compiled"]["shares"]
        share = " / ".join(f"{shares.get(k, 0):.0%}" for k in ("collect", "update", "rest"))
        peers = [f"{r[s]['speed']:,.0f} ({_threads(r['threads'][s])})" for s in PEERS]
        warm = " / ".join(f"{r[s]['warm_up_s']:.0f}" for s in ("compiled", "plain", *PEERS))
        mine = [f"{r[s]['speed']:,.0f}" for s in ("compiled", "plain")]
        lines.append(f"| {' | '.join([name, *mine, *peers, warm, share])} |")
    return lines


def _threads(number: int) -> str:
    return f"{number} thread{'s' * (number > 1)}"


def ratios(results: dict[str, dict[str, Any]], form: str, peer: str) -> str:
    """Return how many times a peer's speed ours is, for each algorithm."""
    each = [f"{n}={r[form]['speed'] / r[peer]['speed']:.2f}" for n, r in results.items()]
    return " ".join([peer, *each])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--record", action="store_true", help="write benchmarks/results")
    parser.add_argument("--only", nargs="*", choices=list(FRAMES), default=list(FRAMES))
    parser.add_argument("--peer-python", type=Path, help="a Python that has sbx-rl installed")
    parser.add_argument("--threads", type=int, default=0, help="of everyone; 0: what suits each")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, compiled, threads = options.one
        print(json.dumps(ours(name, compiled == "true", int(threads))))
        return
    python = peer_python(options.peer_python)
    results = {n: measure(n, options.rounds, python, options.threads) for n in options.only}
    lines = [
        *table(results), "",
        *(f"uncompiled: {ratios(results, 'plain', peer)}" for peer in PEERS),
        *(ratios(results, "compiled", peer) for peer in PEERS),
    ]  # fmt: skip
    if options.record:
        record(lines, options, in_process(python, "peers.py", "versions"))
    print("\n".join(lines))


def record(lines: list[str], options: argparse.Namespace, versions: dict[str, str]) -> None:
    """Write the table with what it depends on."""
    from dreamlab.runs.run import git_state, hardware

    commit = git_state().get("commit", "?")[:10]
    machine = f"{hardware()['cpu']}, {hardware()['cpus']} cores"
    shown, load = ", ".join(f"{k} {v}" for k, v in versions.items()), os.getloadavg()[2]
    command = f"python benchmarks/vs_peers.py --rounds {options.rounds}"
    command += f" --threads {options.threads} --record" if options.threads else " --record"
    text = f"""# Speed beside Stable-Baselines3 and SBX

`{command}`, commit {commit},
{machine}, load {load:.0f} over the last 15 minutes, Python {platform.python_version()}, {shown}.

CartPole-v1 (PPO, DQN) and Pendulum-v1 (SAC) with the hyperparameters of rl-baselines3-zoo; every
system on the CPU, in its own process, in turn, medians of env steps per second. The warm-up before
(compiled, uncompiled, SB3, SBX) is not counted; compiling falls into it, and is cached by torch for
the next run. The last lines are ratios, ours to theirs.

"""
    path = HERE / "results" / "vs_peers.md"
    path.write_text(text + _with_code(lines) + "\n")


def _with_code(lines: list[str]) -> str:
    at = lines.index("")
    return "\n".join([*lines[: at + 1], "```", *lines[at + 1 :], "```"])


if __name__ == "__main__":
    main()
