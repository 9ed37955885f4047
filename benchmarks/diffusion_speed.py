"""How fast diffusion policies learn and act, ours beside LeRobot's of the same size.

    python benchmarks/diffusion_speed.py [--lerobot PYTHON] [--device cpu] [--threads 1] [--record]

The same U-Net over chunks of 16 actions from two steps of 18 numbers (PushT's keypoints), batch 64:
updates a second (noise, loss, backward pass, Adam) and sampled actions a second (10 steps of DDIM
for 64 observations, 8 actions of each executed). With `--lerobot` the Python of an environment in
which LeRobot can be imported runs this file too; both are measured in turns, the best round of each
counts. On one thread of a CPU only the seconds count in which the process had it.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"
SIZES = {"small": (64, 128, 256), "states": (256, 512, 1024)}
BATCH, STATE, CORNERS, ACTION, HORIZON, EXECUTE = 64, 2, 16, 2, 16, 8
LEVELS, STEPS, TIME_DIM = 100, 10, 128


def rate(call: Callable[[], Any], seconds: float, device: str) -> float:
    """Return how often a second something can be done."""
    alone = device == "cpu" and torch.get_num_threads() == 1
    clock = time.process_time if alone else time.perf_counter
    call()
    _wait(device)
    done, begun = 0, clock()
    while clock() - begun < seconds:
        call()
        done += 1
    _wait(device)
    return done / (clock() - begun)


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def ours(widths: tuple[int, ...], device: str) -> tuple[Callable[[], Any], Callable[[], Any], int]:
    """Return an update, a decision and the number of weights of our policy."""
    from dreamlab.core.config import load
    from dreamlab.core.phase import Phase
    from dreamlab.core.types import ArraySpec, Batch, Mode, Spec
    from dreamlab.workflows.imitation import Imitation, ImitationConfig

    net = {"_target_": "unet1d", "widths": widths, "time_dim": TIME_DIM}
    policy = {
        "_target_": "diffusion", "obs_steps": 2, "horizon": HORIZON, "execute": EXECUTE,
        "levels": LEVELS, "sampler": "ddim", "sample_steps": STEPS, "net": net,
    }  # fmt: skip
    optimizer = {"_target_": "adam", "lr": 1e-4, "ema": 0.0, "ema_power": 0.0}
    spec = Spec({"state": ArraySpec((STATE + CORNERS,))}, ArraySpec((2,), low=-1.0, high=1.0))
    node = {"policy": policy, "optimizer": optimizer}
    workflow = Imitation(load(ImitationConfig, node, "workflow"), spec).to(device)
    obs = {"state": torch.randn(BATCH, HORIZON, STATE + CORNERS)}
    flags = torch.zeros(BATCH, HORIZON, dtype=torch.bool)
    action = torch.rand(BATCH, HORIZON, ACTION) * 2 - 1
    batch = Batch(obs, action, torch.zeros(BATCH, HORIZON), flags, flags, flags).to(device)
    seen = {"state": batch.obs["state"][:, :2]}
    phase = Phase("clone", ("update_policy",))
    count = sum(p.numel() for p in workflow.policy.parameters())

    @torch.no_grad()
    def sample() -> Any:
        return workflow.policy.sample(seen, mode=Mode.EVAL)

    return lambda: workflow.update_policy(batch, phase=phase), sample, count


def theirs(
    widths: tuple[int, ...], device: str
) -> tuple[Callable[[], Any], Callable[[], Any], int]:
    """Return the same of LeRobot's policy."""
    root = Path(__file__).parents[1]
    sys.path.insert(0, str(root / "tests" / "interop"))
    import make_lerobot_checkpoint as made

    features = {
        "observation.state": made.PolicyFeature(made.FeatureType.STATE, (STATE,)),
        "observation.environment_state": made.PolicyFeature(made.FeatureType.ENV, (CORNERS,)),
    }
    config = made.DiffusionConfig(
        input_features=features,
        output_features={"action": made.PolicyFeature(made.FeatureType.ACTION, (ACTION,))},
        horizon=HORIZON, n_action_steps=EXECUTE, down_dims=widths, num_train_timesteps=LEVELS,
        diffusion_step_embed_dim=TIME_DIM, noise_scheduler_type="DDIM", num_inference_steps=STEPS,
        device=device,
    )  # fmt: skip
    policy = made.DiffusionPolicy(config).to(device)
    opt = torch.optim.Adam(policy.parameters(), 1e-4)
    batch = {
        "observation.state": torch.randn(BATCH, 2, STATE),
        "observation.environment_state": torch.randn(BATCH, 2, CORNERS),
        "action": torch.rand(BATCH, HORIZON, ACTION) * 2 - 1,
        "action_is_pad": torch.zeros(BATCH, HORIZON, dtype=torch.bool),
    }
    batch = {k: v.to(device) for k, v in batch.items()}
    seen = {k: v for k, v in batch.items() if k.startswith("observation")}

    def update() -> None:
        loss, _ = policy.forward(batch)
        opt.zero_grad()
        loss.backward()
        opt.step()

    @torch.no_grad()
    def sample() -> Any:
        return policy.diffusion.generate_actions(seen)

    return update, sample, sum(p.numel() for p in policy.parameters())


