"""How well do scores that ask the pool tell its OOD images? AUROC in the pool and on test images, from finished runs.

python scripts/pool_study.py RUN [RUN ...]

From predictions.npz of each run: fitted to the labelled features and to the (at most 2,000) pool features stored there,
with other sharpness κ, numbers of free centers M and powers of whitening than those that `osp.parts.clusters` has.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from osp.data.split import Split
from osp.evaluate.metrics import detection
from osp.evaluate.predictions import Predictions
from osp.parts import clusters
from osp.parts.neighbors import fit_neighbors
from osp.parts.pool_score import ask_pool
from osp.runs.folder import RunFolder

Score = Callable[[Tensor], Tensor]


def whitened(power: float) -> Callable[[Tensor, Tensor], Tensor]:
    """In place of `half_whitened`: eigenvectors over this power of the deviation; 0 leaves features as they are."""

    def basis(features: Tensor, mean: Tensor) -> Tensor:
        centered = (features - mean).double()
        values, vectors = torch.linalg.eigh(centered.T @ centered / len(centered))
        least = clusters.LEAST_VARIANCE * values[-1]
        stretched: Tensor = vectors * values.clamp(min=least) ** (-power / 2)
        return stretched.float()

    return basis


def variants(labeled: Tensor, labels: Tensor, pool: Tensor) -> dict[str, Score]:
    classes = int(labels.max()) + 1
    found: dict[str, Score] = {"neighbors": fit_neighbors(labeled, pool).score}
    for power in (0.0, 0.5, 1.0):
        with patch.object(clusters, "half_whitened", whitened(power)):
            found[f"clusters, whitened {power:g}"] = clusters.fit_clusters(labeled, labels, pool, classes).score
    for count in (classes, 4 * classes):
        found[f"clusters, M = {count}"] = clusters.fit_clusters(labeled, labels, pool, classes, count).score
    for sharpness in (5.0, 8.0, 12.0, 20.0):
        found[f"clusters, κ = {sharpness:g}"] = sharp(sharpness, labeled, labels, pool, classes)
    found["pool (both)"] = ask_pool(labeled, labels, pool, classes).score
    return found


def sharp(sharpness: float, labeled: Tensor, labels: Tensor, pool: Tensor, classes: int) -> Score:
    with patch.object(clusters, "SHARPNESS", sharpness):
        fitted = clusters.fit_clusters(labeled, labels, pool, classes)

    def score(features: Tensor) -> Tensor:
        with patch.object(clusters, "SHARPNESS", sharpness):
            return fitted.score(features)

    return score


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    for run in parser.parse_args().runs:
        folder = RunFolder(run)
        said, is_ood = Predictions.load(folder.predictions), Split.load(folder.split).unlabeled_is_ood
        groups, truth = said.groups, is_ood[said.pool.sample]
        tensors = [
            torch.from_numpy(np.asarray(each, np.float32)) for each in (groups["labeled"].features, said.pool.features)
        ]
        targets = groups["labeled"].targets
        assert targets is not None
        print(run.name)
        for name, score in variants(tensors[0], torch.from_numpy(targets), tensors[1]).items():
            values = [
                score(torch.from_numpy(np.asarray(each, np.float32))).numpy()
                for each in (said.pool.features, groups["test"].features, groups["test_ood"].features)
            ]
            pool, test = detection(values[0][~truth], values[0][truth]), detection(values[1], values[2])
            print(f"  {name:<24} pool {pool['auroc']:.1f}   test {test['auroc']:.1f}")


if __name__ == "__main__":
    main()
