"""Make the small parity fixtures of this repository from the full ones.

    python scripts/trim_fixtures.py GOLDEN fixtures

DreamerV3: one update instead of two, and after it only the tensors with at most `LARGEST` entries.
TD-MPC2: the target critics, on which no recorded output depends, share the online ones' numbers.
Nothing else is left out or changed.
"""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

import numpy as np
import torch

LARGEST = 4_200
DREAMER, TDMPC2 = "dreamerv3_proprio", "tdmpc2_state"


def trim_dreamer(source: Path, out: Path) -> None:
    """Write the weights, inputs and outputs of the first update."""
    out.mkdir(parents=True, exist_ok=True)
    meta = json.loads((source / "meta.json").read_text())
    meta.pop("metrics2")
    (out / "meta.json").write_text(json.dumps({**meta, "trimmed": True}, indent=1) + "\n")
    for name in ("weights", "inputs", "outputs", "weights_step1"):
        with np.load(source / f"{name}.npz") as file:
            small = name != "weights_step1"
            arrays = {k: v for k, v in file.items() if small or v.size <= LARGEST}
        np.savez_compressed(out / f"{name}.npz", **arrays)


def trim_tdmpc2(source: Path, out: Path) -> None:
    """Write the checkpoint without the target critics' own numbers, and the rest as it is."""
    out.mkdir(parents=True, exist_ok=True)
    for name in ("meta.json", "inputs.npz", "outputs.npz"):
        (out / name).write_bytes((source / name).read_bytes())
    model = torch.load(source / "checkpoint.pt", weights_only=True)["model"]
    for name in model:
        if name.startswith("_target_Qs_params."):
            model[name] = model[name.replace("_target_Qs_params", "_Qs.params")]
    torch.save({"model": model}, plain := out / "plain.pt")
    with (
        zipfile.ZipFile(plain) as stored,
        zipfile.ZipFile(
            out / "checkpoint.pt", "w", zipfile.ZIP_DEFLATED, compresslevel=9
        ) as packed,
    ):
        for entry in stored.namelist():
            packed.writestr(zipfile.ZipInfo(entry), stored.read(entry), zipfile.ZIP_DEFLATED)
    plain.unlink()


if __name__ == "__main__":
    golden, fixtures = map(Path, sys.argv[1:])
    trim_dreamer(golden / DREAMER, fixtures / DREAMER)
    trim_tdmpc2(golden / TDMPC2, fixtures / TDMPC2)
