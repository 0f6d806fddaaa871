"""The matching head: its pairs and losses against loops over samples."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from torch import Tensor

from osp.parts.matching import (
    MatchingHead,
    binary_entropy,
    labeled_matching_loss,
    negative_classes,
    other_classes,
    unlabeled_matching_entropy,
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def samples(n: int, classes: int) -> tuple[Tensor, Tensor]:
    """Logits, and labels of which about half are the predicted class."""
    logits = torch.randn(n, classes, generator=seeded(1))
    targets = torch.randint(classes, (n,), generator=seeded(2))
    targets[::2] = logits[::2].argmax(dim=1)
    return logits, targets


@pytest.mark.parametrize(("classes", "parameters"), [(10, 34_689), (50, 39_809)])
def test_the_head_has_the_published_size(classes: int, parameters: int) -> None:
    assert sum(parameter.numel() for parameter in MatchingHead(128, classes).parameters()) == parameters


def test_the_head_sees_feature_and_class() -> None:
    head = MatchingHead(8, 4).eval()
    features = torch.randn(1, 8).repeat(4, 1)
    assert len(set(head(features, torch.arange(4)).tolist())) == 4
    assert head(torch.randn(5, 8), torch.zeros(5, dtype=torch.int64)).shape == (5,)


@pytest.mark.parametrize("classes", [3, 4, 10])
def test_negatives_are_the_best_wrong_class_and_a_third_one(classes: int) -> None:
    logits, targets = samples(400, classes)
    hard, easy = negative_classes(logits, targets, seeded())
    for i, y in enumerate(targets.tolist()):
        best = max((c for c in range(classes) if c != y), key=lambda c: float(logits[i, c]))
        assert hard[i].item() == best
        assert easy[i].item() not in (y, best)
        assert 0 <= easy[i].item() < classes


def test_easy_negatives_are_uniform_over_the_other_classes() -> None:
    logits = torch.tensor([[5.0, 4.0, 0.0, -50.0, 3.0]]).repeat(9000, 1)
    _, easy = negative_classes(logits, torch.zeros(9000, dtype=torch.int64), seeded())
    drawn = Counter(easy.tolist())
    assert set(drawn) == {2, 3, 4}
    assert all(abs(count - 3000) < 5 * math.sqrt(2000) for count in drawn.values())


def test_a_logit_of_minus_infinity_for_the_others_still_gives_wrong_classes() -> None:
    logits = torch.full((1, 3), -torch.finfo(torch.float32).max)
    logits[0, 1] = 0.0
    hard, easy = negative_classes(logits, torch.tensor([1]), seeded())
    assert {hard.item(), easy.item()} == {0, 2}


def test_two_classes_have_only_a_hard_negative() -> None:
    logits, targets = samples(50, 2)
    (hard,) = negative_classes(logits, targets, seeded())
    assert torch.equal(hard, 1 - targets)


@pytest.mark.parametrize("classes", [2, 3, 6])
def test_the_labeled_loss_equals_a_loop_over_pairs(classes: int) -> None:
    head = MatchingHead(8, classes).eval()  # in training, batch norm ties the pairs together
    features = torch.randn(12, 8, generator=seeded(3))
    logits, targets = samples(12, classes)
    found = labeled_matching_loss(head, features, logits, targets, seeded())
    total, count = 0.0, 0
    columns = [(targets, 1), *((negative, 0) for negative in negative_classes(logits, targets, seeded()))]
    for column, wanted in columns:
        for i in range(12):
            s = 1 / (1 + math.exp(-head(features[i : i + 1], column[i : i + 1]).item()))
            total -= math.log(s if wanted else 1 - s)
            count += 1
    assert count == 12 * min(classes, 3)
    assert found.item() == pytest.approx(total / count, rel=1e-5)


@pytest.mark.parametrize("classes", [2, 3, 6])
def test_the_labeled_loss_can_be_learned(classes: int) -> None:
    torch.manual_seed(0)
    head = MatchingHead(8, classes)
    targets = torch.arange(48) % classes
    features = torch.nn.functional.one_hot(targets, 8) + 0.1 * torch.randn(48, 8, generator=seeded(4))
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
    values = []
    for step in range(40):
        loss = labeled_matching_loss(head, features, features[:, :classes], targets, seeded(step))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        values.append(loss.item())
    assert values[-1] < 0.1 < 0.4 < values[0]


def test_the_labeled_loss_reaches_the_features_but_not_the_logits() -> None:
    head = MatchingHead(8, 5)
    features = torch.randn(12, 8, requires_grad=True)
    logits, targets = samples(12, 5)
    logits.requires_grad_()
    labeled_matching_loss(head, features, logits, targets, seeded()).backward()  # type: ignore[no-untyped-call]
    assert features.grad is not None
    assert features.grad.abs().sum() > 0
    assert logits.grad is None


def test_binary_entropy_has_its_value_and_gradient() -> None:
    logits = torch.linspace(-8, 8, 33, dtype=torch.float64, requires_grad=True)
    s = logits.detach().sigmoid()
    values = binary_entropy(logits)
    torch.testing.assert_close(values.detach(), -s * s.log() - (1 - s) * (1 - s).log())
    values.sum().backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad, -logits.detach() * s * (1 - s))
    assert binary_entropy(torch.zeros(1)).item() == pytest.approx(math.log(2))


def test_binary_entropy_of_certainty_is_zero() -> None:
    assert binary_entropy(torch.tensor([-500.0, 500.0])).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("classes", [2, 3, 6])
def test_other_classes_are_uniform_and_never_the_same(classes: int) -> None:
    given = torch.arange(classes).repeat(2000)
    others = other_classes(given, classes, seeded())
    assert not (others == given).any()
    drawn = Counter(zip(given.tolist(), others.tolist(), strict=True))
    expected = 2000 / (classes - 1)
    assert len(drawn) == classes * (classes - 1)
    assert all(abs(count - expected) <= 5 * math.sqrt(expected) for count in drawn.values())


def test_the_unlabeled_entropy_equals_a_loop_over_pairs() -> None:
    head = MatchingHead(8, 5).eval()
    features, (logits, _) = torch.randn(12, 8, generator=seeded(3)), samples(12, 5)
    found = unlabeled_matching_entropy(head, features, logits, seeded())
    predicted = logits.argmax(dim=1)
    total = 0.0
    for column in (predicted, other_classes(predicted, 5, seeded())):
        for i in range(12):
            s = head(features[i : i + 1], column[i : i + 1]).sigmoid().item()
            total -= s * math.log(s) + (1 - s) * math.log(1 - s)
    assert found.item() == pytest.approx(total / 24, rel=1e-5)
