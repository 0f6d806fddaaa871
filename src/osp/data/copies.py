"""Files with the same bytes: found by size first, so that only files of one size are opened."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

import numpy as np

from osp.data.imageset import ImageSet
from osp.data.listing import File, stat_files

HEAD = 4096
"""Bytes that tell most files of one size apart; those that agree in them are read whole."""
SHOWN = 5

T = TypeVar("T")


def same_content(files: Sequence[File]) -> list[list[int]]:
    """Positions of files with the same bytes, a list per content that occurs more than once, in order.

    Empty files and files that cannot be read are nobody's copies.
    """
    groups = []
    for members in _by(range(len(files)), lambda i: files[i].size if files[i].size > 0 else None):
        path_of = {files[i].identity: files[i].path for i in members}  # names of one file are read once
        key_of: dict[Hashable, Hashable] = {identity: identity for identity in path_of}
        if len(path_of) > 1:
            heads = {identity: _digest(path, HEAD) for identity, path in path_of.items()}
            for alike in _by(list(path_of), heads.__getitem__):
                for identity in alike:
                    key_of[identity] = _digest(path_of[identity]) or identity
        groups += _by(members, lambda i, key_of=key_of: key_of[files[i].identity])  # type: ignore[misc]
    return sorted(groups)


def _by(items: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    """Items with the same key, where there are two or more; None is no key."""
    found: dict[Hashable, list[T]] = defaultdict(list)
    for item in items:
        found[key(item)].append(item)
    return [members for value, members in found.items() if value is not None and len(members) > 1]


def _digest(path: str, length: int | None = None) -> bytes | None:
    try:
        with open(path, "rb") as file:
            if length is not None:
                return hashlib.blake2b(file.read(length), digest_size=16).digest()
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).digest()
    except OSError:
        return None


def choose(files: Sequence[File], labels: Sequence[int], is_test: Sequence[bool]) -> tuple[dict[int, int], list[int]]:
    """Which files to leave out so that each content is there once: {copy: the one kept}, and those of unclear class.

    Of several copies a test image is kept before a training image (else the test would be of images learned), one with
    a class before one without, then the first. Where copies lie in different classes nobody knows which is right: none
    is kept.
    """
    kept_for: dict[int, int] = {}
    unclear: list[int] = []
    for group in same_content(files):
        if len({labels[i] for i in group} - {-1}) > 1:
            unclear += group
            continue
        best = min(group, key=lambda i: (not is_test[i], labels[i] < 0, i))
        kept_for |= {i: best for i in group if i != best}
    return kept_for, sorted(unclear)


def rows_seen_in(images: ImageSet, others: Sequence[ImageSet | None]) -> np.ndarray:
    """Rows of `images` whose files have the same bytes as a file of one of the others; none for sets without files."""
    known = [path for other in others if other is not None and other.files for path in other.files]
    if not images.files or not known:
        return np.empty(0, np.int64)
    files = stat_files([*images.files, *known])
    count = len(images.files)
    groups = (group for group in same_content(files) if group[-1] >= count)
    return np.array(sorted(i for group in groups for i in group if i < count), dtype=np.int64)


def first_few(names: Sequence[str]) -> str:
    """Up to five of these names, and how many more there are.

    >>> first_few(["a", "b"]), first_few("abcdefg")
    ('a; b', 'a; b; c; d; e; and 2 more')
    """
    more = f"; and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return "; ".join(names[:SHOWN]) + more
