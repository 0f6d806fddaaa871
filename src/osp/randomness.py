"""Every random draw is a function of a key such as (seed, step, stream): nothing depends on what was drawn before.

This is what makes a resumed run equal to one that never stopped, and a run on many devices equal to one on a single
device: each process draws for the global batch and keeps its slice `[rank::world]`.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch


def key_to_seed(*key: int | str) -> int:
    """A 63-bit seed from a key, the same on every machine and in every process.

    >>> key_to_seed(0, 1) == key_to_seed(0, 1), key_to_seed(0, 1) == key_to_seed(1, 0)
    (True, False)
    """
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(*key: int | str) -> torch.Generator:
    """A CPU generator for this key. Parameters are drawn on the CPU so that every device sees the same ones."""
    return torch.Generator().manual_seed(key_to_seed(*key))


def permutation(n: int, *key: int | str) -> np.ndarray:
    """A permutation of `range(n)` that depends only on the key.

    Built on the raw Philox stream, whose values NumPy guarantees never to change, so that a split stays the same
    under later versions (the distributions on top of it carry no such promise).
    """
    raw = np.random.Philox(key_to_seed(*key)).random_raw(n)
    return np.argsort(raw, kind="stable").astype(np.int64)
