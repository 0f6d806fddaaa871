"""What the reported model says about images: one pass gives features, logits and every OOD score."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from osp import scores
from osp.data.view_source import ViewSource
from osp.engine.passes import Passes
from osp.errors import UserError
from osp.evaluate.metrics import accuracy, detection, interclass_variance, mean_angle, partition_quality
from osp.evaluate.predictions import POOL_SAMPLE, Group, PoolPredictions, sample_rows
from osp.methods.base import Method, Part
from osp.plugins import is_file, plain_name
from osp.scores import PoolScore, Score

POOL_REFERENCES = 8000
"""Images of the pool, evenly spread, that scores are fitted to at the end: the same number for a pool of any size."""


class Evaluation:
    """The reported model: with averaged weights where the method has them, and with every OOD score.

    The method's own score comes first; those that work after the fact on any network follow. Fitted ones learn from the
    labeled images, and some from a sample of the pool, when `fit` is called.
    """

    def __init__(self, method: Method, passes: Passes) -> None:
        self.method, self.passes, self.feed = method, passes, passes.feed
        if type(method).ood_score is not Method.ood_score:
            raise UserError(
                f"method {method.name!r} overrides ood_score; give it a module instead, so that trained models need no "
                "method: derive one from osp.scores.Score and call self.use_score(...) in __init__ (docs/methods.md)."
            )
        dim, classes = method.net.feature_dim, method.net.num_classes
        self.scores: dict[str, Score] = {method.own_score.name: method.own_score}
        for name in scores.available():
            if name not in self.scores:
                self.scores[name] = scores.build(name, dim, classes).to(self.feed.device)
        asked = method.options.score
        self.reported = method.own_score.name if asked == "own" else plain_name(asked)
        if is_file(asked):
            if self.reported in self.scores:
                raise UserError(f"score {asked}: there is an OOD score {self.reported!r} already; rename the file.")
            self.scores[self.reported] = scores.build(asked, dim, classes).to(self.feed.device)

    def fit(self) -> None:
        """Fit the scores that are fitted to the labeled images and, where they ask it, to a sample of the pool."""
        wanted = [score for score in self.scores.values() if score.fitted]
        asks = any(isinstance(score, PoolScore) for score in wanted)
        pool, _ = self._encoded_rows("unlabeled", POOL_REFERENCES if asks else 0)
        self._fit(wanted, *self._encoded_rows("labeled"), self.feed.targets["labeled"], pool)

    def _fit(self, wanted: Sequence[Score], features: Tensor, logits: Tensor, labels: Tensor, pool: Tensor) -> None:
        with self.passes.averaged.applied():
            for score in wanted:
                if isinstance(score, PoolScore):
                    score.fit_pool(features, labels, pool)
                else:
                    score.fit(features, logits, labels, self.method.net.classifier)

    def _encoded_rows(self, part: Part, most: int | None = None) -> tuple[Tensor, Tensor]:
        """Features and logits of all images of a part or of at most so many, evenly spread, where scores are fitted."""
        index = self.feed.index[part]
        chosen = index if most is None else index[sample_rows(len(index), most)]
        features, logits = (each.to(self.feed.device) for each in self.passes.map(self._encoded, chosen, ema=True))
        return features, logits

    def outputs(
        self,
        index: np.ndarray,
        targets: np.ndarray | None = None,
        views: ViewSource | None = None,
        names: Sequence[str] | None = None,
    ) -> Group:
        """Features, logits and scores (all, or these) of images by index, training images unless `views` has others."""
        chosen = list(self.scores) if names is None else list(names)

        def everything(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            features, logits = self._encoded(images)
            return features, logits, self._scored(features, logits, chosen)

        features, logits, values = (
            tensor.numpy() for tensor in self.passes.map(everything, index, ema=True, views=views)
        )
        check_finite(features, logits)
        check_scores(chosen, values)
        return Group(index, logits, {name: values[:, k] for k, name in enumerate(chosen)}, features, targets)

    def pool(self) -> PoolPredictions:
        """Scores and classes of every unlabeled image; features and logits of a sample, as all would not fit."""
        chosen, index = list(self.scores), self.feed.index["unlabeled"]

        def brief(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            features, logits = self._encoded(images)
            confidence, predicted = logits.softmax(dim=1).max(dim=1)
            return self._scored(features, logits, chosen), confidence, predicted

        values, confidence, predicted = (tensor.numpy() for tensor in self.passes.map(brief, index, ema=True))
        check_finite(confidence)
        check_scores(chosen, values)
        rows = sample_rows(len(index))
        sampled = self.outputs(index[rows], names=[])
        kept = self.method.kept()
        return PoolPredictions(
            ids=index,
            predicted=predicted,
            confidence=confidence,
            scores={name: values[:, k] for k, name in enumerate(chosen)},
            kept=None if kept is None else kept.cpu().numpy(),
            sample=rows,
            logits=sampled.logits,
            features=sampled.features,
        )

    def validate(self, truth: np.ndarray | None) -> tuple[dict[str, float | None], Group]:
        """Numbers of one evaluation during training; `truth`, which pool images are OOD, is for the metrics alone."""
        score, known = self.scores[self.reported], truth is not None and truth.any() and not truth.all()
        rows = sample_rows(len(self.feed.index["unlabeled"]))
        needed = known or isinstance(score, PoolScore)
        features, logits = self._encoded_rows("unlabeled", POOL_SAMPLE if needed else 0)
        if score.fitted:
            some = sample_rows(len(self.feed.index["labeled"]))
            labels = self.feed.targets["labeled"][torch.from_numpy(some).to(self.feed.device)]
            self._fit([score], *self._encoded_rows("labeled", POOL_SAMPLE), labels, features)
        validation = self.outputs(self.feed.index["val"], names=[self.reported])
        targets = self.feed.targets["val"].cpu().numpy()
        line: dict[str, float | None] = {"val_accuracy": accuracy(validation.logits, targets)}
        line["interclass_variance"] = interclass_variance(validation.features, targets)
        if known:
            assert truth is not None
            with self.passes.averaged.applied(), torch.no_grad():
                values = self._scored(features, logits, [self.reported]).cpu().numpy()
            is_ood, scores = truth[rows], values[:, 0]
            check_scores([self.reported], values)
            line["pool_auroc"] = detection(scores[~is_ood], scores[is_ood])["auroc"]
            line["angle"] = mean_angle(validation.features, features.cpu().numpy()[is_ood])
        kept = self.method.kept()
        if kept is not None and truth is not None:
            line.update(partition_quality(kept.cpu().numpy(), truth))
        return line, validation

    def _encoded(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features, logits, _ = self.method.outputs(images)
        return features, logits

    def _scored(self, features: Tensor, logits: Tensor, names: Sequence[str]) -> Tensor:
        with torch.autocast(features.device.type, enabled=False):
            columns = [self.scores[name](features, logits, self.method.net.classifier).float() for name in names]
        for name, column in zip(names, columns, strict=True):
            if column.shape != features.shape[:1]:
                shape = tuple(column.shape)
                raise UserError(f"The OOD score {name!r} must give one number per image: {len(features)}, not {shape}.")
        return torch.stack(columns, dim=1) if columns else features.new_empty(len(features), 0)


class NotFinite(UserError):
    """The network's outputs are no longer numbers."""


def check_finite(*values: np.ndarray) -> None:
    if not all(np.isfinite(each).all() for each in values):
        raise NotFinite("The network's outputs are no longer numbers.")


def check_scores(names: Sequence[str], values: np.ndarray) -> None:
    """Of a network whose outputs are numbers: a score of somebody's own may still give none."""
    for name, column in zip(names, values.T, strict=True):
        if not np.isfinite(column).all():
            raise UserError(f"The OOD score {name!r} gives numbers that are infinite, or none.")
