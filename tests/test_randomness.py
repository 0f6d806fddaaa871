"""Every draw is a function of its key, and stays what it was."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from osp.randomness import generator, key_to_seed, permutation

keys = st.lists(st.integers() | st.text(max_size=5), max_size=4)


@given(keys, keys)
def test_different_keys_give_different_seeds_and_equal_ones_the_same(
    one: list[int | str], other: list[int | str]
) -> None:
    assert (key_to_seed(*one) == key_to_seed(*other)) == (one == other)
    assert 0 <= key_to_seed(*one) < 2**63


def test_a_number_and_its_text_are_different_keys() -> None:
    assert key_to_seed(1) != key_to_seed("1")
    assert key_to_seed(1, 2) != key_to_seed(12)


def test_a_seed_is_the_upper_bits_of_a_hash_on_every_machine() -> None:
    digest = hashlib.blake2b(b"(0, 7, 'labeled')", digest_size=8).digest()
    assert key_to_seed(0, 7, "labeled") == int.from_bytes(digest, "little") // 2


def test_a_generator_does_not_touch_or_need_the_global_one() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = torch.rand(4, generator=generator(3, "x"))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(9)
    assert torch.equal(torch.rand(4, generator=generator(3, "x")), first)


@given(st.integers(0, 300), st.integers(0, 5))
def test_a_permutation_holds_every_number_once(n: int, seed: int) -> None:
    drawn = permutation(n, seed, "split")
    assert drawn.dtype == np.int64
    assert sorted(drawn.tolist()) == list(range(n))
    assert np.array_equal(drawn, permutation(n, seed, "split"))


def test_each_place_of_a_permutation_is_equally_likely() -> None:
    first = np.bincount([permutation(5, seed)[0] for seed in range(2000)], minlength=5)
    assert abs(first - 400).max() < 5 * np.sqrt(2000 * 0.2 * 0.8)  # five standard deviations
