"""Weights & Biases: curves, the configuration, results, pictures and films."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from typing import Any

from dreamlab.core.clock import CLOCK, LATE, moment_of
from dreamlab.core.errors import require
from dreamlab.engine.logger import About, LogConfig, Record
from dreamlab.engine.media import Media


def run_options(config: LogConfig, about: About, variables: Mapping[str, str]) -> dict[str, Any]:
    """Return what a run is begun with: the option, else W&B's own variable, else the default."""

    def chosen(option: Any, variable: str, default: Any = None) -> Any:
        return option or variables.get(variable) or default

    tags = about.tags or tuple(t for t in variables.get("WANDB_TAGS", "").split(",") if t)
    return {
        "project": chosen(config.wandb_project, "WANDB_PROJECT", "dreamlab"),
        "entity": chosen(config.wandb_entity, "WANDB_ENTITY"),
        "group": chosen(config.wandb_group, "WANDB_RUN_GROUP", about.experiment),
        "name": chosen(config.wandb_name, "WANDB_NAME", about.name),
        "job_type": chosen(config.wandb_job_type, "WANDB_JOB_TYPE", "train"),
        "notes": chosen(config.wandb_notes, "WANDB_NOTES"),
        "tags": tags,
        "dir": chosen(None, "WANDB_DIR", str(about.folder)),
        "mode": chosen(config.wandb_mode, "WANDB_MODE", "offline"),
        "config": about.options,
    }


class WandB:
    """Weights & Biases; offline by default, the same run id after a resume."""

    def __init__(self, config: LogConfig, about: About) -> None:
        self.wandb: Any = require("wandb", "wandb")
        self.config, self.about = config, about
        self.run: Any = None
        self.id, self.at = secrets.token_hex(4), -1

    def _open(self) -> Any:
        return self.wandb.init(
            **run_options(self.config, self.about, os.environ),
            id=self.id,
            resume="allow",
            settings=self.wandb.Settings(silent=True, console="off"),
        )

    def write(self, record: Record) -> None:
        self.run = self.run or self._open()
        if LATE in record:  # it has no steps that go back: what was measured, and where
            at, record = moment_of(record), {k: v for k, v in record.items() if "eval/" in k}
            record[f"eval/{CLOCK}"] = at
        else:
            self.at = max(self.at, moment_of(record))
        self.run.log(record, step=self.at)

    def media(self, media: Media) -> None:
        """Send the file itself."""
        kinds = {"video": self.wandb.Video, "image": self.wandb.Image}
        if media.kind not in kinds:
            return
        self.run = self.run or self._open()
        self.at = max(self.at, media.at)  # a step that goes back would be dropped
        options = {"format": "mp4"} if media.kind == "video" else {}
        self.run.log({media.name: kinds[media.kind](str(media.path), **options)}, step=self.at)

    def ended(self, final: Record) -> None:
        """Put what the run came to into its summary."""
        self.run = self.run or self._open()
        self.run.summary.update({f"final/{k.removeprefix('eval/')}": v for k, v in final.items()})

    def get_state(self) -> dict[str, Any]:
        return {"id": self.id, "frames": self.at}

    def set_state(self, state: dict[str, Any]) -> None:
        self.id, self.at = str(state["id"]), int(state["frames"])

    def restart(self) -> None:
        self.id = secrets.token_hex(4)

    def close(self) -> None:
        if self.run is not None:
            self.run.finish()
