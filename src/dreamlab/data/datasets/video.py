"""Images in video files: which frame of which file belongs to a row, decoded with PyAV."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from dreamlab.core.types import Array
from dreamlab.data.datasets.table import Broken, DataError

MOST_OPEN = 8
AHEAD_FRAMES = 16
"""Number of frames up to which decoding forward is cheaper than seeking."""
AV1 = {"g": "2", "crf": "30", "preset": "12", "svtav1-params": "lp=1"}
H264 = {"g": "2", "crf": "18"}
CODECS = {"libsvtav1": ("av1", AV1), "libx264": ("h264", H264)}
"""Encoders by name: the decoder's codec name, and LeRobot's options."""


@dataclass(frozen=True)
class Clips:
    """For every row of a set: the number of its file, and the second in it."""

    files: list[Path]
    file: Array
    time: Array
    episode: Array
    fps: float


class VideoCamera:
    """A camera whose images are frames of video files, several episodes in each or one.

    A row's frame is the one nearest to its time, which must be less than half a frame away: times
    are float32 and drift in long files.
    """

    def __init__(self, key: str, shape: tuple[int, int, int], clips: Clips) -> None:
        self.key, self.shape, self.clips = key, shape, clips
        self.times: dict[int, Array] = {}
        self.open: OrderedDict[int, _Decoder] = OrderedDict()
        self.lock = threading.Lock()  # a batch is decoded ahead while another is looked at

    def in_order(self, put: Callable[[Array, Array], None]) -> Broken:
        """Decode every file from its beginning to its end, once."""
        broken: Broken = {}
        for number, path in enumerate(self.clips.files):
            rows = np.flatnonzero(self.clips.file == number)
            seen, why = self._decode_file(number, path, rows, put)
            for episode in np.unique(self.clips.episode[rows[~seen]]):
                broken.setdefault(int(episode), f"{self.key}: {path}: {why}")
        return broken

    def _decode_file(
        self, number: int, path: Path, rows: Array, put: Callable[[Array, Array], None]
    ) -> tuple[Array, str]:
        """Decode a file; return which rows were in it, and the errors of the others."""
        seen, why = (
            np.zeros(len(rows), bool),
            "it has no frame at a timestamp of the episode",
        )
        try:
            frames, fault = self._frames_of(number, rows)
            times = self.times[number]
            order = np.argsort(frames, kind="stable")
            at = np.searchsorted(frames[order], np.arange(len(times) + 1))
            edges = (times[1:] + times[:-1]) / 2
            with opened(path) as (container, stream):
                for frame in _sound(container, stream):
                    n = int(np.searchsorted(edges, frame.time))
                    here = order[at[n] : at[n + 1]]
                    if len(here):
                        picture = self._picture(frame, path)
                        put(rows[here], np.broadcast_to(picture, (len(here), *picture.shape)))
                        seen[here] = True
        except (DataError, OSError, ValueError) as error:  # PyAV's errors are among these
            return seen, _one_line(error)
        if (~seen & ~fault).any():
            why = "frames of the episode cannot be decoded"
        return seen & ~fault, why

    def _frames_of(self, number: int, rows: Array) -> tuple[Array, Array]:
        """Return the number of each row's frame in a file, and which rows have none."""
        if number not in self.times:
            self.times[number] = presentation_times(self.clips.files[number])
        times, wanted = self.times[number], self.clips.time[rows]
        right = np.clip(np.searchsorted(times, wanted), 1, max(len(times) - 1, 1))
        left = right - 1
        right = np.minimum(right, len(times) - 1)
        nearer = np.abs(times[right] - wanted) < np.abs(times[left] - wanted)
        frames = np.where(nearer, right, left)
        return frames, np.abs(times[frames] - wanted) >= 0.5 / self.clips.fps

    def _picture(self, frame: Any, path: Path) -> Array:
        picture: Array = frame.to_ndarray(format="rgb24")
        if picture.shape != self.shape:
            raise DataError(
                f"{path}: images of shape {picture.shape}, not {self.shape} as the dataset declares"
            )
        return picture

    def file_of(self, rows: Array) -> Path | None:
        """Return the file that holds these rows from its beginning, and no others; else None."""
        number = self.clips.file[rows[0]]
        alone = np.array_equal(np.flatnonzero(self.clips.file == number), rows)
        path = self.clips.files[number]
        if not alone or self.clips.time[rows[0]] != 0:
            return None
        try:
            whole = len(presentation_times(path)) == len(rows)
        except (DataError, OSError, ValueError):  # reading its images reports the error
            return None
        return path if whole else None

    def read(self, frames: Array) -> Array:
        """Seek to the frames and decode them."""
        out = np.zeros((len(frames), *self.shape), np.uint8)
        with self.lock:
            for number in np.unique(self.clips.file[frames]):
                places = np.flatnonzero(self.clips.file[frames] == number)
                self._read_file(int(number), frames[places], places, out)
        return out

    def _read_file(self, number: int, rows: Array, places: Array, out: Array) -> None:
        path, row = self.clips.files[number], rows[0]
        try:
            numbers, fault = self._frames_of(number, rows)
            if fault.any():
                row = rows[fault.argmax()]
                raise DataError("it has no frame at that timestamp")
            decoder = self._decoder(number)
            for i in np.argsort(numbers, kind="stable"):
                row = rows[i]
                out[places[i]] = self._picture(decoder.frame(int(numbers[i])), path)
        except (DataError, OSError, ValueError) as error:
            episode = int(self.clips.episode[row])
            raise DataError(
                f"{path}: episode {episode} of {self.key} is corrupted: {_one_line(error)}"
            ) from error

    def _decoder(self, number: int) -> _Decoder:
        if number not in self.open:
            if len(self.open) >= MOST_OPEN:
                self.open.popitem(last=False)[1].close()
            self.open[number] = _Decoder(self.clips.files[number], self.times[number])
        self.open.move_to_end(number)
        return self.open[number]

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("a camera can only be used in the process that opened it")


