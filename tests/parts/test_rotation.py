"""The rotation task: order of the turned images, and its loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from osp.parts.rotation import rotate4, rotation_loss


def test_all_images_of_an_angle_stand_together() -> None:
    images = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    turned = rotate4(images)
    assert turned.shape == (20, 3, 8, 8)
    for position, image in enumerate(turned):
        turns, i = divmod(position, 5)
        assert np.array_equal(image.numpy(), np.rot90(images[i].numpy(), turns, (1, 2)))


def test_images_that_are_not_square_are_refused() -> None:
    with pytest.raises(ValueError, match="24x40"):
        rotate4(torch.zeros(1, 3, 24, 40))


def test_the_loss_is_the_mean_over_images_and_angles() -> None:
    logits = torch.randn(20, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    total = 0.0
    for k in range(4):
        for i in range(5):
            row = logits[k * 5 + i].numpy()
            total -= np.log(np.exp(row[k]) / np.exp(row).sum())
    assert rotation_loss(logits).item() == pytest.approx(total / 20, rel=1e-12)


def test_a_head_that_knows_nothing_loses_ln_4() -> None:
    assert rotation_loss(torch.zeros(8, 4)).item() == pytest.approx(np.log(4))
