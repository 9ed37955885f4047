"""The model card of a policy: what it is, how good it is, what it looks like, how to load it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dreamlab.core.errors import require
from dreamlab.core.names import TAG
from dreamlab.runs.run import Run

FILMS = {"replay.mp4": "videos/*.mp4", "dream.mp4": "report/openloop_*.mp4"}
"""What of a run's videos a card shows, the newest of each, under the name it gets on the hub."""
CAPTIONS = {
    "replay.mp4": "An episode",
    "dream.mp4": "The world model: what happened, what it predicted, and the difference",
}

BODY = """
# {name}

Trained for {frames:,} env frames with seed {seed}, with dreamlab {version}.

| metric | value |
|---|---|
{rows}
{films}
Measure it with `dreamlab eval {source}`, load it with `dreamlab.load("{source}")`.
"""


def films_of(folder: Path) -> dict[str, Path]:
    """Return a run's newest videos by the name they get on the hub."""
    found = {name: sorted(folder.glob(pattern)) for name, pattern in FILMS.items()}
    return {name: paths[-1] for name, paths in found.items() if paths}


def model_card(
    run: Run, algorithm: str, about: Mapping[str, Any], films: Mapping[str, Path]
) -> str:
    """Return the card; `about` has `env`, `frames` and `source`, by which others find it."""
    hub = require("huggingface_hub", "export")
    name, results = f"{algorithm} on {about['env']}", _results(run)
    data = hub.ModelCardData(
        library_name="dreamlab",
        pipeline_tag="reinforcement-learning",
        tags=["reinforcement-learning", about["env"], algorithm],
        model_name=name,
        eval_results=[_result(about["env"], k, v) for k, v in results.items()] or None,
    )
    body = BODY.format(
        name=name,
        rows="\n".join(f"| {k} | {v:.6g} |" for k, v in results.items()) or "| none | - |",
        films="".join(f"\n{_film(n)}\n" for n in films),
        seed=run.manifest.get("seed"),
        version=run.manifest.get("versions", {}).get("dreamlab", "?"),
        frames=about["frames"],
        source=about["source"],
    )
    return str(hub.ModelCard(f"---\n{data.to_yaml()}\n---\n{body}"))


def _results(run: Run) -> dict[str, float]:
    """Return what the last evaluation measured, or the return of the last episodes."""
    found = run.manifest.get("final_eval") or {}
    if not found and run.manifest.get("last_return") is not None:
        found = {"episode/return": run.manifest["last_return"]}
    return {k: v for k, v in found.items() if TAG.fullmatch(k) and isinstance(v, int | float)}


def _result(env: str, name: str, value: float) -> Any:
    """Return a result as the hub knows it; it calls a mean return `mean_reward`."""
    hub = require("huggingface_hub", "export")
    kind = "mean_reward" if name in ("eval/return", "episode/return") else name
    return hub.EvalResult(
        task_type="reinforcement-learning",
        dataset_type=env,
        dataset_name=env,
        metric_type=kind,
        metric_name=name,
        metric_value=value,
    )


def _film(name: str) -> str:
    return f'{CAPTIONS[name]}:\n\n<video controls loop muted src="{name}"></video>'