def measure(name: str, size: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return what one policy of one size does."""
    torch.set_num_threads(args.threads)
    update, sample, count = (ours if name == "dreamlab" else theirs)(SIZES[size], args.device)
    return {
        "updates_per_s": rate(update, args.seconds, args.device),
        "actions_per_s": rate(sample, args.seconds, args.device) * BATCH * EXECUTE,
        "weights": count,
    }


def rounds(args: argparse.Namespace, size: str) -> dict[str, dict[str, Any]]:
    """Return the best of all rounds of each program, measured in turns, each in its own process."""
    pythons = {"dreamlab": sys.executable, **({"lerobot": args.lerobot} if args.lerobot else {})}
    best: dict[str, dict[str, Any]] = {}
    for _ in range(args.rounds):
        for name, python in pythons.items():
            command = [python, __file__, "--only", name, "--size", size, "--device", args.device,
                       "--threads", str(args.threads), "--seconds", str(args.seconds)]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{name}: {done.stderr[-2000:]}")
            found = json.loads(done.stdout.splitlines()[-1])
            old = best.get(name, found)
            best[name] = {k: max(v, old[k]) for k, v in found.items()}
            print(size, name, found, flush=True)
    return best


def table(results: dict[str, dict[str, dict[str, Any]]], args: argparse.Namespace) -> str:
    """Return the numbers as a page."""
    place = platform.processor() or platform.machine()
    if args.device != "cpu":
        place = torch.cuda.get_device_name()
    lines = [
        "# Speed of diffusion policies", "",
        f"U-Net over {HORIZON} actions, batch {BATCH}, DDIM with {STEPS} steps; {place}, "
        f"{args.threads} thread{'s' * (args.threads > 1)}, torch {torch.__version__}; best of "
        f"{args.rounds} rounds in turns{', seconds of a core' * (args.threads == 1)}. "
        "An observation gives 8 executed actions. "
        "`python benchmarks/diffusion_speed.py --record` makes this.", "",
        "| widths | weights | program | updates/s | actions/s |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for size, programs in results.items():
        for name, row in programs.items():
            lines.append(
                f"| {'-'.join(map(str, SIZES[size]))} | {row['weights']:,} | {name} | "
                f"{row['updates_per_s']:.2f} | {row['actions_per_s']:,.0f} |"
            )
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lerobot", help="a Python that can import LeRobot")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", choices=SIZES, help="one size alone")
    parser.add_argument("--only", choices=["dreamlab", "lerobot"], help=argparse.SUPPRESS)
    parser.add_argument("--record", action="store_true")
    args = parser.parse_args()
    if args.only:
        print(json.dumps(measure(args.only, args.size, args)))
        return
    results = {size: rounds(args, size) for size in ([args.size] if args.size else SIZES)}
    page = table(results, args)
    print(page)
    if args.record:
        (RESULTS / "diffusion_speed.md").write_text(page)
        (RESULTS / "diffusion_speed.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
