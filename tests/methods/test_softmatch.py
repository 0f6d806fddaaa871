"""SoftMatch against its formulas: the weights, their running moments, which wires the loss has."""

from __future__ import annotations

import math

import pytest
import torch
import wiring

from osp.methods import get
from osp.methods.base import published_options
from osp.methods.softmatch import soft_weights


def test_weights_are_one_from_the_mean_on_and_fall_like_a_gaussian_below_it() -> None:
    confidence = torch.linspace(0.2, 1.0, 9)
    found = soft_weights(confidence, torch.tensor(0.6), torch.tensor(0.05), 2.0)
    for c, weight in zip(confidence.tolist(), found.tolist(), strict=True):
        expected = 1.0 if c >= 0.6 else math.exp(-((c - 0.6) ** 2) / (2 * 0.05 / 4))
        assert weight == pytest.approx(expected, abs=1e-5)


def test_the_running_moments_are_means_over_batches_that_forget() -> None:
    method = wiring.build("softmatch", decay=0.8)
    batches = [torch.tensor([0.5, 0.7]), torch.tensor([0.9, 0.9]), torch.tensor([0.2, 0.6])]
    weights = [0.8**2, 0.8, 1.0]
    for rows in batches:
        mean, variance = method.update(rows)
    means, variances = [0.6, 0.9, 0.4], [0.02, 0.0, 0.08]
    assert mean.item() == pytest.approx(sum(w * m for w, m in zip(weights, means, strict=True)) / sum(weights))
    assert variance.item() == pytest.approx(sum(w * v for w, v in zip(weights, variances, strict=True)) / sum(weights))


def test_the_loss_equals_a_loop_and_reaches_encoder_and_classifier() -> None:
    method = wiring.build("softmatch", unlabeled_weight=0.5)
    given = wiring.batch_for(method, "train")
    weak = wiring.tested_logits(method, given["unlabeled"]["weak"]).softmax(dim=1)
    confidence, labels = weak.max(dim=1)
    mean, variance = confidence.mean().item(), confidence.var().item()
    labeled, strong = wiring.joint_logits(method, given["labeled"]["weak"], given["unlabeled"]["strong"])
    terms = method.losses(given, wiring.step_in(method, "train"))
    total = 0.0
    for i, c in enumerate(confidence.tolist()):
        weight = math.exp(-(min(c - mean, 0) ** 2) * 4 / (2 * variance))
        total -= weight * math.log(strong[i].softmax(dim=0)[labels[i]].item())
    assert terms["consistency"].item() == pytest.approx(0.5 * total / len(confidence), rel=1e-4)
    expected = -labeled.log_softmax(dim=1).gather(1, given["labeled"].targets[:, None]).mean()
    assert terms["ce"].item() == pytest.approx(expected.item(), rel=1e-4)
    assert wiring.reached(method, "train") == {
        "ce": {"encoder", "classifier"},
        "consistency": {"encoder", "classifier"},
    }


def test_one_unlabeled_image_and_equal_confidences_give_numbers() -> None:
    method = wiring.build("softmatch")
    mean, variance = method.update(torch.tensor([0.5]))
    assert soft_weights(torch.tensor([0.5]), mean, variance, 2.0).tolist() == [1.0]


def test_the_paper_preset() -> None:
    published = published_options(get("softmatch"), "cifar100")
    assert (published["ema"], published["mu"], published["decay"], published["weight_decay"]) == (0.999, 7, 0.999, 1e-3)
