"""Trains the transformer of ``nrm.tasks.induction`` and writes the weights that the package carries.

python tools/induction.py [PATH]    about twenty seconds on one thread
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from nrm.tasks import induction
from nrm.tasks.learned import save_induction, train_induction

HOME = Path(__file__).resolve().parents[1] / "src" / "nrm" / "tasks" / "induction.safetensors"
STEPS = 1500


def main() -> None:
    """Trains, writes, and says how good it is."""
    torch.set_num_threads(1)
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else HOME
    model = train_induction(range(STEPS))
    save_induction(model, path)
    print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB, {induction(500)[1].accuracy(model)}")


if __name__ == "__main__":
    main()
