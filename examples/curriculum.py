"""A curriculum of four phases and two buffers: `dreamlab train examples/curriculum.yaml`."""

from __future__ import annotations

import json
from pathlib import Path

from dreamlab import build, training
from dreamlab.config import compose, load_config

YAML = Path(__file__).with_name("curriculum.yaml")


def main() -> None:
    config = load_config(compose([str(YAML)]))
    with training.open_run(config) as opened:
        run, loop = opened.run, build.build(opened.config, opened.run)
        opened.keep()
        print(loop.run(), loop.counters)
    for name, buffer in loop.parts.buffers.items():
        print(f"buffer {name}: {len(buffer):,} steps")
    for line in (run.folder / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        print(event["event"], event.get("name", ""), "at frame", event.get("env_frames"))


if __name__ == "__main__":
    main()
