"""A policy as a folder for a model hub: a card, the configuration, weights without any pickle.

README.md               the card: what, how good, how to load it
config.yaml             the run's whole configuration
model.safetensors       the workflow's parameters and buffers
normalizer.safetensors  statistics of observations and rewards
manifest.json           of the run: versions, hardware, code
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dreamlab.core.errors import LabError, require
from dreamlab.core.files import write_json, write_text
from dreamlab.core.tree import tree_leaves
from dreamlab.core.workflow import Workflow
from dreamlab.runs.run import Run

CARD = """---
library_name: dreamlab
pipeline_tag: reinforcement-learning
tags: [reinforcement-learning, {env}, {workflow}]
---

# {workflow} on {env}

Trained for {frames:,} env frames with seed {seed}, with dreamlab {version}.

| metric | value |
|---|---|
{rows}

Load it with `dreamlab.commands.trust.load_hub(folder)`.
"""


def is_hub(folder: Path) -> bool:
    """Tell whether a folder was written by `write_hub`."""
    return (folder / "model.safetensors").is_file() and (folder / "config.yaml").is_file()


def write_hub(
    folder: Path, run: Run, workflow: Workflow[Any], statistics: dict[str, Any], about: Any
) -> None:
    """Write the whole folder, or nothing; one that exists is not overwritten.

    `about` has the card's `env` and `frames`.
    """
    require("safetensors", "export")
    if folder.exists():
        raise LabError(f"{folder} exists already: give the hub another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _save(temporary / "model.safetensors", weights(workflow))
        _save(temporary / "normalizer.safetensors", _flat(statistics))
        shutil.copy(run.config_path, temporary / "config.yaml")
        write_json(temporary / "manifest.json", run.manifest)
        write_text(temporary / "README.md", _card(run, workflow, about))
        temporary.chmod(0o755)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _card(run: Run, workflow: Workflow[Any], about: Any) -> str:
    results = run.manifest.get("final_eval") or {}
    if not results and run.manifest.get("last_return") is not None:
        results = {"episode/return": run.manifest["last_return"]}
    return CARD.format(
        rows="\n".join(f"| {k} | {v:.6g} |" for k, v in results.items()) or "| none | - |",
        workflow=type(workflow).__name__,
        seed=run.manifest.get("seed"),
        version=run.manifest.get("versions", {}).get("dreamlab", "?"),
        **about,
    )


def weights(workflow: Workflow[Any]) -> dict[str, Tensor]:
    """Return the parameters and buffers by name, without optimizers."""
    state = workflow.state_dict()
    return {k: v.detach().cpu().contiguous().clone() for k, v in state.items() if _is_tensor(v)}


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def load_weights(folder: Path, workflow: Workflow[Any]) -> None:
    """Fill a workflow from a hub's folder; raise if anything is missing or too much."""
    found = _load(folder / "model.safetensors")
    has, needs = ({k: v.shape for k, v in x.items()} for x in (found, weights(workflow)))
    if has != needs:
        odd = sorted(k for k in has.keys() | needs.keys() if has.get(k) != needs.get(k))
        raise LabError(f"{folder}: the weights do not fit its configuration: {', '.join(odd[:5])}")
    workflow.load_state_dict(found, strict=False)


def load_statistics(folder: Path) -> dict[str, Any]:
    """Return the statistics of normalisation, as a checkpoint holds them."""
    out: dict[str, Any] = {"obs": {}}
    for path, value in _load(folder / "normalizer.safetensors").items():
        *parents, name = path.split("/")
        node = out
        for key in parents:
            node = node.setdefault(key, {})
        node[name] = value
    return out


def _flat(statistics: dict[str, Any]) -> dict[str, Tensor]:
    pairs = tree_leaves(statistics)
    return {k: torch.as_tensor(v, dtype=torch.float64).clone() for k, v in pairs}


def _save(path: Path, tensors: dict[str, Tensor]) -> None:
    from safetensors.torch import save_file

    save_file(tensors, str(path), metadata={"format": "pt"})


def _load(path: Path) -> dict[str, Tensor]:
    require("safetensors", "export")
    from safetensors.torch import load_file

    return load_file(str(path))
