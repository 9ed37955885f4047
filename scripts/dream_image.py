"""Draw a few moments of a dream for the README, from the film that a run has written.

python scripts/dream_image.py experiments/demo_...
"""

from __future__ import annotations

import sys
from pathlib import Path

import av
import matplotlib as mpl
import numpy as np

mpl.use("Agg")
import matplotlib.pyplot as plt

OUT = Path(__file__).parents[1] / "docs" / "images" / "dream.png"
MOMENTS = (15, 16, 20, 25, 31)
"""Steps of the film: the last that was seen, then dreamt ones."""


def main(folder: Path) -> None:
    film = max(folder.glob("report/openloop_state_*.mp4"))
    with av.open(str(film)) as container:
        frames = [f.to_ndarray(format="rgb24") for f in container.decode(video=0)]
    seen = sum(frame[2, 2, 1] > frame[2, 2, 0] for frame in frames)  # the border is green
    figure, axes = plt.subplots(len(MOMENTS), 3, figsize=(8.4, 5.2), dpi=110)
    for row, step in zip(axes, MOMENTS, strict=True):
        parts = np.split(frames[step][6:-6], 3, axis=1)
        for axis, part in zip(row, parts, strict=True):
            axis.imshow(part[80:340, 6:-6])
            axis.set_xticks([])
            axis.set_yticks([])
            for edge in axis.spines.values():
                edge.set(color="tab:green" if step < seen else "tab:red", linewidth=2)
        ahead = step - seen + 1
        row[0].set_ylabel(f"{ahead} ahead" if ahead > 0 else "seen", fontsize=9)
    for axis, title in zip(axes[0], ("truth", "dream", "error"), strict=True):
        axis.set_title(title, fontsize=10)
    figure.tight_layout(pad=0.4)
    figure.savefig(OUT)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
