"""Anchors (Eq. 2-4) and orthogonality losses (Eq. 10) against loops over samples."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from osp.parts.orthogonality import (
    labeled_anchors,
    labeled_orthogonality_loss,
    unlabeled_anchors,
    unlabeled_orthogonality_loss,
)

N, K = 24, 5


def logits(seed: int) -> Tensor:
    return 3.0 * torch.randn(N, K, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def targets() -> Tensor:
    return torch.randint(K, (N,), generator=torch.Generator().manual_seed(9))


def divergence(p: Tensor, q: Tensor) -> float:
    return sum(float(p[c]) * math.log(float(p[c]) / float(q[c])) for c in range(K))


def test_labeled_anchors_are_confident_in_their_label() -> None:
    values, labels = 2 * logits(0), targets()
    labels[: N // 2] = values[: N // 2].argmax(dim=1)
    expected = [float(row.softmax(0)[label]) > 0.8 for row, label in zip(values, labels.tolist(), strict=True)]
    assert any(expected)
    assert not all(expected)
    assert labeled_anchors(values, labels, 0.8).tolist() == expected


def test_a_labeled_image_confident_in_another_class_is_no_anchor() -> None:
    assert labeled_anchors(torch.tensor([[9.0, 0.0], [9.0, 0.0]]), torch.tensor([0, 1])).tolist() == [True, False]


def test_unlabeled_anchors_are_confident_in_their_prediction() -> None:
    values = logits(0)
    anchors, classes = unlabeled_anchors(values, 0.8)
    assert anchors.tolist() == [max(row.softmax(0).tolist()) > 0.8 for row in values]
    assert classes.tolist() == [int(row.argmax()) for row in values]


def test_the_confidence_must_be_above_delta_not_at_it() -> None:
    even = torch.zeros(1, 2)  # softmax gives 0.5 exactly
    label = torch.tensor([0])
    assert not labeled_anchors(even, label, 0.5).item()
    assert not unlabeled_anchors(even, 0.5)[0].item()
    below = math.nextafter(0.5, 0.0) - 1e-7
    assert labeled_anchors(even, label, below).item()
    assert unlabeled_anchors(even, below)[0].item()


@pytest.mark.parametrize("temperature", [1.0, 0.4])
def test_losses_equal_loops_over_anchors(temperature: float) -> None:
    values, pruned, labels = logits(0), logits(1), targets()
    anchors = torch.arange(N) % 3 != 0
    labeled, unlabeled, count = 0.0, 0.0, 0
    for i in anchors.nonzero().squeeze(1).tolist():
        p, p_r = (values[i] / temperature).softmax(0), pruned[i].softmax(0)
        labeled += divergence(p, p_r) - math.log(float(p_r[labels[i]]))
        unlabeled += divergence(p, p_r)
        count += 1
    found = labeled_orthogonality_loss(values, pruned, labels, anchors, temperature)
    assert found.item() == pytest.approx(labeled / count)
    found = unlabeled_orthogonality_loss(values, pruned, anchors, temperature)
    assert found.item() == pytest.approx(unlabeled / count)


def test_predictions_that_did_not_change_cost_only_the_labels() -> None:
    values, labels, everyone = logits(0), targets(), torch.ones(N, dtype=torch.bool)
    assert unlabeled_orthogonality_loss(values, values, everyone).item() == pytest.approx(0.0)
    expected = torch.nn.functional.cross_entropy(values, labels).item()
    assert labeled_orthogonality_loss(values, values, labels, everyone).item() == pytest.approx(expected)


def test_without_anchors_both_losses_and_their_gradients_are_zero() -> None:
    pruned, nobody = logits(1).requires_grad_(), torch.zeros(N, dtype=torch.bool)
    loss = labeled_orthogonality_loss(logits(0), pruned, targets(), nobody)
    loss = loss + unlabeled_orthogonality_loss(logits(0), pruned, nobody)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == 0.0
    assert pruned.grad is not None
    assert torch.equal(pruned.grad, torch.zeros_like(pruned))


def test_only_anchors_receive_a_gradient() -> None:
    pruned, anchors = logits(1).requires_grad_(), torch.arange(N) < 7
    labeled_orthogonality_loss(logits(0), pruned, targets(), anchors).backward()  # type: ignore[no-untyped-call]
    assert pruned.grad is not None
    assert torch.equal(pruned.grad.abs().sum(1) > 0, anchors)
