"""Draws for the images of a batch, alone and shared."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from helpers.pairs import in_two, wait_for
from osp import distributed
from osp.parts.draws import beta, rand, randn


def draw(rows: int) -> list[Tensor]:
    def seeded() -> torch.Generator:
        return torch.Generator().manual_seed(5)

    return [rand((rows, 3), seeded()), randn((rows, 2), seeded()), beta(rows, 0.75, seeded())]


def draw_share(folder: Path) -> None:
    torch.save(draw(4), folder / f"{distributed.rank()}.pt")


@pytest.mark.slow
def test_two_processes_together_draw_what_one_draws(tmp_path: Path) -> None:
    wait_for(in_two(draw_share, tmp_path))
    shares = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1)]
    for number, whole in enumerate(draw(8)):
        assert torch.equal(shares[0][number], whole[0::2])
        assert torch.equal(shares[1][number], whole[1::2])


def test_beta_has_its_mean_and_variance() -> None:
    numbers = beta(20_000, 0.75, torch.Generator().manual_seed(0))
    assert numbers.mean().item() == pytest.approx(0.5, abs=0.01)
    assert numbers.var().item() == pytest.approx(1 / (4 * (2 * 0.75 + 1)), abs=0.005)
    assert ((numbers >= 0) & (numbers <= 1)).all()
