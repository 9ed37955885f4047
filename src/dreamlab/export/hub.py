"""A policy as a folder for a model hub: a card, the configuration, weights without any pickle.

README.md               the card: what, how good, how to load it
config.yaml             the run's configuration, without what is only about its owner's machine
model.safetensors       the workflow's parameters and buffers
normalizer.safetensors  statistics of observations and rewards
manifest.json           of the run: versions, hardware, commit, results
replay.mp4, dream.mp4   an episode, an open-loop prediction; where the run has made them

`hub:OWNER/NAME[@REVISION]` stands for such a folder on the hub of Hugging Face.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dreamlab import __version__
from dreamlab.config import LabConfig, to_yaml
from dreamlab.core.errors import LabError, require
from dreamlab.core.files import write_atomic, write_json, write_text
from dreamlab.core.tree import tree_leaves
from dreamlab.core.workflow import Workflow
from dreamlab.export.card import films_of, model_card
from dreamlab.interop.strangers import is_hub
from dreamlab.runs.run import Run

FILES = (
    "README.md", "config.yaml", "manifest.json", "model.safetensors", "normalizer.safetensors",
)  # fmt: skip
# What of a run's manifest is handed on; its command line, say, is not.
PUBLIC = (
    "id", "name", "seed", "created", "status", "versions", "hardware", "git", "updates",
    "final_eval", "last_return", "best_return", "last_eval", "best_eval",
)  # fmt: skip
NAME = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")
LOGIN = "log in with `hf auth login`, or set HF_TOKEN"


# -- folders --------------------------------------------------------------------------------------


def write_hub(
    folder: Path,
    run: Run,
    config: LabConfig,
    workflow: Workflow[Any],
    statistics: dict[str, Any],
    about: Any,
) -> None:
    """Write the whole folder, or nothing; one that exists is not overwritten.

    `about` has the card's `env`, `frames` and `source`, by which others find it.
    """
    require("safetensors", "export")
    require("huggingface_hub", "export")
    if folder.exists():
        raise LabError(f"{folder} already exists: choose another --hub folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _save(temporary / "model.safetensors", weights(workflow))
        _save(temporary / "normalizer.safetensors", _flat(statistics))
        write_text(temporary / "config.yaml", to_yaml(_public(config)))
        write_json(temporary / "manifest.json", _public_manifest(run, about["frames"]))
        films = films_of(run.folder)
        for name, film in films.items():
            shutil.copyfile(film, temporary / name)
        card = model_card(run, type(workflow).__name__, about, films)
        write_text(temporary / "README.md", card)
        temporary.chmod(0o755)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _public(config: LabConfig) -> LabConfig:
    """Return a run's configuration without folders, commands and addresses of its owner."""
    watch = replace(config.watch, command=None, file=None, webhook=None)
    return replace(config, watch=watch, run=replace(config.run, dir=None))


def _public_manifest(run: Run, frames: int) -> dict[str, Any]:
    """Return what is handed on of a manifest; code that was not committed stays at home."""
    out = {k: v for k, v in run.manifest.items() if k in PUBLIC}
    git = {k: v for k, v in out.get("git", {}).items() if k != "diff"}
    return {**out, "git": git, "env_frames": frames}


def weights(workflow: Workflow[Any]) -> dict[str, Tensor]:
    """Return the parameters and buffers by name, without optimizers."""
    state = workflow.state_dict()
    return {k: v.detach().cpu().contiguous().clone() for k, v in state.items() if _is_tensor(v)}


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def load_weights(folder: Path, workflow: Workflow[Any]) -> None:
    """Fill a workflow from a hub's folder; raise if anything is missing or too much."""
    found = _load(folder / "model.safetensors")
    has, needs = ({k: (v.shape, v.dtype) for k, v in x.items()} for x in (found, weights(workflow)))
    if has != needs:
        odd = sorted(k for k in has.keys() | needs.keys() if has.get(k) != needs.get(k))
        raise LabError(f"{folder}: the weights do not fit its configuration: {', '.join(odd[:5])}")
    workflow.load_state_dict(found, strict=False)


def load_frames(folder: Path) -> int:
    """Return after how many env frames the weights were taken; 0 if that is not known."""
    return int(Run(folder).manifest.get("env_frames", 0))


