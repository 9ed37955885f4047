"""Make the pictures of a dream in `docs/images` from a run that has a world model.

    dreamlab train dreamer_pendulum seed=1 report.every_frames=2_000 run.dir=experiments/dream
    python scripts/dream_pictures.py experiments/dream 2000

dream.gif          the film of an open-loop prediction after so many frames, smaller
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
    palette = _sheet(frames).quantize(COLORS)  # one for all, or colours flicker
    few = [f.quantize(palette=palette, dither=Image.Dither.NONE) for f in frames]
    times = [FRAME_MS] * (len(few) - 1) + [LAST_MS]
    few[0].save(path, save_all=True, append_images=few[1:], duration=times, loop=0, optimize=True)


def _sheet(frames: list[Image.Image]) -> Image.Image:
    """Return frames below each other."""
    height = frames[0].height
    sheet = Image.new("RGB", (WIDTH, len(frames) * height))
    for i, frame in enumerate(frames):
        sheet.paste(frame, (0, i * height))
    return sheet


def main(run: Path, moment: int) -> None:
    name = f"openloop_state_{moment:012d}"
    frames = frames_of(run / "report" / f"{name}.mp4")
    write_gif(frames, OUT / "dream.gif")
    _sheet([frames[step] for step in MOMENTS]).save(OUT / "dream.png", optimize=True)
    shutil.copyfile(run / "report" / f"{name}.png", OUT / "dream-curves.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
