"""Pi-Model against its formula, and what makes its two looks differ."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import wiring
from classic_runs import (
    assert_half_precision_agrees,
    batch,
    build,
    gradients,
    remembered_after,
    running_statistics,
    step_at,
)

from helpers.learning import with_and_without_pool
from osp.methods import Sample, get
from osp.methods.pi_model import squared_gap


def test_the_terms_equal_a_loop_over_images_and_classes() -> None:
    method, data = build("pi-model", unlabeled_weight=7.0, ramp=0.4).eval(), batch()
    terms = method.losses(data, step_at(0.5))
    first, second = (method.net(data["unlabeled"][view]).softmax(1).tolist() for view in ("weak", "weak2"))
    gap = sum((first[i][c] - second[i][c]) ** 2 for i in range(12) for c in range(3)) / (12 * 3)
    assert terms["consistency"].item() == pytest.approx(7.0 * gap, rel=1e-4)
    assert method.logged["look_gap"].item() == pytest.approx(3 * gap, rel=1e-4)
    labeled = data["labeled"]
    torch.testing.assert_close(terms["ce"], F.cross_entropy(method.net(labeled["weak"]), labeled.targets))


def test_the_gradient_flows_through_the_second_look_alone() -> None:
    method, data = build("pi-model", unlabeled_weight=1.0).eval(), batch()
    found = gradients(method, method.losses(data, step_at())["consistency"])
    target = method.net(data["unlabeled"]["weak"]).softmax(1).detach()
    expected = gradients(method, (method.net(data["unlabeled"]["weak2"]).softmax(1) - target).square().mean())
    torch.testing.assert_close(found, expected)
    assert any(gradient.any() for gradient in expected)


@pytest.mark.parametrize(("progress", "factor"), [(0.0, math.exp(-5)), (0.2, math.exp(-1.25)), (0.4, 1.0), (0.9, 1.0)])
def test_the_weight_rises_over_the_ramp(progress: float, factor: float) -> None:
    method, data = build("pi-model", unlabeled_weight=20.0, ramp=0.4).eval(), batch()
    full = method.losses(data, step_at(0.9))["consistency"].item()
    assert method.losses(data, step_at(progress))["consistency"].item() == pytest.approx(factor * full, rel=1e-5)


def test_dropout_alone_makes_two_looks_at_the_same_view_differ() -> None:
    method, data = build("pi-model", "cnn"), batch()
    weak = data["unlabeled"]["weak"]
    data["unlabeled"] = Sample(torch.arange(12), {"weak": weak, "weak2": weak})
    method.losses(data, step_at())
    assert method.logged["look_gap"].item() > 1e-3
    method.eval().losses(data, step_at())
    assert method.logged["look_gap"].item() < 1e-9


def test_batch_norms_remember_the_joint_pass_alone() -> None:
    method, data = build("pi-model"), batch()
    expected = remembered_after(method, torch.cat([data["labeled"]["weak"], data["unlabeled"]["weak2"]]))
    method.losses(data, step_at())
    torch.testing.assert_close(running_statistics(method.net), expected)


def test_half_precision_gives_the_same_losses() -> None:
    assert_half_precision_agrees("pi-model")


def test_each_term_reaches_the_whole_network_and_each_look_has_noise_of_its_own() -> None:
    method = wiring.build("pi-model", input_noise=0.15)
    assert wiring.reached(method, "train") == {name: {"encoder", "classifier"} for name in ("ce", "consistency")}
    seen: list[torch.Tensor] = []
    method.net.encoder.register_forward_pre_hook(lambda module, given: seen.append(given[0].clone()))
    data = wiring.batch_for(method, "train", 100)
    method.losses(data, wiring.step_in(method, "train"))
    first = seen[0] - data["unlabeled"]["weak"]
    second = seen[1] - torch.cat([data["labeled"]["weak"], data["unlabeled"]["weak2"]])
    assert [first.std().item(), second.std().item()] == pytest.approx([0.15, 0.15], rel=0.05)
    assert (first - second[100:]).std().item() == pytest.approx(0.15 * 2**0.5, rel=0.05)


def test_the_first_look_is_by_batch_statistics() -> None:
    method = wiring.build("pi-model", unlabeled_weight=1.0, ramp=0.0)
    data = wiring.batch_for(method, "train")
    labeled, unlabeled = data["labeled"], data["unlabeled"]
    (first,) = wiring.joint_logits(method, unlabeled["weak"])
    _, second = wiring.joint_logits(method, labeled["weak"], unlabeled["weak2"])
    found = method.losses(data, wiring.step_in(method, "train"))["consistency"]
    torch.testing.assert_close(found.detach(), (first.softmax(1) - second.softmax(1)).square().mean())


def test_the_paper_preset_has_the_values_of_the_reference_sheet() -> None:
    assert wiring.published("pi-model") == {
        "batch": 50,
        "mu": 1,
        "lr": 3e-4,
        "unlabeled_weight": 20.0,
        "ramp": 0.4,
        "optimizer": "adam",
        "schedule": "steps",
        "drops": (0.8,),
        "drop_factor": 0.2,
        "weight_decay": 0.0,
        "input_noise": 0.15,
    }
    assert get("pi-model").paper_steps == 500_000


def test_the_gap_gives_its_target_no_gradient() -> None:
    logits, target = torch.randn(5, 3, requires_grad=True), torch.randn(5, 3, requires_grad=True)
    slopes = torch.autograd.grad(squared_gap(logits, target), [logits, target], allow_unused=True)
    assert slopes[0].any()
    assert slopes[1] is None


@pytest.mark.slow
def test_two_looks_at_the_pool_come_closer_than_the_labels_alone_bring_them(tmp_path: Path) -> None:
    """Single seeds 0-2 under three roundings: the gap is 0.35 to 0.38 of the other one, accuracy 81.3 to 87.2."""
    full, idle = with_and_without_pool("pi-model", tmp_path, weight=20.0)
    assert full.mean("accuracy") > 60
    assert full.late("look_gap") < 0.7 * idle.late("look_gap")
    assert full.warnings == []
