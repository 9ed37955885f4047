"""Equivalents of other programs' options, as functions of the value and this configuration.

An answer depends on the configuration: `learning_rate` is `workflow.optimizer.lr` for PPO and
`workflow.model_optimizer.lr` for DreamerV2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Flat = Mapping[str, Any]
"""Every option of a configuration by its dotted name."""
Answer = dict[str, Any]
"""Options to set instead; empty if this configuration has no equivalent."""
Change = Callable[[Any, Flat], Any]
ENGINE_HOOKS = ("collect", "evaluate", "checkpoint")
SUITES = {
    "dmc": "dmc", "atari": "atari", "atari100k": "atari100k", "crafter": "crafter",
    "minecraft": "minecraft", "dmlab": "dmlab", "memmaze": "memorymaze",
    "memorymaze": "memorymaze", "procgen": "procgen", "bsuite": "bsuite", "loconav": "loconav",
    "pinpad": "pinpad", "minigrid": "minigrid",
}  # fmt: skip
"""Task prefixes of DreamerV3, and the matching environment groups here."""


# -- what a configuration has ---------------------------------------------------------------------


def _hooks(flat: Flat) -> list[list[str]]:
    """Return the hooks of each phase."""
    out: list[list[str]] = []
    while (key := f"training.phases.{len(out)}.workflow_hooks") in flat:
        out.append(list(flat[key]))
    return out


def _learns(hooks: list[str]) -> bool:
    return any(h not in ENGINE_HOOKS for h in hooks)


def _collects(flat: Flat) -> bool:
    return any("collect" in hooks for hooks in _hooks(flat))


def _phase(flat: Flat, name: str) -> str:
    """Return an option of the training phase: the last one that collects, else the last."""
    learning = [i for i, hooks in enumerate(_hooks(flat)) if _learns(hooks)]
    online = [i for i in learning if "collect" in _hooks(flat)[i]]
    found = (online or learning)[-1:]
    return f"training.phases.{found[0]}.{name}" if found else ""


def _buffer(flat: Flat, name: str) -> str:
    """Return an option of the buffer that the training phase samples from."""
    at = _phase(flat, "")
    own, sources = flat.get(f"{at}buffer"), flat.get(f"{at}sources") or []
    among = [own, *(sources if isinstance(sources, list | tuple) else [])]
    found = [f"buffers.{b}.{name}" for b in among if f"buffers.{b}.{name}" in flat]
    return found[0] if found else ""


def _updates_per_decision(flat: Flat) -> float | None:
    """Return the gradient steps per decision, if a train ratio is set."""
    ratio = flat.get(_phase(flat, "train_ratio"))
    per = _replayed(flat)
    return float(ratio) / per if ratio and per else None


def _replayed(flat: Flat) -> int:
    """Return the replayed steps per gradient step, the unit of a train ratio."""
    batch = flat.get("workflow.minibatch") or flat.get(_buffer(flat, "batch"))
    length, context = flat.get(_buffer(flat, "length")), flat.get(_buffer(flat, "context")) or 0
    return int(batch) * (int(length) - int(context)) if batch and length else 0


# -- kinds of answers -----------------------------------------------------------------------------


def same(value: Any, flat: Flat) -> Any:
    return value


def option(*patterns: str, change: Change = same) -> Callable[[Any, Flat], Answer]:
    """Return the answer that sets the first existing option; `*` matches one name."""

    def answer(value: Any, flat: Flat) -> Answer:
        for pattern in patterns:
            form = re.compile(re.escape(pattern).replace(r"\*", r"[^.]+"))
            if found := next((k for k in flat if form.fullmatch(k)), None):
                changed = change(value, flat)
                return {} if changed is None else {found: changed}
        return {}

    return answer


def fixed(options: Answer) -> Callable[[Any, Flat], Answer]:
    """Return the answer that sets options to given values."""
    return lambda value, flat: dict(options)


def gamma(value: Any, flat: Flat) -> Answer:
    if "workflow.gamma" in flat:
        return {"workflow.gamma": value}
    if "workflow.horizon" in flat and 0 <= float(value) < 1:
        return {"workflow.horizon": round(1 / (1 - float(value)))}
    return option("workflow.model.gamma")(value, flat)


def length(value: Any, flat: Flat) -> Answer:
    value = whole(value, flat)
    if _collects(flat):
        return {"training.total_frames": value}
    return {key: value} if (key := _phase(flat, "duration_updates")) else {}


def every(section: str) -> Callable[[Any, Flat], Answer]:
    """Return the answer for an interval, in the clock of the run."""

    def answer(value: Any, flat: Flat) -> Answer:
        unit = "frames" if _collects(flat) else "updates"
        return {f"{section}.every_{unit}": whole(value, flat)}

    return answer


def of_phase(name: str, change: Change = same) -> Callable[[Any, Flat], Answer]:
    def answer(value: Any, flat: Flat) -> Answer:
        key = _phase(flat, name)
        changed = change(value, flat) if flat.get(key) is not None else None
        return {} if changed is None else {key: changed}

    return answer


def of_buffer(name: str, change: Change = same) -> Callable[[Any, Flat], Answer]:
    def answer(value: Any, flat: Flat) -> Answer:
        key = _buffer(flat, name)
        return {key: change(value, flat)} if flat.get(key) is not None else {}

    return answer


def batch(value: Any, flat: Flat) -> Answer:
    return option("workflow.minibatch")(value, flat) or of_buffer("batch")(value, flat)


def rollout(value: Any, flat: Flat) -> Answer:
    """Answer for PPO's rollout length per environment."""
    length, ticks = _buffer(flat, "length"), _phase(flat, "collect_ticks")
    if flat.get(f"{length.rpartition('.')[0]}._target_") != "rollout":
        return {}
    return {length: whole(value, flat), ticks: whole(value, flat)}


