"""Style transfer against a loop over images and channels."""

from __future__ import annotations

import math

import torch

from osp.parts.style import EPSILON, adain, style, stylize


def images(n: int, seed: int) -> torch.Tensor:
    draws = torch.Generator().manual_seed(seed)
    spread = 0.2 + torch.rand(n, 3, 1, 1, generator=draws)
    return spread * torch.randn(n, 3, 5, 4, generator=draws) + torch.randn(n, 3, 1, 1, generator=draws)


def moments(values: list[float]) -> tuple[float, float]:
    mean = sum(values) / len(values)
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / len(values) + EPSILON)


def test_a_stylized_image_equals_a_loop_over_its_pixels() -> None:
    contents, donors, strength = images(4, 0), images(4, 1), torch.tensor([0.0, 0.3, 0.8, 1.0])
    found = stylize(contents, donors, strength)
    expected = torch.empty_like(contents)
    for i in range(4):
        beta = strength[i].item()
        for c in range(3):
            mean, spread = moments(contents[i, c].flatten().tolist())
            donor_mean, donor_spread = moments(donors[i, c].flatten().tolist())
            for row in range(5):
                for column in range(4):
                    a = contents[i, c, row, column].item()
                    changed = donor_spread * (a - mean) / spread + donor_mean
                    expected[i, c, row, column] = (1 - beta) * a + beta * changed
    torch.testing.assert_close(found, expected)


def test_a_wholly_stylized_image_has_the_statistics_of_its_donor() -> None:
    contents, donors = 50 * images(4, 2), images(4, 3)
    torch.testing.assert_close(style(adain(contents, donors)), style(donors), rtol=1e-3, atol=1e-3)


def test_without_strength_nothing_changes_and_an_empty_image_takes_its_donors_mean() -> None:
    contents, donors = images(4, 4), images(4, 5)
    assert torch.equal(stylize(contents, donors, torch.zeros(4)), contents)
    empty = adain(torch.full_like(contents, 7.0), donors)
    torch.testing.assert_close(empty, donors.mean(dim=(2, 3), keepdim=True).expand_as(donors))


def test_no_gradient_flows_into_the_donors() -> None:
    contents, donors = images(2, 6).requires_grad_(), images(2, 7).requires_grad_()
    stylize(contents, donors, torch.ones(2)).square().sum().backward()  # type: ignore[no-untyped-call]
    assert donors.grad is None
    assert contents.grad is not None