def load_statistics(folder: Path, like: dict[str, Any]) -> dict[str, Any]:
    """Return the statistics of normalization, as a checkpoint holds them; `like` has their form.

    The returns so far are of the run's environments, whose number may be another.
    """
    path = folder / "normalizer.safetensors"
    found = _load(path)
    needs = {k: np.size(v) for k, v in tree_leaves(like)}
    has = {k: v.numel() for k, v in found.items()}
    if {**has, "returns": 0} != {**needs, "returns": 0}:
        raise LabError(f"{path}: the normalization statistics do not fit its environment")
    if not all(v.isfinite().all() for v in found.values()):
        raise LabError(f"{path}: the normalization statistics are not finite")
    out: dict[str, Any] = {"obs": {}, "returns": np.zeros(0)}
    for name, value in found.items():
        *parents, last = name.split("/")
        node = out
        for key in parents:
            node = node.setdefault(key, {})
        node[last] = value
    return out


def _flat(statistics: dict[str, Any]) -> dict[str, Tensor]:
    pairs = tree_leaves(statistics)
    return {k: torch.as_tensor(v, dtype=torch.float64).clone() for k, v in pairs}


def _save(path: Path, tensors: dict[str, Tensor]) -> None:
    from safetensors.torch import save

    data = save(tensors, metadata={"format": "pt"})
    write_atomic(path, lambda file: file.write(data))


def _load(path: Path) -> dict[str, Tensor]:
    errors = require("safetensors", "export")
    from safetensors.torch import load_file

    try:
        return load_file(str(path))
    except (OSError, errors.SafetensorError) as error:
        raise LabError(f"{path} cannot be read: {error}") from error


# -- the hub of Hugging Face ----------------------------------------------------------------------


def resolve(source: Path | str) -> Path:
    """Return the folder of a policy; `hub:OWNER/NAME[@REVISION]` is fetched, or in the cache."""
    text = Path(source).as_posix()
    return fetch(text.removeprefix("hub:")) if text.startswith("hub:") else Path(source)


def fetch(name: str) -> Path:
    """Return the folder of `OWNER/NAME[@REVISION]`, downloaded if the cache does not have it."""
    hub = require("huggingface_hub", "export")
    found = _named(name)
    with _one_line(f"hub:{name}"):
        repo, revision = found["repo"], found["revision"]
        got = hub.snapshot_download(repo, revision=revision, allow_patterns=list(FILES))
    if not is_hub(folder := Path(got)):
        raise LabError(f"hub:{name} is not a dreamlab policy: it has no model.safetensors")
    return folder


def push(folder: Path, name: str, message: str, *, private: bool = False) -> str:
    """Upload a hub's folder as `OWNER/NAME`, made if it does not exist; return its address."""
    hub = require("huggingface_hub", "export")
    if _named(name)["revision"]:
        raise LabError(f"{name}: pushes go to the main branch: remove @REVISION")
    with _one_line(f"push to {name}"):
        api = hub.HfApi(library_name="dreamlab", library_version=__version__)
        url = api.create_repo(name, private=private or None, exist_ok=True)
        if private and not api.repo_info(name).private:
            raise LabError(
                f"push to {name}: the repository exists and is public; nothing was uploaded"
            )
        api.upload_folder(repo_id=name, folder_path=folder, commit_message=message)
    return str(url)


def _named(name: str) -> re.Match[str]:
    if (found := NAME.fullmatch(name)) is None:
        raise LabError(f"{name!r} is not a hub repository: expected OWNER/NAME")
    return found


@contextmanager
def _one_line(what: str) -> Iterator[None]:
    """Turn what the hub's client raises into one line."""
    errors = require("huggingface_hub.errors", "export")
    try:
        yield
    except (OSError, ValueError, RuntimeError, errors.HTTPError) as error:
        raise LabError(f"{what}: {_reason(error, errors)}") from error


def _reason(error: Exception, errors: Any) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.LocalEntryNotFoundError):
        return "it is not in the cache, and the hub cannot be reached"
    if isinstance(error, errors.RevisionNotFoundError):
        return "there is no such revision"
    if isinstance(error, errors.GatedRepoError):
        return "the repository is gated: request access on its page"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"there is no such repository, or it is private: {LOGIN}"
    if status == 401 or isinstance(error, errors.LocalTokenNotFoundError):
        return f"authentication required: {LOGIN}"
    if status == 403:
        return "your token does not allow it: create one with write access"
    if isinstance(error, errors.OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set"
    if status is None and isinstance(error, errors.HTTPError | ConnectionError):
        return f"the hub cannot be reached ({type(error).__name__})"
    return " ".join(str(error).split())[:200]
