"""How much of a pool is ID? What every OOD score of a finished run would answer, beside the truth.

python scripts/share_study.py RUN [RUN ...]

Each score gives an upper bound on the share (`osp.parts.partition.id_share`), which is as tight as the score is good:
its AUROC in the pool stands beside it. The last row is a score made for the question: a linear classifier of validation
images against a sample of the pool, on the features of the run, each image judged by one that has not seen it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from osp.data.split import Split
from osp.evaluate.metrics import detection
from osp.evaluate.predictions import Predictions
from osp.parts.partition import id_share
from osp.runs.folder import RunFolder


def asked_directly(pool: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores of pool and known images, larger = less like the known ones."""
    features = np.concatenate([pool, known]).astype(np.float32)
    is_known = np.arange(len(features)) >= len(pool)
    classifier = make_pipeline(StandardScaler(), LogisticRegression(C=0.001, class_weight="balanced", max_iter=500))
    scores = -cross_val_predict(classifier, features, is_known, cv=5, method="decision_function")
    return scores[: len(pool)], scores[len(pool) :]


def bounds(run: Path) -> tuple[float, dict[str, tuple[float | None, float]]]:
    """The true share of ID images, and (AUROC in the pool, estimated share) by score."""
    folder = RunFolder(run)
    said, is_ood = Predictions.load(folder.predictions), Split.load(folder.split).unlabeled_is_ood
    pool, known = said.pool, said.groups["validation"]
    pairs = {name: (pool.scores[name], known.scores[name], is_ood) for name in sorted(pool.scores)}
    sampled = asked_directly(pool.features, known.features)
    pairs["asked directly"] = (*sampled, is_ood[pool.sample])

    def bound(scores: np.ndarray, of_known: np.ndarray, is_ood: np.ndarray) -> tuple[float | None, float]:
        share = id_share(torch.from_numpy(scores.astype(np.float32)), torch.from_numpy(of_known.astype(np.float32)))
        return detection(scores[~is_ood], scores[is_ood])["auroc"], share

    return 1 - float(is_ood.mean()), {name: bound(*each) for name, each in pairs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    for run in parser.parse_args().runs:
        share, found = bounds(run)
        print(f"{run.name}: {share:.2f} of the pool is ID")
        for name, (auroc, estimate) in found.items():
            tells = f"{auroc:.0f} %" if auroc is not None else "-"
            print(f"  {name:<16} AUROC in the pool {tells:>5}   share at most {estimate:.2f}")


if __name__ == "__main__":
    main()
