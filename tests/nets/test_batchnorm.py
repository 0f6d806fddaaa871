"""Batch norms over two processes against torch's own on the whole batch: values, both derivatives, statistics."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from helpers.pairs import in_two, wait_for
from osp import distributed
from osp.nets import BATCH_NORMS, Network, spread
from osp.nets.batchnorm import SpreadBatchNorm
from osp.nets.small import SmallNet

BOUNDS = {"equal": (0, 6, 12), "uneven": (0, 9, 12), "one has none": (0, 12, 12)}


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def own_rows(whole: Tensor) -> Tensor:
    return whole[distributed.rank() :: distributed.world()]


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


def outcome(layer: nn.Module, images: Tensor, factors: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output, gradient of Σ f y², and a gradient of that gradient's squares: by images and by the layer's weights."""
    images = images.clone().requires_grad_()
    output = layer(images)
    (first,) = torch.autograd.grad((factors * output.square()).sum(), images, create_graph=True)
    weight = next(layer.parameters())
    second, by_weight = torch.autograd.grad(first.square().sum(), [images, weight])
    return output.detach(), first.detach(), second, distributed.summed(by_weight)


def check_norms() -> None:
    for shape, kind in (((12, 3, 4, 5), nn.BatchNorm2d), ((12, 3), nn.BatchNorm1d)):
        images, factors = drawn(*shape) * 3 + 100, drawn(2, *shape)[1]
        for bounds in BOUNDS.values():
            rows = slice(*bounds[distributed.rank() : distributed.rank() + 2])
            whole = nn.Sequential(kind(3, momentum=0.3)).double()
            nn.init.uniform_(next(whole.parameters()), 0.5, 2, generator=torch.Generator().manual_seed(1))
            parts = copy.deepcopy(whole)
            spread(parts)
            assert isinstance(parts[0], SpreadBatchNorm)
            with distributed.alone():
                wanted = outcome(whole, images, factors)
            found = outcome(parts, images[rows], factors[rows])
            for mine, theirs in zip(found[:3], wanted[:3], strict=True):
                close(mine, theirs[rows])
            close(found[3], wanted[3])
            for name, value in whole.state_dict().items():
                close(parts.state_dict()[name].double(), value.double())
            close(parts.eval()(images), whole.eval()(images))


def check_groups() -> None:
    """Passes of a common size and of another, more of them than processes and fewer."""
    images, factors = drawn(20, 1, 8, 8), drawn(20, 128)
    for group in (0, 3, 5, 7, 10, 20):  # one pass, then 7, 4, 3, 2 and one
        torch.manual_seed(1)
        whole = Network(SmallNet((1, 8, 8)), 128, 3).double()
        whole.group = group or None
        parts = copy.deepcopy(whole)
        spread(parts)
        with distributed.alone():
            output = whole.encode(images)
            torch.autograd.backward((factors * output).sum())
        mine = parts.encode(own_rows(images))
        torch.autograd.backward((own_rows(factors) * mine).sum())
        close(mine, own_rows(output.detach()))
        for (name, one), other in zip(whole.encoder.named_parameters(), parts.encoder.parameters(), strict=True):
            assert one.grad is not None, name
            assert other.grad is not None, name
            scale = float(one.grad.abs().max())
            torch.testing.assert_close(distributed.summed(other.grad), one.grad, rtol=0, atol=1e-7 * scale)
        for name, value in whole.state_dict().items():
            close(parts.state_dict()[name].double(), value.double())


def check_all() -> None:
    check_norms()
    check_groups()


@pytest.mark.slow
def test_two_processes_normalize_by_the_global_batch_in_the_passes_of_one() -> None:
    wait_for(in_two(check_all))


def test_spreading_keeps_parameters_names_settings_and_shared_layers() -> None:
    shared = nn.BatchNorm1d(3, eps=1e-3, momentum=0.2)
    module = nn.Sequential(shared, nn.Sequential(shared), nn.BatchNorm2d(2, affine=False)).eval()
    before = dict(module.named_parameters()), list(module.state_dict())
    spread(module)
    assert dict(module.named_parameters()) == before[0]
    assert list(module.state_dict()) == before[1]
    first = module[0]
    assert isinstance(first, SpreadBatchNorm)
    assert isinstance(first, BATCH_NORMS)
    assert first is module.get_submodule("1.0")
    assert (first.eps, first.momentum, first.training) == (1e-3, 0.2, False)
    assert first.weight is shared.weight


@pytest.mark.parametrize("training", [True, False])
def test_in_one_process_it_is_torchs_own(training: bool) -> None:
    own = nn.Sequential(nn.BatchNorm2d(3)).train(training)
    other = copy.deepcopy(own)
    spread(other)
    images = drawn(4, 3, 2, 2).float()
    assert torch.equal(own(images), other(images))
    assert torch.equal(own.get_buffer("0.running_var"), other.get_buffer("0.running_var"))