class _Decoder:
    """An open file, decoded forwards from wherever the last frame was."""

    def __init__(self, path: Path, times: Array) -> None:
        import av

        self.container: Any = av.open(str(path))
        self.stream = self.container.streams.video[0]
        self.times, self.at, self.last = times, len(times), None
        self.edges = (times[1:] + times[:-1]) / 2
        self.decoding: Iterator[Any] = iter(())

    def frame(self, number: int) -> Any:
        """Return the frame of this number in the order of presentation."""
        if number == self.at and self.last is not None:
            return self.last
        if not self.at < number <= self.at + AHEAD_FRAMES:
            at = self.times[number] + 1e-6  # of the frame itself: not the keyframe before it
            self.container.seek(int(at / self.stream.time_base), stream=self.stream)
            self.decoding = self.container.decode(self.stream)
        for frame in self.decoding:
            self.at = int(np.searchsorted(self.edges, frame.time))
            if self.at >= number:
                self.last = frame
                break
        if self.at != number:
            raise DataError(f"frame {number} cannot be decoded")
        return self.last

    def close(self) -> None:
        self.container.close()


def _sound(container: Any, stream: Any) -> Iterator[Any]:
    """Yield the frames of a file in order; pass over those that cannot be decoded."""
    for packet in container.demux(stream):
        try:
            frames = packet.decode()
        except (OSError, ValueError):
            continue
        yield from (f for f in frames if not f.is_corrupt and f.time is not None)


@contextmanager
def opened(path: Path) -> Iterator[tuple[Any, Any]]:
    """Open a video file for reading; give the container and its video stream."""
    import av

    with av.open(str(path)) as container:
        if not container.streams.video:
            raise DataError(f"{path}: it contains no video")
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        yield container, stream


def presentation_times(path: Path) -> Array:
    """Return the second at which each frame is shown, in order, without decoding any."""
    with opened(path) as (container, stream):
        stamps = [p.pts for p in container.demux(stream) if p.pts is not None and p.size]
        times = np.sort(np.array(stamps, np.float64)) * float(stream.time_base)
    if not len(times):
        raise DataError(f"{path}: it contains no frames")
    return times


class VideoWriter:
    """Encodes images of one size as one file that can be sought in."""

    def __init__(self, path: Path, fps: float, size: tuple[int, int], codec: str) -> None:
        import av

        path.parent.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("SVT_LOG", "1")  # else the encoder logs to the terminal
        self.container: Any = av.open(str(path), "w")
        self.rate = Fraction(fps).limit_denominator(10_000)
        self.stream = self.container.add_stream(codec, self.rate, options=dict(CODECS[codec][1]))
        self.stream.height, self.stream.width = size
        self.stream.pix_fmt = "yuv420p"
        self.num_frames, self.num_bytes = 0, 0

    def add(self, picture: Array) -> None:
        """Append an image [h, w, 3]."""
        import av

        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
        frame.pts = self.num_frames
        frame.time_base = 1 / self.rate
        self._mux(self.stream.encode(frame))
        self.num_frames += 1

    def _mux(self, packets: Any) -> None:
        self.num_bytes += sum(p.size for p in packets)
        self.container.mux(packets)

    def close(self) -> None:
        """Write what the encoder still holds."""
        self._mux(self.stream.encode())
        self.container.close()


@dataclass(frozen=True)
class Film:
    """A whole video file as it is, and some of its images for statistics."""

    path: Path
    sampled: Array


class VideoCopier:
    """Puts whole video files one behind the other, without encoding anything again."""

    def __init__(self, path: Path, fps: float, like: Path) -> None:
        import av

        path.parent.mkdir(parents=True, exist_ok=True)
        self.container: Any = av.open(str(path), "w")
        with opened(like) as (_, stream):
            self.stream = self.container.add_stream_from_template(stream, opaque=True)
            self.header, self.codec = _header(stream), str(stream.codec.canonical_name)
        self.fps, self.num_frames, self.num_bytes = fps, 0, 0

    def fits(self, path: Path) -> bool:
        """Return whether a file was encoded so that it can follow the ones before it."""
        with opened(path) as (_, stream):
            return _header(stream) == self.header

    def add(self, path: Path) -> None:
        """Append a file's frames."""
        with opened(path) as (container, stream):
            offset = round(Fraction(self.num_frames) / Fraction(self.fps) / stream.time_base)
            for packet in container.demux(stream):
                if packet.dts is None or not packet.size:
                    continue
                packet.pts, packet.dts = packet.pts + offset, packet.dts + offset
                packet.stream = self.stream
                self.num_frames += 1
                self.num_bytes += packet.size
                self.container.mux(packet)

    def close(self) -> None:
        self.container.close()


def _header(stream: Any) -> tuple[Any, ...]:
    """Return what must be the same in files that become one."""
    context = stream.codec_context
    form = (context.width, context.height, context.pix_fmt, stream.codec.canonical_name)
    return (*form, bytes(context.extradata or b""))


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
