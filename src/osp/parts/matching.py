"""The cross-modal matching head M(z, y) of T2T: does this feature go with this class?

S(x) = sigmoid(M(z, ŷ)) for the predicted class ŷ is the detector of T2T and OSP: near 1 for ID images.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from osp.parts.draws import rand


class MatchingNorm(nn.BatchNorm1d):
    """Keeps PyTorch's momentum of 0.1, as the release has it, however long the run: see `set_batchnorm_momentum`."""

    own_momentum = True


class MatchingHead(nn.Module):
    """Linear label embedding, joined to the feature, through one hidden layer with batch norm to a logit."""

    def __init__(self, feature_dim: int, num_classes: int, width: int = 128) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.embedding = nn.Linear(num_classes, width)
        self.hidden = nn.Linear(feature_dim + width, width)
        self.norm = MatchingNorm(width)
        self.output = nn.Linear(width, 1)

    def forward(self, features: Tensor, classes: Tensor) -> Tensor:
        """The matching logit of each (feature, class) pair; with several classes a feature, round after round.

        The hidden layer acts on the two halves of the joined vector one by one, so that a feature that is paired with
        several classes goes through its half once.
        """
        sizes = [features.shape[1], self.embedding.out_features]
        of_feature, of_class = torch.split(self.hidden.weight, sizes, dim=1)
        embedded = self.embedding(F.one_hot(classes, self.num_classes).to(features.dtype))
        rounds = 1 if classes.shape == features.shape[:1] else len(classes) // max(len(features), 1)
        joined = F.linear(features, of_feature).repeat(rounds, 1)
        hidden = torch.relu(self.norm(joined + F.linear(embedded, of_class, self.hidden.bias)))
        logit: Tensor = self.output(hidden).squeeze(1)
        return logit


def negative_classes(logits: Tensor, targets: Tensor, generator: torch.Generator) -> list[Tensor]:
    """Hard and easy negative classes of labeled samples.

    Hard: the highest-logit class that is not the label. Easy: uniform over the classes that are neither. With two
    classes there is no easy one, and only the hard negative is given.
    """
    others = logits.detach().scatter(1, targets[:, None], -torch.inf)
    hard = others.argmax(dim=1)
    if logits.shape[1] < 3:
        return [hard]
    chance = rand(tuple(logits.shape), generator).to(logits.device, non_blocking=True)
    chance = chance.scatter(1, torch.stack([targets, hard], dim=1), -1.0)
    return [hard, chance.argmax(dim=1)]


def labeled_matching_loss(
    head: MatchingHead, features: Tensor, logits: Tensor, targets: Tensor, generator: torch.Generator
) -> Tensor:
    """L_ood^l: mean binary cross-entropy of (z, y) → 1, (z, hard negative) → 0, (z, easy negative) → 0."""
    classes = [targets, *negative_classes(logits, targets, generator)]
    pair_logits = head(features, torch.cat(classes))
    wanted = torch.zeros_like(pair_logits)
    wanted[: len(targets)] = 1.0
    return F.binary_cross_entropy_with_logits(pair_logits, wanted)


def binary_entropy(logits: Tensor) -> Tensor:
    """h(S) = -S ln S - (1-S) ln(1-S) for S = sigmoid(logit); its gradient is -logit · S (1-S)."""
    probability = torch.sigmoid(logits)
    return F.softplus(logits) - probability * logits


def other_classes(classes: Tensor, num_classes: int, generator: torch.Generator) -> Tensor:
    """A uniformly random class different from each given one."""
    chance = rand((len(classes),), generator).to(classes.device, non_blocking=True)
    offset = 1 + (chance * (num_classes - 1)).long()  # rand is below 1, and so is its product with a small number
    return (classes + offset) % num_classes


def unlabeled_matching_entropy(
    head: MatchingHead, features: Tensor, logits: Tensor, generator: torch.Generator
) -> Tensor:
    """L_ood^u of T2T: mean entropy of S over the pairs (z, ŷ) and (z, a random other class)."""
    predicted = logits.detach().argmax(dim=1)
    classes = torch.cat([predicted, other_classes(predicted, logits.shape[1], generator)])
    return binary_entropy(head(features, classes)).mean()
