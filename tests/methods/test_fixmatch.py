"""FixMatch against its formula, and learning from unlabeled images."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import wiring

from helpers.learning import IDLE, with_and_without_pool
from osp.methods import Method, Sample, Stage, Step, Task, get
from osp.methods.fixmatch import labeling_logits, pseudo_label_loss
from osp.nets import build_network

TASK = Task(num_classes=3, shape=(1, 8, 8), num_labeled=6, num_unlabeled=40, num_val=0)
STEP = Step(0, 1, Stage(), 0, 0, 1, seed=0)


def build(**options: float | None) -> Method:
    torch.manual_seed(0)
    kind = get("fixmatch")
    return kind(kind.Options.model_validate(options), build_network("small", TASK.shape, 3), TASK)


def batch() -> dict[str, Sample]:
    torch.manual_seed(1)
    labeled = Sample(torch.arange(4), {"weak": torch.randn(4, 1, 8, 8)}, torch.tensor([0, 1, 2, 0]))
    views = {"weak": torch.randn(12, 1, 8, 8), "strong": torch.randn(12, 1, 8, 8)}
    return {"labeled": labeled, "unlabeled": Sample(torch.arange(12), views)}


def test_the_loss_is_a_sum_over_confident_images_divided_by_all() -> None:
    torch.manual_seed(0)
    weak, strong = 3 * torch.randn(50, 4), torch.randn(50, 4)
    loss, mask = pseudo_label_loss(weak, strong, 0.8)
    total, confident = 0.0, 0
    for q, p in zip(weak.softmax(1).tolist(), strong.softmax(1).tolist(), strict=True):
        if max(q) >= 0.8:
            total -= math.log(p[q.index(max(q))])
            confident += 1
    assert 0 < confident < 50
    assert loss.item() == pytest.approx(total / 50, rel=1e-5)
    assert mask.sum().item() == confident


def test_confidence_at_the_threshold_itself_counts() -> None:
    weak = torch.zeros(1, 4)  # every probability is exactly a quarter
    strong = torch.zeros(1, 4)
    assert pseudo_label_loss(weak, strong, 0.25)[1].tolist() == [1.0]
    above = math.nextafter(0.25, 1) + 1e-6
    assert pseudo_label_loss(weak, strong, above)[1].tolist() == [0.0]


def test_no_gradient_flows_through_the_weak_views() -> None:
    weak, strong = torch.randn(6, 3, requires_grad=True), torch.randn(6, 3, requires_grad=True)
    loss, _ = pseudo_label_loss(weak, strong, 0.0)
    loss.backward()  # type: ignore[no-untyped-call]
    assert weak.grad is None
    assert strong.grad is not None
    torch.testing.assert_close(
        strong.grad, (strong.softmax(1) - F.one_hot(weak.argmax(1), 3)).detach() / 6, rtol=1e-5, atol=1e-6
    )


def test_the_terms_are_the_cross_entropy_and_the_weighted_consistency() -> None:
    method, data = build(threshold=0.8, unlabeled_weight=2.5).eval(), batch()
    method.net.classifier.weight.data *= 30  # as confident as a trained network
    terms = method.losses(data, STEP)
    labeled, unlabeled = data["labeled"], data["unlabeled"]
    torch.testing.assert_close(terms["ce"], F.cross_entropy(method.net(labeled["weak"]), labeled.targets))
    expected, mask = pseudo_label_loss(method.net(unlabeled["weak"]), method.net(unlabeled["strong"]), 0.8)
    torch.testing.assert_close(terms["consistency"], 2.5 * expected)
    assert method.logged["mask_rate"].item() == pytest.approx(mask.mean().item())
    assert 0 < mask.mean().item() < 1


def test_images_below_the_threshold_change_nothing_in_the_gradient() -> None:
    method, data = build(threshold=1.0).eval(), batch()
    sum(method.losses(data, STEP).values(), torch.zeros(())).backward()  # type: ignore[no-untyped-call]
    found = [parameter.grad.clone() for parameter in method.parameters() if parameter.grad is not None]
    method.zero_grad()
    F.cross_entropy(method.net(data["labeled"]["weak"]), data["labeled"].targets).backward()  # type: ignore[no-untyped-call]
    expected = [parameter.grad for parameter in method.parameters() if parameter.grad is not None]
    torch.testing.assert_close(found, expected)


def test_it_draws_mu_times_as_many_unlabeled_images_in_two_views() -> None:
    method = build(batch=4, mu=7)
    specs = method.streams(method.stages()[0])
    assert (specs["labeled"].batch, specs["labeled"].views) == (4, ("weak",))
    assert (specs["unlabeled"].batch, specs["unlabeled"].views) == (28, ("weak", "strong"))


@pytest.mark.parametrize("joint", [False, True])
def test_labels_are_by_running_statistics_or_from_the_one_pass_of_the_release(joint: bool) -> None:
    method = wiring.build("fixmatch", threshold=0.6, joint_weak=joint)
    data = wiring.batch_for(method, "train", 40)
    labeled, unlabeled = data["labeled"], data["unlabeled"]
    views = [labeled["weak"], unlabeled["strong"], *([unlabeled["weak"]] if joint else [])]
    looks = wiring.joint_logits(method, *views)
    weak = looks[2] if joint else wiring.tested_logits(method, unlabeled["weak"])
    confidence, label = weak.softmax(1).max(1)
    wanted = ((confidence >= 0.6) * F.cross_entropy(looks[1], label, reduction="none")).mean()
    terms = method.losses(data, wiring.step_in(method, "train"))
    torch.testing.assert_close(terms["consistency"].detach(), wanted)
    torch.testing.assert_close(terms["ce"].detach(), F.cross_entropy(looks[0], labeled.targets))
    assert wiring.reached(method, "train") == {name: {"encoder", "classifier"} for name in ("ce", "consistency")}


def test_labels_are_drawn_with_dropout_in_training_and_leave_batch_norms_alone() -> None:
    method = wiring.build("fixmatch", dropout=0.5)
    weak = wiring.images(40, 1)
    before = {name: value.clone() for name, value in method.net.state_dict().items()}
    found = labeling_logits(method.net, weak)
    assert all(torch.equal(value, before[name]) for name, value in method.net.state_dict().items())
    assert not found.requires_grad
    tested = wiring.tested_logits(method, weak)
    assert ((found - tested).abs().amax(1) > 0.05).float().mean() > 0.9
    means = torch.stack([labeling_logits(method.net, weak) for _ in range(300)]).mean(0)
    torch.testing.assert_close(means, tested, rtol=0.2, atol=0.5)  # and but for it they are the tested network's
    torch.testing.assert_close(labeling_logits(method.net.eval(), weak), tested)


def test_the_averaged_weights_are_what_is_tested() -> None:
    assert get("fixmatch").Options().model_dump()["ema"] == 0.999


def test_the_paper_preset_has_the_values_of_the_reference_sheet() -> None:
    values = {
        "batch": 64,
        "optimizer": "sgd",
        "lr": 0.03,
        "momentum": 0.9,
        "nesterov": True,
        "schedule": "cosine-7/16",
        "mu": 7,
        "weight_decay": 5e-4,
        "decay_all": False,
        "ema": 0.999,
        "threshold": 0.95,
        "unlabeled_weight": 1.0,
        "joint_weak": True,
    }
    assert wiring.published("fixmatch") == values
    assert wiring.published("fixmatch", "cifar100") == {**values, "weight_decay": 1e-3}
    assert get("fixmatch").paper_steps == 250_000  # the OSP paper's
    defaults = get("fixmatch").Options().model_dump()
    assert (defaults["threshold"], defaults["unlabeled_weight"], defaults["joint_weak"]) == (0.95, 1.0, False)


@pytest.mark.slow
def test_it_learns_to_see_in_strong_views_what_it_sees_in_weak_ones(tmp_path: Path) -> None:
    """Single seeds 0-2, three roundings: the loss on the pool is 0.56 to 0.66 of what the labels alone leave it at,
    accuracy 86.9 to 91.6.
    """
    full, idle = with_and_without_pool("fixmatch", tmp_path, weight=2.0)
    assert full.mean("accuracy") > 65
    assert full.late("consistency") / 2.0 < 0.85 * idle.late("consistency") / (IDLE * 2.0)
    assert full.warnings == []
