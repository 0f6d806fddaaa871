"""What an OOD score is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from torch import Tensor, nn


class Score(nn.Module, ABC):
    """One number per image from its features, its logits and the classifier; larger = more OOD.

    All state is parameters or buffers: a score is rebuilt from its name, `config()` and `state_dict()` alone. Buffers
    may change their size when the score is fitted, and take the size of what is loaded. A score that must be fitted
    gives NaN before it was.
    """

    name: ClassVar[str] = ""
    """The file's name, with dashes."""
    summary: ClassVar[str] = ""
    """One line with the formula."""
    fitted: ClassVar[bool] = False
    """Whether `fit` must be called before use."""
    own: ClassVar[bool] = False
    """Whether it belongs to the methods that train it: `available` lists only the scores that any network has."""

    def __init__(self, feature_dim: int, num_classes: int) -> None:
        super().__init__()
        self.feature_dim = feature_dim
        self.num_classes = num_classes
        self.made_with: dict[str, Any] = {}

    def config(self) -> dict[str, Any]:
        """What the constructor takes besides the two sizes, as JSON can hold it."""
        return self.made_with

    def fit(self, features: Tensor, logits: Tensor, labels: Tensor, classifier: nn.Module) -> None:
        """Learn from the labeled images, where the score is one that does."""

    @abstractmethod
    def forward(self, features: Tensor, logits: Tensor, classifier: nn.Module) -> Tensor:
        """One number per image; larger = more OOD. The classifier is what made the logits of the features."""

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        for name, buffer in list(self.named_buffers(recurse=False)):
            saved = state_dict.get(prefix + name)
            if saved is not None and saved.shape != buffer.shape:
                setattr(self, name, buffer.new_empty(saved.shape))
        super()._load_from_state_dict(state_dict, prefix, *others)


class PoolScore(Score):
    """A score that asks the pool: it learns from the labeled images and from a sample of the unlabeled ones."""

    fitted = True

    def fit(self, features: Tensor, logits: Tensor, labels: Tensor, classifier: nn.Module) -> None:
        """Without a pool."""
        self.fit_pool(features, labels, features[:0])

    @abstractmethod
    def fit_pool(self, features: Tensor, labels: Tensor, pool: Tensor) -> None:
        """Learn from features of labeled images with their labels, and of pool images (there may be none)."""


def last_layer(features: Tensor, classifier: nn.Module) -> tuple[Tensor, nn.Linear]:
    """The last linear layer of the classifier and its input, on that layer's device.

    The input is the features themselves, but for a classifier of several layers (SSB's): what the last of them sees.
    """
    *before, last = classifier if isinstance(classifier, nn.Sequential) else [classifier]
    if not isinstance(last, nn.Linear):
        raise TypeError(f"this score needs a classifier that ends in a linear layer, not in {type(last).__name__}")
    features = features.to(last.weight.device)
    for layer in before:
        features = layer(features)
    return features, last
