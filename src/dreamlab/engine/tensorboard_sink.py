"""TensorBoard: curves, the configuration, hyperparameters with results, pictures and films."""

from __future__ import annotations

import io
from typing import Any

from dreamlab.core.clock import moment_of
from dreamlab.core.errors import require
from dreamlab.engine.logger import About, Record
from dreamlab.engine.media import Media, gif, read_film


class TensorBoard:
    """Event files; on resume, later points are marked as purged, so that the curve has one line."""

    def __init__(self, about: About) -> None:
        require("tensorboard", "tensorboard")
        self.about, self.at = about, 0
        self.writer: Any = None

    def _open(self, purge: int | None) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(str(self.about.folder / "tensorboard"), purge_step=purge)
        if not purge:  # a run that begins
            writer.add_text("config", f"```yaml\n{self.about.text}\n```", 0)
        return writer

    def write(self, record: Record) -> None:
        self.writer = self.writer or self._open(None)
        at = moment_of(record)
        self.at = max(self.at, at)
        for name, value in record.items():
            self.writer.add_scalar(name, value, at)
        self.writer.flush()

    def media(self, media: Media) -> None:
        """Show a film as an animated picture, which needs no other package than Pillow."""
        self.writer = self.writer or self._open(None)
        if media.kind == "video":
            self._picture(media, *gif(*read_film(media.path)))
        elif media.kind == "image":
            self._picture(media, *_png(media))

    def _picture(self, media: Media, encoded: bytes, height: int, width: int) -> None:
        form: Any = require("tensorboard.compat.proto.summary_pb2", "tensorboard")
        image = form.Summary.Image(
            height=height, width=width, colorspace=3, encoded_image_string=encoded
        )
        summary = form.Summary(value=[form.Summary.Value(tag=media.name, image=image)])
        self.writer.file_writer.add_summary(summary, media.at)
        self.writer.flush()

    def ended(self, final: Record) -> None:
        """Write every option that has an effect beside what the run came to."""
        from torch.utils.tensorboard.summary import hparams

        self.writer = self.writer or self._open(None)
        options = {k: _plain(v) for k, v in self.about.telling.items()}
        for summary in hparams(options, dict(final)):
            self.writer.file_writer.add_summary(summary)
        self.writer.flush()

    def get_state(self) -> dict[str, Any]:
        return {"frames": self.at}

    def set_state(self, state: dict[str, Any]) -> None:
        self.at = int(state["frames"])
        self.writer = self._open(self.at + 1)

    def restart(self) -> None:
        self.set_state({"frames": -1})

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


def _png(media: Media) -> tuple[bytes, int, int]:
    from PIL import Image

    data = media.path.read_bytes()
    with Image.open(io.BytesIO(data)) as picture:
        return data, picture.height, picture.width


def _plain(value: Any) -> bool | int | float | str:
    """Return a value that a table of hyperparameters can have."""
    return value if isinstance(value, bool | int | float | str) else str(value)
