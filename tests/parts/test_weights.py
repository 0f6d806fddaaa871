"""A second set of weights."""

from __future__ import annotations

import torch
from torch import nn

from osp.parts.weights import WeightStore


def network(value: float) -> nn.Sequential:
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    with torch.no_grad():
        for tensor in net.state_dict().values():
            tensor.fill_(value)
    return net


def test_what_was_kept_comes_back_whatever_happened_since() -> None:
    net = network(2.0)
    store = WeightStore(net)
    store.keep(net)
    for tensor in net.state_dict().values():
        tensor.fill_(7)
    store.restore(net)
    assert all((tensor == 2).all() for tensor in net.state_dict().values())


def test_the_mean_is_that_of_all_states_since_it_was_cleared() -> None:
    store = WeightStore(network(100.0))
    for value in (1.0, 4.0, 10.0):
        store.average(network(value))
    net = network(0.0)
    store.restore(net)
    state = net.state_dict()
    torch.testing.assert_close(state["0.weight"], torch.full((3, 2), 5.0))
    torch.testing.assert_close(state["1.running_var"], torch.full((3,), 5.0))
    assert state["1.num_batches_tracked"] == 10
    store.clear()
    store.average(network(8.0))
    store.restore(net)
    torch.testing.assert_close(net.state_dict()["0.bias"], torch.full((3,), 8.0))


def test_a_checkpoint_of_the_owner_carries_the_store() -> None:
    store, other = WeightStore(network(3.0)), WeightStore(network(0.0))
    store.average(network(5.0))
    other.load_state_dict(store.state_dict())
    net = network(1.0)
    other.restore(net)
    assert (net.state_dict()["0.weight"] == 5).all()
    assert other.filled == 1


def test_the_store_has_nothing_to_train() -> None:
    assert not list(WeightStore(network(0.0)).parameters())
