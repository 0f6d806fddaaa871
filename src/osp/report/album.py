"""The images that a page shows, by where they are found: rows of a data set, or files of photos. They may be gone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from osp.data.decode_pool import decode_all
from osp.errors import UserError, printable
from osp.runs.run import Run

if TYPE_CHECKING:
    from osp.engine.data import Data

Picture = np.ndarray
"""uint8 H×W×3."""
SIDE = 144
"""Of a photo, in pixels."""
NO_PREDICTIONS = "The run was kept without its predictions."


class Album(ABC):
    """The images of a run; they may be gone."""

    problem = ""
    """Why there are none, or how many are missing."""

    @abstractmethod
    def read(self, where: Iterable[Any]) -> list[Picture | None]:
        """The images at these places, None for those that are gone."""

    def name(self, where: Any) -> str:
        """What the file of an image is called; empty where it has none."""
        return ""


class Place(NamedTuple):
    """Where an image of a data set is found."""

    test: bool
    """Whether the number counts through the test images or through the training images."""
    number: int


class DataAlbum(Album):
    """The images of a run's data set."""

    def __init__(self, run: Run) -> None:
        self.data: Data | None = None
        self.problem = NO_PREDICTIONS
        if run.predictions is None:
            return
        try:
            from osp.engine.data import open_again

            self.data, self.problem = open_again(run), ""
        except UserError as error:
            self.problem = f"The images are not available: {printable(error)}"
        except ImportError as error:
            self.problem = f"Images cannot be shown here: {printable(error)}."

    def read(self, where: Iterable[Place]) -> list[Picture | None]:
        chosen, data = list(where), self.data
        if data is None:
            return [None] * len(chosen)
        found: dict[Place, Picture] = {}
        for test, source in ((True, data.test), (False, data.train)):
            numbers = sorted({place.number for place in chosen if place.test is test})
            for number, image in zip(numbers, source.take(numbers).numpy(), strict=True):
                found[Place(test, number)] = plain(image)
        return [found[place] for place in chosen]

    def name(self, where: Place) -> str:
        files = (self.data.source.files or ()) if self.data is not None else ()
        return printable(files[where.number]) if not where.test and where.number < len(files) else ""


class Photos(Album):
    """Photos by their files, each read once; counts those that are gone."""

    def __init__(self) -> None:
        self._found: dict[str, Picture | None] = {}

    def read(self, where: Iterable[str]) -> list[Picture | None]:
        """The middle squares, many at once spread over processes."""
        chosen = list(where)
        new = [file for file in dict.fromkeys(chosen) if file not in self._found]
        done = 0
        for images, skipped in decode_all(new, SIDE):
            missing, pixels = {position for position, _ in skipped}, iter(images)
            for position in range(done, done + len(images) + len(skipped)):
                image = None if position in missing else np.ascontiguousarray(next(pixels).transpose(1, 2, 0))
                self._found[new[position]] = image
            done += len(images) + len(skipped)
        gone = sum(picture is None for picture in self._found.values())
        if gone:
            self.problem = f"{gone:,} of {len(self._found):,} photos are no longer where they were, and are not shown."
        return [self._found[file] for file in chosen]

    def name(self, where: str) -> str:
        return printable(where)


def plain(image: np.ndarray) -> Picture:
    """C×H×W with one or three channels as H×W×3."""
    return np.ascontiguousarray(np.broadcast_to(image, (3, *image.shape[1:])).transpose(1, 2, 0))
