"""One view of a run, trained or fitted: all that its page shows, before anything is drawn or encoded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from osp.evaluate.predictions import Judged
from osp.report.album import Album, Picture
from osp.runs.run import Run


@dataclass(frozen=True)
class Shot:
    """One image with a caption."""

    where: Any
    """Where it is found: the file of a photo, or its place in a data set."""
    key: int
    """The class under which it is filtered."""
    caption: str
    framed: bool = False
    """Known to be of none of the classes, or called so."""


@dataclass(frozen=True)
class Gallery:
    """Images worth a look, for one reason."""

    title: str
    shots: list[Shot]
    note: str = ""
    color: int | None = None
    """The class it is about."""
    parts: list[tuple[str, list[Shot]]] = field(default_factory=list)
    """Rows with a title each, where one row is not enough."""


@dataclass(frozen=True)
class Histogram:
    """OOD scores of kinds of images (`ID`, `OOD`, `unlabeled`); `names` has other words for the kinds."""

    title: str
    scores: Mapping[str, np.ndarray]
    names: Mapping[str, str] = field(default_factory=dict)
    score: str = ""


@dataclass(frozen=True)
class Point:
    """One image on the map of features."""

    where: Any
    key: int
    """Its class, -1 for none of them."""
    words: str
    marked: bool
    """Whether it stays when only the mistakes, or the sorted photos, are shown."""
    small: bool = False


@dataclass(frozen=True)
class Map:
    """Where the features of images lie in the plane."""

    places: np.ndarray
    """N×2."""
    points: list[Point]
    unknown: str
    """What the points without a class are."""


@dataclass(frozen=True)
class Looked:
    """Images that the model is asked to point at."""

    images: list[Picture]
    captions: list[str]
    pixels: Callable[[Any], np.ndarray]
    """The same as uint8 N×C×H×W for a model; UserError where it cannot take them."""


class View(ABC):
    """What a page asks of a run."""

    template: ClassVar[str]
    look_rows: ClassVar[tuple[str, str]] = ("image", "Grad-CAM")
    """Names of the rows of pictures that show where it looks."""

    def __init__(self, run: Run) -> None:
        self.run = run

    @property
    @abstractmethod
    def album(self) -> Album: ...

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Of the classes, fit to be shown."""

    @property
    @abstractmethod
    def threshold(self) -> float | None:
        """The OOD score above which an image is called unknown; None where none is."""

    @property
    @abstractmethod
    def pool(self) -> Judged:
        """The unlabeled images, each once."""

    @property
    @abstractmethod
    def test(self) -> Judged:
        """The test images, those of no class among them."""

    @property
    @abstractmethod
    def title(self) -> str: ...

    @property
    def called(self) -> str:
        """The name of the run beside that of another."""
        return self.title

    @abstractmethod
    def sentences(self) -> list[str]:
        """The run in three sentences."""

    @abstractmethod
    def numbers(self) -> dict[str, str]:
        """What its figures are called and what they are, in a fixed order; empty where there is none."""

    @abstractmethod
    def histograms(self) -> list[Histogram]: ...

    @abstractmethod
    def map(self) -> Map | None: ...

    @abstractmethod
    def confusions(self) -> list[tuple[str, np.ndarray]]:
        """Confusion matrices with their titles; rows are classes."""

    @abstractmethod
    def galleries(self, other: View | None, name: str) -> list[Gallery]:
        """Images worth a look; `other` is the run that this one is compared with, and `name` its name."""

    @abstractmethod
    def looked(self, most: int) -> Looked:
        """The images that the rows of Grad-CAM show; UserError where there are none."""

    @abstractmethod
    def more(self, other: View | None, name: str) -> dict[str, Any]:
        """What only the template of this kind of run has."""


def percent(share: float) -> str:
    """A share as a whole percentage that is not broken over lines."""
    return f"{100 * share:.0f}\u00a0%"


def shown(value: float | None, unit: str) -> str:
    """`96.9 %`, `140,800`, or nothing.

    >>> shown(96.94, "%"), shown(140800.0, ""), shown(None, "")
    ('96.9 %', '140,800', '')
    """
    if value is None:
        return ""
    text = f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"
    return f"{text}{'' if unit in ('', '°') else ' '}{unit}"