def starts(value: Any, flat: Flat) -> Answer:
    """Answer for the steps before the first update: a collect-only phase, or a minimum."""
    hooks = _hooks(flat)
    if hooks and hooks[0] == ["collect"] and len(hooks) > 1:
        return {"training.phases.0.duration_steps": whole(value, flat)}
    return of_buffer("min_steps", whole)(value, flat) if _collects(flat) else {}


def whole(value: Any, flat: Flat) -> Any:
    """Return a count as an integer: 1e6 is 1000000."""
    number = float(value) if isinstance(value, str) and _is_number(value) else value
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _is_number(text: str) -> bool:
    try:
        float(text.replace("_", ""))
    except ValueError:
        return False
    return True


def ratio(value: Any, flat: Flat) -> float | None:
    """Convert gradient steps per decision to a train ratio."""
    count = float(value)
    return count * _replayed(flat) if count > 0 and _replayed(flat) else None


def ratio_of_period(value: Any, flat: Flat) -> float | None:
    """Convert decisions per gradient step to a train ratio."""
    return _replayed(flat) / float(value) if float(value) > 0 and _replayed(flat) else None


def gradient_steps(value: Any, flat: Flat) -> int | None:
    """Convert an interval in decisions to gradient steps."""
    each = _updates_per_decision(flat)
    return max(1, round(float(value) * each)) if each else None


def decisions(value: Any, flat: Flat) -> int | None:
    """Convert a fraction of training to decisions."""
    planned = [flat.get(f"training.phases.{i}.duration_steps") for i in range(len(_hooks(flat)))]
    frames = flat.get("training.total_frames") or sum(p or 0 for p in planned)
    repeat = int(flat.get("env.repeat") or 1)
    return max(1, round(float(value) * frames / repeat)) if frames else None


def with_context(value: Any, flat: Flat) -> int:
    return int(float(value)) + int(flat.get(_buffer(flat, "context")) or 0)


def layers(value: Any, flat: Flat) -> Any:
    """Return the hidden layer sizes from `policy_kwargs`, in any of its forms."""
    sizes = value
    while isinstance(sizes, Mapping):
        sizes = sizes.get("net_arch", sizes.get("pi", next(iter(sizes.values()), None)))
    if isinstance(sizes, str):
        sizes = [int(n) for n in re.findall(r"\d+", sizes)]
    whole = [int(n) for n in sizes] if isinstance(sizes, list | tuple) else []
    return whole or None


def task(value: Any, flat: Flat) -> Answer:
    """Answer for an environment name: Gymnasium's, or `dmc_walker_walk`, `walker-walk`."""
    text = str(value)
    prefix, _, rest = text.partition("_")
    suite = str(flat.get("env.suite", ""))
    if prefix in SUITES and rest and "-v" not in text:
        group = SUITES[prefix]
        own = {} if group.removesuffix("100k") == suite else {"env": group}
        return own | {"env.id": rest}
    if suite == "dmc" and re.fullmatch(r"[a-z]+(-[a-z]+)+", text):
        return {"env.id": text.replace("-", "_")}
    return {"env": text}


def device(value: Any, flat: Flat) -> Answer:
    text = str(value).lower()
    if text in ("true", "1", "gpu"):
        return {"device": "cuda"}
    return {"device": "cpu" if text in ("false", "0") else text.partition(":")[0]}


def dtype(value: Any, flat: Flat) -> Answer:
    """Answer for a dtype name, or for a flag for reduced precision."""
    text = str(value).lower()
    return {"precision": "bf16" if text in ("true", "1", "bf16", "bfloat16") else "fp32"}


def size(value: Any, flat: Flat) -> Answer:
    """Answer for a model's size: `12m`, `size12m`, or TD-MPC2's 5 for five million."""
    text = str(value).lower().removeprefix("size").removesuffix("m")
    return option("workflow.size", change=lambda v, f: f"{text}m")(value, flat)


def anneal(value: Any, flat: Flat) -> Answer:
    kind = "linear" if _on(value) else "constant"
    return option("workflow.optimizer.schedule._target_")(kind, flat)


def _on(value: Any) -> bool:
    return str(value).lower() not in ("false", "0", "none", "null", "no")


def switch(key: str) -> Callable[[Any, Flat], Answer]:
    """Return the answer that sets a boolean option."""
    return lambda value, flat: {key: _on(value)}


def wandb(key: str) -> Callable[[Any, Flat], Answer]:
    """Return the answer that sets a W&B option, which only applies if W&B is enabled."""
    return lambda value, flat: {"log.wandb": True, key: value}


def none(value: Any, flat: Flat) -> Answer:
    """Answer for options without an equivalent; the note says why."""
    return {}


def data_path(value: Any, flat: Flat) -> str:
    """Return a local folder for a dataset that another program names by its hub path."""
    text = str(value)
    return text if text.startswith((".", "/", "~", "data/")) else f"data/{text.rpartition('/')[2]}"


def vector(value: Any, flat: Flat) -> str:
    return "async" if "sub" in str(value).lower() else "sync"
