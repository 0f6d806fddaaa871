"""What a data set is to the rest of the package: a `Source`, declared in one file of `osp/data/sources/`.

The file's name is the set's name, and the file declares one `SOURCE`. The only thing a source must have is `load`:

    def load(request: Request) -> tuple[ImageSet, ImageSet | None]:
        images = np.load(request.root / "train.npy")
        ...

    SOURCE = Source(load=load)

A set from outside the package is such a file (`--data ./farm.py`), or an entry point of the group `osp.data`: its name
is the set's, its value the module or the `Source` itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from osp.data.images import ImageSet
from osp.errors import UserError, suggest
from osp.plugins import Plugins, is_file

VARIANT = "VARIANT.txt"
"""In the folder of a published set: how it differs from what was published."""

Progress = Callable[[int, int, str], None]  # called as progress(done, total, text) during anything that takes long


@dataclass(frozen=True)
class Request:
    """What `osp.data.load` was asked for."""

    name: str
    root: Path
    size: int | None = None
    seed: int = 0
    progress: Progress | None = None
    fetch: bool = True
    """Whether a set that is not there is fetched, or refused."""


@dataclass(frozen=True)
class Remote:
    """A published file."""

    url: str
    md5: str
    folder: str = ""  # where it belongs below the data folder
    unpacks: str = ""  # the top folder of an archive

    @property
    def file(self) -> str:
        return self.url.rsplit("/", 1)[1]


@dataclass(frozen=True)
class SourceInfo:
    """What `osp datasets` shows of one set."""

    name: str
    found: bool | None  # None: not looked for
    where: str  # the place where it was found, or where it was looked for
    train: int | None = None
    test: int | None = None
    shape: tuple[int, int, int] | None = None
    variant: str | None = None
    how: str = ""  # what to do to have it
    problem: str | None = None  # why it cannot be used although something is there


@dataclass(frozen=True)
class Description:
    """What can be said of the images of one set before any of them is decoded: classes and counts."""

    name: str
    class_names: tuple[str, ...]
    train: tuple[int, ...]  # training images per class
    test: tuple[int, ...] | None  # test images per class; None where the set has no test images
    shape: tuple[int, int, int]
    train_unknown: int = 0  # training images without a class
    test_unknown: int = 0
    notes: tuple[str, ...] = ()  # what was left out of these counts; `load` warns of the same

    @classmethod
    def of(
        cls, name: str, class_names: tuple[str, ...], labels: np.ndarray, test_labels: np.ndarray | None, **facts: Any
    ) -> Description:
        """Images with these labels, -1 where the class is unknown."""
        train, test = per_class(labels, len(class_names)), None
        if test_labels is not None:
            test = per_class(test_labels, len(class_names))
            facts["test_unknown"] = len(test_labels) - sum(test)
        return cls(name, class_names, train, test, train_unknown=len(labels) - sum(train), **facts)

    @property
    def smallest_class(self) -> int | None:
        """Training images of the smallest class; None where there are no classes."""
        return min(self.train, default=None)

    def smallest_of(self, id_classes: tuple[int | str, ...] | None) -> int | None:
        """Training images of the smallest of these classes (numbers or names; None = all).

        >>> Description("toy", ("cat", "dog", "eel"), (9, 4, 2), None, (3, 32, 32)).smallest_of(("cat", 1))
        4
        """
        if id_classes is None or not self.train:
            return self.smallest_class
        from osp.data.split_spec import class_numbers

        return min(
            (self.train[number] for number in class_numbers(id_classes, self.class_names, self.name)), default=None
        )


@dataclass(frozen=True)
class SplitDefaults:
    """How a set is split where the user does not say otherwise (`SplitSpec`)."""

    id_classes: tuple[int | str, ...] | None = None
    """Class numbers or names, in the order of the new labels; None = all classes."""
    labels_per_class: int = 10
    unlabeled: int | None = None  # total of unlabeled images, ID and OOD; None = as many as fit
    ood_ratio: float | None = None
    """Share of OOD in the unlabeled images; None = what results from `ood_count`, or from taking all there are."""
    ood_count: int | None = None
    """Number of OOD images, in place of a ratio; None = all (where there is no ratio either)."""
    val_per_class: int = 5


@dataclass(frozen=True, kw_only=True)
class Source:
    """A data set: how it is read, where it comes from, how it is split."""

    load: Callable[[Request], tuple[ImageSet, ImageSet | None]]
    """Read the set, fetching it first where it is missing and can be had."""
    describe: Callable[[Request], Description] | None = None
    """Classes and counts from listings or headers, nothing decoded; left out, the set is loaded and counted."""
    look: Callable[[Request], SourceInfo] | None = None
    """Say in a moment what is there; left out, nothing is said but that the set has a name."""
    remotes: tuple[Remote, ...] = ()
    grey: bool = False  # small grey images, for which the small convolutional network is the default
    own_folder: bool = False  # the user's own images: the folder must be named, there is no usual place
    unsorted: bool = False  # it is unknown which of the images are OOD
    class_sizes: tuple[int, ...] = ()  # training images of each class as published: known without the files
    within: SplitDefaults | None = None
    """The paper's split where the other classes (or images without a class) are OOD; None where it has none."""
    across: SplitDefaults | None = None
    """The paper's split where the OOD images come from another set; None = labels and validation as in `within`."""


def _declared(found: Any) -> Source:
    source = getattr(found, "SOURCE", found)
    if not isinstance(source, Source):
        raise TypeError("its module declares no SOURCE = osp.data.Source(...)")
    return source


_sources = Plugins("osp.data.sources", "osp.data", "data set", _declared)


def available() -> list[str]:
    """Names that `load` knows, those of installed packages included.

    >>> available()[:3]
    ['cifar10', 'cifar100', 'digits']
    """
    return _sources.names()


def known(name: str) -> bool:
    """Whether there is such a set, or the name is a file of the user's own."""
    return is_file(name) or name in available()


def content(name: str) -> str | None:
    """Hash of the code of a set from outside the package (`Plugins.content`)."""
    return _sources.content(name)


def get(name: str) -> Source:
    """The source of this name."""
    found = _sources.get(name)
    if found is None:
        raise UserError(f"There is no data set {name!r}.{suggest(str(name), available())}")
    return found


def always(where: str, train: int | None, test: int | None, shape: tuple[int, int, int], how: str) -> Any:
    """A `look` at a set that is always there."""
    return lambda request: SourceInfo(request.name, True, where, train, test, shape, how=how)


def per_class(labels: np.ndarray, classes: int) -> tuple[int, ...]:
    """How many images each class has; -1 (unknown) is not counted."""
    return tuple(np.bincount(labels[labels >= 0], minlength=classes).tolist())
