"""Heads that disagree, and how much they know of each other: by loops and by hand."""

from __future__ import annotations

import math

import pytest
import torch

from osp.parts import disagreement as part
from osp.parts.disagreement import disagreement, mutual_information


def answers(images: int = 7, heads: int = 4, classes: int = 3, seed: int = 0) -> torch.Tensor:
    draws = torch.Generator().manual_seed(seed)
    return torch.randn(images, heads, classes, generator=draws, dtype=torch.float64).mul(2).softmax(dim=2)


def test_disagreement_is_the_mean_distance_over_all_pairs_and_classes() -> None:
    found = answers()
    for image, value in zip(found.tolist(), disagreement(found).tolist(), strict=True):
        distances = [abs(a - b) for h in image for g in image for a, b in zip(h, g, strict=True)]
        assert value == pytest.approx(sum(distances) / (4 * 4 * 3))


def test_heads_that_say_the_same_do_not_disagree() -> None:
    assert disagreement(answers(heads=1).expand(-1, 5, -1)).abs().max() < 1e-12


def test_mutual_information_of_certain_heads_is_a_number_in_half_precision() -> None:
    certain = (16 * torch.eye(6)[torch.arange(40) % 6]).softmax(dim=1)[:, None].repeat(1, 10, 1).requires_grad_()
    exact = mutual_information(certain.detach().double())
    with torch.autocast("cpu", torch.float16):
        found = mutual_information(certain)
    found.backward()  # type: ignore[no-untyped-call]
    assert found.item() == pytest.approx(exact.item(), rel=1e-4)
    assert certain.grad is not None
    assert bool(certain.grad.isfinite().all())


def test_mutual_information_equals_a_loop_over_pairs_of_heads() -> None:
    found = answers()
    images, heads, classes = found.shape
    p = found.tolist()
    total = 0.0
    for h in range(heads):
        for g in range(h + 1, heads):
            for k in range(classes):
                for other in range(classes):
                    joint = sum(p[i][h][k] * p[i][g][other] for i in range(images)) / images
                    one, two = (sum(p[i][a][b] for i in range(images)) / images for a, b in ((h, k), (g, other)))
                    total += joint * math.log(joint / (one * two))
    assert mutual_information(found).item() == pytest.approx(total / (heads * (heads - 1) / 2))


def test_independent_answers_tell_nothing_and_equal_ones_their_entropy() -> None:
    independent = torch.eye(2)[torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])]
    assert mutual_information(independent).item() == pytest.approx(0.0, abs=1e-6)
    equal = torch.eye(4)[torch.tensor([[0, 0], [1, 1], [2, 2], [3, 3]])]
    assert mutual_information(equal).item() == pytest.approx(math.log(4))


def test_one_head_has_no_pair() -> None:
    assert mutual_information(answers(heads=1)).item() == 0.0


def test_answers_without_doubt_have_a_finite_gradient() -> None:
    logits = (1e4 * torch.randn(6, 3, 4, generator=torch.Generator().manual_seed(0))).requires_grad_()
    mutual_information(logits.softmax(dim=2)).backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("most", [1, 4 * 3 * 3, 2 * 4 * 3 * 3, 3 * 4 * 3 * 3])
def test_heads_one_after_another_tell_as_much_as_all_at_once(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = mutual_information(answers()).item()
    monkeypatch.setattr(part, "LARGEST", most)  # one, one, two and three heads at once
    assert mutual_information(answers()).item() == pytest.approx(whole)


def test_many_classes_keep_little_more_than_each_pair_of_heads_once() -> None:
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        mutual_information(answers(heads=10, classes=300).float().requires_grad_())
    assert sum(kept.values()) < 2.5 * (10 * 300) ** 2  # all pairs in both orders would be 3 times
