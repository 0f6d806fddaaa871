"""The bank of OOD features against plain queues."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.overrides import TorchFunctionMode

from osp.parts import OODBank
from osp.runs.checkpoint import load_checkpoint, load_state, save_checkpoint

DIM = 3


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def features_of(ids: Tensor) -> Tensor:
    """A feature that tells its id."""
    return ids[:, None] * torch.tensor([1.0, 2.0, -1.0])


def held(bank: OODBank, c: int) -> list[int]:
    """The ids of a class from the oldest to the newest, read from the bank's tables, the features being theirs."""
    count, written = int(bank.counts[c]), int(bank.written[c])
    positions = range(written - count, written)
    rows = [int(bank.slots[c, position % bank.capacity]) for position in positions]
    ids = [int(bank.ids[row]) for row in rows]
    for row, number in zip(rows, ids, strict=True):
        assert bank.features[row].tolist() == [number, 2 * number, -number]
    return ids


def push_numbers(bank: OODBank, numbers: list[int], classes: list[int], valid: list[bool] | None = None) -> None:
    ids = torch.tensor(numbers, dtype=torch.int64)
    mask = None if valid is None else torch.tensor(valid, dtype=torch.bool)
    bank.push(features_of(ids), torch.tensor(classes, dtype=torch.int64), ids, mask)


class Queues:
    """What the bank must be: one queue per class."""

    def __init__(self, num_classes: int, capacity: int) -> None:
        self.queues = [deque[int](maxlen=capacity) for _ in range(num_classes)]

    def push(self, numbers: list[int], classes: list[int], valid: list[bool]) -> None:
        for number, c, is_valid in zip(numbers, classes, valid, strict=True):
            if is_valid:
                self.queues[c].append(number)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_bank_is_one_queue_a_class(data: st.DataObject) -> None:
    num_classes, capacity = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 7))
    bank, queues = OODBank(num_classes, DIM, capacity), Queues(num_classes, capacity)
    pushed = 0
    for _ in range(data.draw(st.integers(1, 8))):
        size = data.draw(st.integers(0, 20))  # often more than there is room for
        classes = data.draw(st.lists(st.integers(0, num_classes - 1), min_size=size, max_size=size))
        valid = data.draw(st.lists(st.booleans(), min_size=size, max_size=size))
        numbers = list(range(pushed, pushed + size))
        pushed += size
        push_numbers(bank, numbers, classes, valid)
        queues.push(numbers, classes, valid)
        if data.draw(st.booleans()):
            bank.state_dict()  # gives unused room back, which nobody may notice
        assert [held(bank, c) for c in range(num_classes)] == [list(queue) for queue in queues.queues]
        assert bank.counts.tolist() == [len(queue) for queue in queues.queues]
        assert int(bank.size) == sum(len(queue) for queue in queues.queues)
        in_use = bank.ids[: int(bank.size)].tolist()
        assert Counter(in_use) == Counter(number for queue in queues.queues for number in queue)


def test_the_newest_features_stay() -> None:
    bank = OODBank(2, DIM, capacity=3)
    push_numbers(bank, [0, 1, 2, 3, 4], [1, 1, 1, 1, 0])
    assert (held(bank, 0), held(bank, 1)) == ([4], [1, 2, 3])
    push_numbers(bank, [5, 6], [1, 0])
    assert (held(bank, 0), held(bank, 1)) == ([4, 6], [2, 3, 5])


def test_ids_are_minus_one_where_not_given() -> None:
    bank = OODBank(2, DIM)
    bank.push(torch.ones(2, DIM), torch.tensor([0, 1]))
    assert bank.ids[:2].tolist() == [-1, -1]


def test_memory_is_taken_only_as_the_bank_fills() -> None:
    bank = OODBank(100, 128, capacity=5000)
    assert bank.features.numel() == bank.slots.numel() == 0
    for seed in range(5):
        classes = torch.randint(100, (64,), generator=seeded(seed))
        bank.push(torch.randn(64, 128), classes)
    assert len(bank.features) <= (2 * 5 + 16) * 64 + 1
    assert bank.slots.shape[1] <= (2 * 5 + 16) * 64 + 1
    assert len(bank.state_dict()["features"]) == 5 * 64


def test_the_table_never_holds_more_than_all_queues_together() -> None:
    bank = OODBank(3, DIM, capacity=10)
    for _ in range(30):
        bank.push(torch.randn(20, DIM), torch.randint(3, (20,), generator=seeded()))
    assert len(bank.features) == 3 * 10 + 1
    assert bank.slots.shape == (3, 10 + 1)


