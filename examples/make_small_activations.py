"""Activations whose true features are known, and a count of how many of them an SAE has found.

    python examples/make_small_activations.py                  # writes small/
    drumline train examples/sae_small.yaml run_dir=runs/small
    python examples/make_small_activations.py --compare runs/small

Each row of activations.npy is a sum of a few of 256 directions in 64 dimensions: four times as
many features as dimensions, as in "Toy Models of Superposition" (Elhage et al. 2022). The same row
of targets.npy is what the same features write in other directions, for transcoder.yaml.

A feature counts as found if some latent's decoder row has a cosine above 0.9 with its direction;
the mean over features of the largest cosine is the MMCS of Sharkey et al. 2022.
"""

import argparse
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from drumline.config.load import read_mapping
from drumline.run_directory import RunDirectory
from drumline.training.checkpoint import CheckpointStore

FEATURES, WIDTH, ACTIVE = 256, 64, 4
SETS = ("activations", "targets")


def unit_rows(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def make(folder: Path, rows: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    directions = {name: unit_rows(draw.standard_normal((FEATURES, WIDTH))) for name in SETS}
    is_active = draw.random((rows, FEATURES)) < ACTIVE / FEATURES
    sizes = is_active * draw.uniform(0.5, 1.5, (rows, FEATURES))
    folder.mkdir(parents=True, exist_ok=True)
    for name in SETS:
        np.save(folder / f"{name}.npy", (sizes @ directions[name]).astype(np.float32))
    np.savez(folder / "truth.npz", **directions)
    print(f"{rows:,} rows of width {WIDTH}, made of {FEATURES} features, are in {folder}")


def compare(folder: Path, run: Path) -> None:
    directory = RunDirectory.open(run)
    is_transcoder = read_mapping(directory.config_path)["task"]["targets"] is not None
    truth = np.load(folder / "truth.npz")["targets" if is_transcoder else "activations"]
    checkpoint = CheckpointStore(directory.checkpoints_path).choose("last")
    rows = unit_rows(load_file(checkpoint.weights_path)["W_dec"])
    nearest = (truth @ rows.T).max(axis=1)
    found = int((nearest > 0.9).sum())
    print(f"found {found} of {len(nearest)} features; mean max cosine {nearest.mean():.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("small"))
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compare", type=Path, metavar="RUN", help="compare this run's latents")
    asked = parser.parse_args()
    if asked.compare is None:
        make(asked.folder, asked.rows, asked.seed)
    else:
        compare(asked.folder, asked.compare)


if __name__ == "__main__":
    main()
