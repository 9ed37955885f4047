"""An exported policy as a file, ONNX or TorchScript, and its progress from the original."""

from __future__ import annotations

import copy
import importlib
import logging
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from dreamlab.core.errors import LabError, require
from dreamlab.core.files import write_atomic, write_json
from dreamlab.core.types import Mode, Step
from dreamlab.core.workflow import Workflow
from dreamlab.export.policy_export import Exported, Tensors, memory_of, random_obs

Format = Literal["onnx", "torchscript"]
SUFFIX = {"onnx": ".onnx", "torchscript": ".pt"}
TOLERANCE = 1e-4
Runner = Callable[[tuple[Tensor, ...]], list[Tensor]]


# -- files ----------------------------------------------------------------------------------------


def write_checked(
    policy: Exported, path: Path, kind: Format, check: Callable[[Runner], Parity], tolerance: float
) -> Parity:
    """Write the file if what it computes is right; otherwise what was there stays."""
    unchecked = path.with_name(f".{path.name}.unchecked")
    try:
        parity = check(write_policy(policy, unchecked, kind))
        if not parity.worst <= tolerance:
            raise LabError(
                f"export-policy: the {kind} file differs from the original by {parity.worst:.3g}, "
                f"more than --tolerance {tolerance:g}; the file was removed"
            )
        unchecked.replace(path)
    finally:
        unchecked.unlink(missing_ok=True)
    return parity


def write_policy(policy: Exported, path: Path, kind: Format) -> Runner:
    """Write the file; return a function that runs what was written.

    It takes any number of rows unless `policy.batch` says how many. Where that cannot be, it takes
    one, and so says `policy.batch` then.
    """
    if policy.batch is None:
        try:
            run = _write(policy, path, kind)
            apart = compare_rows(policy, run)
            if apart <= TOLERANCE:
                return run
            reason = f"with a larger batch the outputs differ by {apart:.3g}"
        except (OSError, LabError):  # a full disk, a missing extra: for one row it is no better
            raise
        except Exception as error:  # of a tracer, of any kind; for one row it may succeed
            reason = str(error.__cause__ or error).partition("\n")[0]
        logging.getLogger(__name__).warning("no dynamic batch size: %s", reason)
        policy.batch = 1
    try:
        return _write(policy, path, kind)
    except torch.onnx.OnnxExporterError as error:  # an operation without an ONNX form
        reason = str(error.__cause__ or error).partition("\n")[0]
        raise LabError(
            f"export-policy: this policy has no ONNX form ({reason}); use --format torchscript"
        ) from error


@torch.no_grad()
def _write(policy: Exported, path: Path, kind: Format) -> Runner:
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)  # of what is not installed and not needed
    try:
        with warnings.catch_warnings():  # of what a trace may get wrong: it is compared afterwards
            warnings.simplefilter("ignore")
            write = _write_torchscript if kind == "torchscript" else _write_onnx
            return write(policy, path)
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _write_torchscript(policy: Exported, path: Path) -> Runner:
    traced: Any = torch.jit.trace(policy, policy.example(), check_trace=False)
    write_atomic(path, lambda file: torch.jit.save(traced, file))
    loaded: Any = torch.jit.load(str(path))
    return lambda values: list(loaded(*values))


def _write_onnx(policy: Exported, path: Path) -> Runner:
    for module in ("onnx", "onnxscript", "onnxruntime"):
        require(module, "export")
    example = policy.example()
    shapes = None if policy.batch else (tuple({0: "batch"} for _ in example),)
    program: Any = torch.onnx.export(
        policy, example, input_names=policy.inputs, output_names=policy.outputs,
        dynamo=True, verbose=False, optimize=True, dynamic_shapes=shapes,
    )  # fmt: skip
    write_atomic(path, lambda file: file.write(program.model_proto.SerializeToString()))
    runtime: Any = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1  # one row is too little work to share
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = {i.name for i in session.get_inputs()}

    def run(values: tuple[Tensor, ...]) -> list[Tensor]:
        pairs = zip(policy.inputs, values, strict=True)
        given = {k: v.numpy() for k, v in pairs if k in names}
        return [torch.from_numpy(np.asarray(x)) for x in session.run(policy.outputs, given)]

    return run