def test_a_total_capacity_is_shared_by_the_classes() -> None:
    bank = OODBank(4, DIM, capacity=5000, total_capacity=11)
    push_numbers(bank, list(range(40)), [i % 4 for i in range(40)])
    assert bank.counts.tolist() == [2, 2, 2, 2]
    assert OODBank(4, DIM, capacity=2, total_capacity=100).capacity == 2
    with pytest.raises(ValueError, match="a bank of 3 features has no room for 4 classes"):
        OODBank(4, DIM, total_capacity=3)


def test_half_precision_takes_half_the_memory_and_gives_single_precision_back() -> None:
    bank = OODBank(2, DIM, dtype=torch.float16)
    given_features = torch.tensor([[0.1, 1000.0, -3.3]])
    bank.push(given_features, torch.tensor([1]))
    assert bank.features.element_size() == 2
    sampled, _ = bank.sample(torch.tensor([1]), seeded())
    assert sampled.dtype == torch.float32
    assert torch.equal(sampled, given_features.half().float())


def test_what_half_precision_cannot_hold_does_no_harm_to_empty_classes() -> None:
    bank = OODBank(2, DIM, dtype=torch.float16)
    bank.push(torch.full((1, DIM), 1e6), torch.tensor([1]))
    sampled, found = bank.sample(torch.tensor([0]), seeded())
    assert not found.item()
    assert sampled.tolist() == [[0.0] * DIM]


def test_pushing_keeps_no_graph() -> None:
    bank = OODBank(2, DIM)
    features = torch.ones(2, DIM, requires_grad=True)
    bank.push(features * 2, torch.tensor([0, 1]))
    sampled, _ = bank.sample(torch.tensor([0, 1]), seeded())
    assert not bank.features.requires_grad
    assert not sampled.requires_grad


def test_an_empty_bank_answers_with_zeros_that_were_not_found() -> None:
    bank = OODBank(5, DIM)
    bank.push(torch.empty(0, DIM), torch.empty(0, dtype=torch.int64))
    push_numbers(bank, [7], [2], [False])
    for sampled, found in (bank.sample(torch.tensor([0, 2, 4]), seeded()), bank.sample_any(3, seeded())):
        assert sampled.tolist() == [[0.0] * DIM] * 3
        assert found.tolist() == [False] * 3
    assert bank.counts.tolist() == [0] * 5


def filled() -> tuple[OODBank, dict[int, list[int]]]:
    """Class 0 holds 10 features, class 1 holds 3, class 2 none, class 3 more than fit; and the ids by class."""
    bank = OODBank(4, DIM, capacity=12)
    classes = [0] * 10 + [1] * 3 + [3] * 20
    order = torch.randperm(len(classes), generator=seeded()).tolist()
    for start in range(0, len(order), 7):
        chunk = order[start : start + 7]
        push_numbers(bank, chunk, [classes[i] for i in chunk])
    return bank, {c: held(bank, c) for c in range(4)}


def test_anchors_get_features_of_their_own_class_and_zeros_where_there_are_none() -> None:
    bank, ids = filled()
    asked = torch.randint(4, (500,), generator=seeded(1))
    sampled, found = bank.sample(asked, seeded(2))
    for c, feature, was_found in zip(asked.tolist(), sampled, found.tolist(), strict=True):
        assert was_found == (c != 2)
        assert int(feature[0]) in ids[c] if c != 2 else feature.tolist() == [0.0] * DIM


def chi_square(counts: Counter[int], among: list[int]) -> float:
    assert set(counts) <= set(among)
    expected = counts.total() / len(among)
    return sum((counts[number] - expected) ** 2 / expected for number in among)


@pytest.mark.parametrize("c", [0, 1, 3])
def test_features_of_a_class_are_drawn_uniformly(c: int) -> None:
    bank, ids = filled()
    sampled, _ = bank.sample(torch.full((12_000,), c), seeded(3))
    drawn = Counter(sampled[:, 0].int().tolist())
    assert chi_square(drawn, ids[c]) < 35  # 11 degrees of freedom at most: exceeded once in 4,000 seeds


def test_features_of_any_class_are_drawn_uniformly() -> None:
    bank, ids = filled()
    sampled, found = bank.sample_any(25_000, seeded(4))
    everything = [number for numbers in ids.values() for number in numbers]
    assert len(everything) == 25
    assert found.all()
    assert chi_square(Counter(sampled[:, 0].int().tolist()), everything) < 60  # 24 degrees of freedom


