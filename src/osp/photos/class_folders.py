"""The folder of each class below a sorted pile: none outside, none shared, none of our own files."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from osp.photos.journal import JOURNAL, SIDECARS, TABLE
from osp.photos.reaching import can_be_named, folded

UNKNOWN, UNSURE = "_unknown", "_unsure"
OLD_UNKNOWN = "_foreign"
"""What `UNKNOWN` was called in version 0.1."""
_DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in "123456789")}
"""Names that Windows takes for devices, whatever ending they have."""
_LONGEST = 200


@dataclass(frozen=True)
class ClassFolders:
    """The folder of each class, with those for unsure and unknown photos."""

    names: dict[str, str]

    def place(self, label: str, inside: bool, sure: bool, group: str = "") -> str:
        """Where a photo belongs, with / between the parts; unknown ones by group, where they have one."""
        if not inside:
            return f"{UNKNOWN}/{group}" if group else UNKNOWN
        return self.names[label] if sure else f"{UNSURE}/{self.names[label]}"


def class_folders(labels: Iterable[str]) -> ClassFolders:
    """Names that every disk can have and keeps apart, for classes of any name.

    Signs that some system does not take become `_`. A name that is taken, be it by our own files or by another class
    up to capitals and the way accents are written, gets a `_` in front.

    >>> class_folders(["cat", "Cat", "sorted.csv", "..", "a/b"]).names
    {'..': '_', 'Cat': 'Cat', 'a/b': 'a_b', 'cat': '_cat', 'sorted.csv': '_sorted.csv'}
    """
    taken = {folded(name) for name in (JOURNAL, TABLE, SIDECARS, UNKNOWN, OLD_UNKNOWN, UNSURE)}
    names: dict[str, str] = {}
    for label in sorted(set(labels)):
        signs = ("_" if sign in '/\\:*?"<>|' or sign < " " or not can_be_named(sign) else sign for sign in label)
        name = "".join(signs).strip(". ") or "_"
        while len(os.fsencode(name)) > _LONGEST:
            name = name[:-1]
        while folded(name) in taken or folded(name).partition(".")[0].strip() in _DEVICES:
            name = f"_{name}"
        names[label] = name
        taken.add(folded(name))
    return ClassFolders(names)