def write_metadata(path: Path, policy: Exported, kind: Format, about: dict[str, Any]) -> Path:
    """Write what a user of the file must know beside it."""
    spec, example = policy.workflow.spec, policy.example()
    rows = policy.batch or "batch"
    inputs = [
        {"name": n, "shape": [rows, *x.shape[1:]], "dtype": str(x.dtype).removeprefix("torch.")}
        for n, x in zip(policy.inputs, example, strict=True)
    ]
    data = {
        "format": kind,
        "batch": policy.batch,
        "inputs": inputs,
        "outputs": policy.outputs,
        "spec": {"obs": {k: asdict(s) for k, s in spec.obs.items()}, "action": asdict(spec.action)},
        "normalized_inside": policy.normalize.names,
        "scaled_inside": policy.actions.low is not None or policy.actions.data is not None,
        **about,
    }
    target = path.with_suffix(".json")
    write_json(target, data)
    return target


# -- parity ---------------------------------------------------------------------------------------


@dataclass
class Parity:
    """How far the written file is from the workflow it was made of."""

    steps: int = 0
    action: float = 0.0
    memory: float = 0.0

    @property
    def worst(self) -> float:
        return max(self.action, self.memory)


@torch.no_grad()
def compare(
    policy: Exported, run: Runner, workflow: Workflow[Any], steps: list[Step], env_action: Any
) -> Parity:
    """Run the file beside `workflow.act` on raw steps; return what differs.

    Both get the workflow's memory at every step: one difference is not counted twice. The
    workflow's actions are scaled by `env_action`, the environment's own wrapper.
    """
    out, state, memory = Parity(), workflow.initial_state(len(steps[0].is_first)), None
    for step in steps:
        decision = workflow.act(_scaled(policy, step), state, Mode.FIXED)
        found = run(policy.arrange(step.obs, step.is_first, memory))
        wanted = np.stack([env_action(a) for a in decision.action.numpy()])
        out.action = max(out.action, _distance(found[0], torch.from_numpy(wanted)))
        state = decision.state
        memory = memory_of(state)
        for name, value in zip(policy.memory_names, found[1:], strict=True):
            out.memory = max(out.memory, _distance(value, memory[name]))
        out.steps += 1
    return out


@torch.no_grad()
def compare_rows(policy: Exported, run: Runner) -> float:
    """Return how far the file is from the policy it was made of, with 1 and with 5 rows."""
    worst = 0.0
    for rows in (1, 5):
        memory: Tensors = {}
        for is_first in (np.ones(rows, bool), np.arange(rows) % 2 == 1):
            obs = random_obs(policy.workflow.spec, rows, rows)
            values = policy.arrange(obs, is_first, memory)
            wanted, found = policy(*values), run(values)
            if [x.shape for x in wanted] != [x.shape for x in found]:
                return np.inf
            worst = max(worst, *(_distance(a, b) for a, b in zip(wanted, found, strict=True)))
            memory = dict(zip(policy.memory_names, wanted[1:], strict=True))
    return worst


@torch.no_grad()
def record(
    policy: Exported, workflow: Workflow[Any], envs: Any, ticks: int, seed: int = 0
) -> list[Step]:
    """Play with the workflow on raw environments; return those steps and as many made-up ones."""
    steps: list[Step] = []
    step, state = envs.reset(), workflow.initial_state(envs.num_envs)
    for _ in range(ticks):
        steps.append(copy.deepcopy(step))
        decision = workflow.act(_scaled(policy, step), state, Mode.EVAL)
        state, step = decision.state, envs.step(decision.action.numpy())
    made = [random_obs(workflow.spec, envs.num_envs, seed + i) for i in range(ticks)]
    no, zero = np.zeros(envs.num_envs, bool), np.zeros(envs.num_envs, np.float32)
    return steps + [Step(obs, zero, no, no, no) for obs in made]


def _scaled(policy: Exported, step: Step) -> Step:
    """Return a raw step as the workflow saw it in training."""
    obs = policy.normalize({k: torch.from_numpy(v) for k, v in step.obs.items()})
    return replace(step, obs={k: v.numpy() for k, v in obs.items()})


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).abs().max()) if a.numel() else 0.0
