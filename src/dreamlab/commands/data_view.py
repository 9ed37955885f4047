"""`dreamlab data view`: plot an episode as a contact sheet, curves or a video."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dreamlab.commands.arguments import NATURAL, Place, argument, verb
from dreamlab.core.errors import LabError
from dreamlab.core.files import disk_errors
from dreamlab.core.text import one_line, print

if TYPE_CHECKING:
    from dreamlab.data.datasets.table import Dataset, Episode

KINDS = {"sheet": ".png", "curves": ".png", "video": ".mp4"}
MOST_SHOWN = 25
MOST_LINES = 12


@verb(
    "view",
    "dreamlab data view data/pusht 0",
    "dreamlab data view data/pusht 3 --as video --camera observation.image --out push.mp4",
)
@argument("place", "a dataset of any format", metavar="SET")
@argument("episode", "index of the episode", type=NATURAL, metavar="EPISODE")
@click.option(
    "--as",
    "kind",
    type=click.Choice(tuple(KINDS)),
    help="Default: a contact sheet if there are images, else curves.",
)
@click.option("--camera", help="The image feature to show; default: the first.")
@click.option(
    "--out", type=Place(), help="Output file; default: NAME_EPISODE_KIND in the working directory."
)
def view(place: str, episode: int, kind: str | None, camera: str | None, out: Path | None) -> int:
    """Plot an episode: a contact sheet of its images, curves of its vectors, or a video."""
    from dreamlab.data.datasets.opening import open_dataset

    data = open_dataset(place)
    shown = data.episode(episode)
    kind = kind or ("sheet" if data.cameras else "curves")
    name = Path(place.replace(":", "_")).stem
    path = out or Path(f"{name}_{episode:03d}_{kind}{KINDS[kind]}")
    with disk_errors("Choose another output file with --out"):
        if kind == "curves":
            _draw_curves(data, shown, path)
        else:
            path = _draw_pictures(data, shown, camera, kind, path)
    print(one_line(str(path)))
    return 0


def _draw_pictures(
    data: Dataset, episode: Episode, camera: str | None, kind: str, path: Path
) -> Path:
    """Write the images of an episode as a video, or some of them as a contact sheet."""
    import numpy as np
    from PIL import Image

    from dreamlab.core.files import write_atomic
    from dreamlab.engine.video import contact_sheet, write_video

    if not data.cameras:
        raise LabError(f"{data.place} has no images: use --as curves")
    chosen = data.camera(camera or next(iter(data.cameras)))
    rows = np.arange(episode.first, episode.end)
    if kind == "video":
        return write_video(path, list(chosen.read(rows)), max(1, round(data.fps)))
    at = np.linspace(0, len(rows) - 1, min(MOST_SHOWN, len(rows))).round().astype(int)
    sheet = contact_sheet([_rgb(p) for p in chosen.read(rows[at])])
    write_atomic(path, lambda file: Image.fromarray(sheet).save(file, format="PNG"))
    return path


def _rgb(picture: Any) -> Any:
    return picture.repeat(3, -1) if picture.shape[-1] == 1 else picture[..., :3]


def _draw_curves(data: Dataset, episode: Episode, path: Path) -> None:
    """Plot every vector of an episode over time, one panel each."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    from dreamlab.core.files import write_atomic
    from dreamlab.data.datasets.table import COUNTERS

    names = [
        k for k, v in data.columns.items()
        if k not in COUNTERS and v.dtype != object and v[0].size <= MOST_LINES * MOST_LINES
    ]  # fmt: skip
    figure, panels = plt.subplots(
        len(names), 1, figsize=(8, 1.8 * len(names)), dpi=100, sharex=True, squeeze=False
    )
    seconds = data.columns["timestamp"][episode.first : episode.end]
    for axes, name in zip(panels[:, 0], names, strict=True):
        values = data.columns[name][episode.first : episode.end]
        axes.plot(seconds, values.reshape(len(seconds), -1)[:, :MOST_LINES], lw=1)
        axes.set_ylabel(name, rotation=0, ha="right", fontsize=7)
        axes.grid(alpha=0.3)
    panels[-1, 0].set_xlabel("seconds")
    panels[0, 0].set_title(f"{data.place}: episode {episode.index}", fontsize=9)
    figure.tight_layout()
    write_atomic(path, lambda file: figure.savefig(file, format="png"))
    plt.close(figure)