def test_the_contents_are_all_features_with_their_classes_and_ids() -> None:
    bank, ids = filled()
    contents = bank.contents()
    assert torch.equal(contents["features"], features_of(contents["ids"]))
    for c, expected in ids.items():
        assert sorted(contents["ids"][contents["classes"] == c].tolist()) == sorted(expected)


def test_the_same_generator_gives_the_same_sample() -> None:
    bank, _ = filled()
    asked = torch.tensor([0, 1, 3] * 20)
    assert torch.equal(bank.sample(asked, seeded(6))[0], bank.sample(asked, seeded(6))[0])
    assert not torch.equal(bank.sample(asked, seeded(6))[0], bank.sample(asked, seeded(7))[0])
    assert torch.equal(bank.sample_any(60, seeded(6))[0], bank.sample_any(60, seeded(6))[0])


@pytest.mark.parametrize("used_before", [False, True])
def test_a_bank_from_a_checkpoint_goes_on_as_the_one_saved(tmp_path: Path, used_before: bool) -> None:
    bank, _ = filled()
    unsaved, _ = filled()
    path = tmp_path / "bank.safetensors"
    save_checkpoint(path, bank.state_dict(), {})
    copy = OODBank(4, DIM, capacity=12)
    if used_before:
        push_numbers(copy, list(range(90)), [i % 3 for i in range(90)])
    load_state(copy, load_checkpoint(path)[0], path)
    asked = torch.tensor([0, 1, 2, 3] * 10)
    for round_number in range(8):
        for each in (bank, copy):
            assert torch.equal(
                each.sample(asked, seeded(round_number))[0], unsaved.sample(asked, seeded(round_number))[0]
            )
            assert torch.equal(
                each.sample_any(9, seeded(round_number))[0], unsaved.sample_any(9, seeded(round_number))[0]
            )
        numbers = list(range(100 * round_number, 100 * round_number + 5 + round_number))
        for each in (bank, copy, unsaved):
            push_numbers(each, numbers, [(number * 7) % 4 for number in numbers])
        for c in range(4):
            assert held(bank, c) == held(copy, c) == held(unsaved, c)


def test_a_checkpoint_holds_no_more_than_is_in_use() -> None:
    bank, _ = filled()
    state = bank.state_dict()
    assert len(state["features"]) == len(state["ids"]) == 25
    assert state["slots"].shape == (4, 12)


def test_a_full_bank_asks_the_device_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    bank = OODBank(3, DIM, capacity=10)
    classes = torch.arange(3).repeat(10)
    for _ in range(3):
        bank.push(torch.randn(30, DIM), classes)

    def asked(tensor: Tensor) -> int:
        raise AssertionError("a number was read from the device")

    monkeypatch.setattr(Tensor, "__int__", asked)
    for _ in range(20):
        bank.push(torch.randn(30, DIM), classes)
    assert bank.counts.tolist() == [10, 10, 10]


def test_pushes_of_mostly_invalid_rows_hardly_ever_ask_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing recyclable for long stretches, as with the paper's rule: two questions in sixteen pushes at the most."""
    bank, questions = OODBank(10, DIM, capacity=5000), 0
    original = Tensor.__int__

    def counted(tensor: Tensor) -> int:
        nonlocal questions
        questions += 1
        return original(tensor)

    monkeypatch.setattr(Tensor, "__int__", counted)
    draws = seeded()
    for _ in range(320):
        valid = torch.rand(64, generator=draws) < 0.02
        bank.push(torch.randn(64, DIM), torch.randint(10, (64,), generator=draws), valid=valid)
    assert 0 < questions <= 2 * 320 / 15


class Operations(TorchFunctionMode):
    """Counts what torch is asked to do."""

    count: int = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


def operations(action: Callable[[], Any]) -> int:
    counted = Operations()
    with counted:
        action()
    return counted.count


def test_pushing_and_sampling_take_no_loop_over_samples_or_classes() -> None:
    """Counted, not timed: at most 80 operations; a loop over the samples takes at least 320."""
    bank = OODBank(1000, 16, capacity=50)
    classes, features = torch.randint(1000, (320,), generator=seeded()), torch.randn(320, 16)
    for _ in range(3):
        assert 0 < operations(partial(bank.push, features, classes)) < 150
        assert 0 < operations(partial(bank.sample, classes, seeded())) < 150
