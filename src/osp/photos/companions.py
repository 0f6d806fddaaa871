"""Files that belong to a photo and go where it goes: edits, the film of a live photo, the raw file."""

from __future__ import annotations

import os
from collections import defaultdict

_RAW = "3fr arw cr2 cr3 crw dng erf kdc mef mos mrw nef nrw orf pef raf raw rw2 rwl sr2 srf srw x3f"
_BESIDE = {".xmp", ".aae", ".mov", *(f".{kind}" for kind in _RAW.split())}


class Companions:
    """The companions of photos, each given once: of two photos `x.jpg` and `x.png` the first gets `x.xmp`."""

    def __init__(self) -> None:
        self._left: dict[str, dict[str, list[str]]] = {}

    def of(self, photo: str) -> list[str]:
        """Names in the photo's folder: `x.xmp`, `x.mov` and the like of `x.jpg`, and `x.jpg.xmp`, `x.cr2.xmp`."""
        folder, name = os.path.split(photo)
        if folder not in self._left:
            self._left[folder] = _by_stem(folder)
        stem = os.path.splitext(name)[0]
        beside = self._left[folder].pop(stem, [])
        own = [sidecar for each in (name, *beside) for sidecar in self._left[folder].pop(each, [])]
        return [*beside, *own]


def renamed(companion: str, photo: str, new: str) -> str:
    """The name of a companion whose photo gets another name.

    >>> renamed("x.mov", "x.jpg", "x (2).jpg"), renamed("x.jpg.xmp", "x.jpg", "x (2).jpg")
    ('x (2).mov', 'x (2).jpg.xmp')
    """
    return os.path.splitext(new)[0] + companion[len(os.path.splitext(photo)[0]) :]


def _by_stem(folder: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for name in sorted(os.listdir(folder)):
        stem, kind = os.path.splitext(name)
        if kind.lower() in _BESIDE and not name.startswith("."):
            found[stem].append(name)
    return dict(found)
