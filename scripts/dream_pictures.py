"""Make the pictures of a dream in `docs/images` from a run that has a world model.

    dreamlab train dreamer_cartpole seed=1 training.total_frames=12_000 run.dir=experiments/dream
    python scripts/dream_pictures.py experiments/dream

dream.gif          the newest film of an open-loop prediction, smaller
dream.png          three of its frames: the last that was seen, one early and one late in the dream
dream-curves.png   the same prediction as curves
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import av
from PIL import Image

OUT = Path(__file__).parents[1] / "docs" / "images"
WIDTH = 760
FRAME_MS, LAST_MS = 160, 1_600
COLORS = 48
MOMENTS = (15, 20, 31)
"""Steps of the film: the last of its context, then imagined ones."""


def frames_of(film: Path) -> list[Image.Image]:
    """Return a film's frames, smaller."""
    with av.open(str(film)) as container:
        frames = [f.to_image() for f in container.decode(video=0)]
    height = round(frames[0].height * WIDTH / frames[0].width)
    return [f.resize((WIDTH, height), Image.Resampling.LANCZOS) for f in frames]


def write_gif(frames: list[Image.Image], path: Path) -> None:
    """Write frames as a GIF that rests on the last one."""
    few = [f.quantize(COLORS, dither=Image.Dither.NONE) for f in frames]
    times = [FRAME_MS] * (len(few) - 1) + [LAST_MS]
    few[0].save(path, save_all=True, append_images=few[1:], duration=times, loop=0, optimize=True)


def write_moments(frames: list[Image.Image], path: Path) -> None:
    """Write some frames below each other."""
    height = frames[0].height
    sheet = Image.new("RGB", (WIDTH, len(MOMENTS) * height))
    for i, step in enumerate(MOMENTS):
        sheet.paste(frames[step], (0, i * height))
    sheet.save(path, optimize=True)


def main(run: Path) -> None:
    frames = frames_of(max(run.glob("report/openloop_state_*.mp4")))
    write_gif(frames, OUT / "dream.gif")
    write_moments(frames, OUT / "dream.png")
    shutil.copyfile(max(run.glob("report/openloop_state_*.png")), OUT / "dream-curves.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
