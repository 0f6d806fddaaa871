"""Grad-CAM against a derivative worked by hand, and the choice of partners."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from helpers.finished import finished
from osp.errors import UserError
from osp.files import write_arrays
from osp.models.gradcam import choose_partners, grad_cam, overlay, partner_maps
from osp.nets import Network
from osp.report.looks import model_of
from osp.runs.run import Run
from osp.verify import verify


class TwoMaps(nn.Module):
    """The image itself and its mirror image as maps; the features are their means over all places."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 1, bias=False)
        with torch.no_grad():
            self.conv.weight.copy_(torch.tensor([1.0, -2.0]).view(2, 1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.conv(images)
        return maps.mean(dim=(2, 3))


def test_maps_are_the_relu_of_maps_weighted_by_mean_gradients() -> None:
    """A = (x, -2x), y = 3 z_0 + z_1 and z = mean(A) over n places: dy/dA = (3/n, 1/n), so the map is ReLU(x/n)."""
    net = Network(TwoMaps(), 2, 2)
    images = torch.randn(4, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    found = grad_cam(net, images, lambda features: 3 * features[:, 0] + features[:, 1])
    expected = images[:, 0].clamp(min=0)
    expected = expected / expected.amax(dim=(1, 2), keepdim=True)
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-6)


def test_where_nothing_speaks_for_it_the_map_is_zero_and_the_network_keeps_its_mode() -> None:
    net = Network(TwoMaps(), 2, 2).train()
    found = grad_cam(net, -torch.ones(2, 1, 6, 6), lambda features: features[:, 0])
    assert (found == 0).all()
    assert net.training
    assert all(parameter.grad is None for parameter in net.parameters())


def test_the_partner_is_of_the_predicted_class_and_points_most_nearly_its_way() -> None:
    bank = {
        "features": np.array([[10.0, 0.1], [0.5, 0.5], [0.0, 1.0], [1.0, 0.0]], np.float32),
        "classes": np.array([0, 0, 0, 1]),
        "ids": np.array([7, 8, 9, 5]),
    }
    features = np.array([[1.0, 1.0], [1.0, 0.0], [0.0, 3.0], [1.0, 1.0]], np.float32)
    rows = choose_partners(features, np.array([0, 0, 1, 2]), bank)
    assert rows.tolist() == [1, 0, 3, -1]  # by angle, not by length; none of class 2


def test_maps_of_a_run_have_the_size_of_its_images_and_lie_between_0_and_1() -> None:
    run = finished()
    assert run.bank
    images = np.random.default_rng(0).integers(0, 256, (5, 1, 8, 8), dtype=np.uint8)
    model = model_of(run)
    own = model.maps(images)
    assert own.maps.shape == (5, 8, 8)
    assert own.predicted.tolist() == model.predict(images[:, 0]).tolist()
    partners = partner_maps(model, images, own, run.bank)
    for maps in (own.maps, partners.maps):
        assert maps.min() >= 0
        assert maps.max() <= 1
    there = partners.found
    classes = dict(zip(run.bank["ids"].tolist(), run.bank["classes"].tolist(), strict=True))
    for row, predicted in zip(partners.pool_rows[there], own.predicted[there], strict=True):
        assert row in classes
        assert predicted in run.bank["classes"]


def test_the_overlay_is_red_where_the_map_is_1_and_blue_where_it_is_0() -> None:
    seen = np.array([[0.0, 1.0]])
    picture = overlay(np.zeros((1, 1, 2), np.uint8), seen)
    assert picture.shape == (1, 2, 3)
    assert picture[0, 0, 2] > picture[0, 0, 0]
    assert picture[0, 1, 0] > picture[0, 1, 2]


def test_images_that_are_not_square_have_maps_of_their_size() -> None:
    net = Network(TwoMaps(), 2, 2)
    assert grad_cam(net, torch.ones(2, 1, 6, 10), lambda features: features[:, 0]).shape == (2, 6, 10)


def test_a_bank_of_another_run_is_refused(tmp_path: Path) -> None:
    whole = finished()
    shutil.copytree(whole.path, tmp_path / "run")
    bank = dict(Run.read(tmp_path / "run").bank)
    for changed in (
        {"ids": bank["ids"] + 10**9},
        {"features": bank["features"][:, 1:]},
        {"classes": bank["classes"] + 99},
    ):
        write_arrays(tmp_path / "run" / "bank.npz", {**bank, **changed})
        with pytest.raises(UserError, match=r"bank.npz is damaged"):
            _ = Run.read(tmp_path / "run").bank
        assert any("bank.npz is damaged" in problem for each in verify(tmp_path / "run") for problem in each.problems)
