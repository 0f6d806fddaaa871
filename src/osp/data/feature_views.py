"""Views from stored features of a frozen backbone: computed once, drawn from in every step."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from osp.data.view_source import Draw, to_device
from osp.errors import UserError, suggest


class FeatureViews:
    """The views of images whose features are stored for some views of each (`ViewSource`).

    `stored` has one N×D array of half or single precision, in memory or memory-mapped, for each of `plain`, `flip` (all
    mirrored), `weak`, `weak2`, `strong`, `strong2`, or as many of them as were made. A step's `weak` is, image by
    image, one of the stored weak views, drawn anew each step; `weak2` is another one, never the same. `flip` is the
    plain or the mirrored image, as it is for pixels.

    >>> stored = {"plain": np.zeros((5, 3), np.float16), "weak": np.ones((5, 3), np.float16)}
    >>> source = FeatureViews(stored, torch.device("cpu"))
    >>> source.views(np.array([0, 4]), ["weak"], Draw(seed=0, step=0, stream="labeled", batch=2))["weak"]
    tensor([[1., 1., 1.],
            [1., 1., 1.]])
    """

    def __init__(self, stored: Mapping[str, np.ndarray], device: torch.device) -> None:
        if "plain" not in stored:
            listed = ", ".join(sorted(stored)) or "none"
            raise UserError(f"The stored features lack the view 'plain'; there are: {listed}.")
        first = stored["plain"]
        for name, array in stored.items():
            if array.ndim != 2 or array.dtype not in (np.float16, np.float32) or array.shape != first.shape:
                raise UserError(
                    f"The stored features of the view {name!r} are {array.dtype} {array.shape}; wanted are half or "
                    f"single precision, one row per image, as many as for 'plain' ({first.shape})."
                )
        # A memory map's own indexing makes a memory map of each result; a plain view of the same memory does not.
        self._stored = {name: array.view(np.ndarray) for name, array in stored.items()}
        self.shape: tuple[int, ...] = (first.shape[1],)
        self.device = device
        self.shards: np.ndarray | None = None  # one array is read at any place alike

    def check(self, view: str) -> None:
        self._choices(view)

    def views(self, index: np.ndarray, names: Sequence[str], draw: Draw) -> dict[str, Tensor]:
        made = {}
        for name in names:
            choices, number = self._choices(name)
            # One order of the stored views per image, the same for `weak` and `weak2`: they take its first and second.
            base, _ = _parsed(name)
            order = torch.rand((draw.batch, len(choices)), generator=draw.generator(base)).argsort(dim=1)
            made[name] = self._take(choices, order[draw.mine, number].numpy(), index)
        return made

    def plain(self, index: np.ndarray) -> Tensor:
        return self._take(["plain"], np.zeros(len(index), np.int64), index)

    def _choices(self, view: str) -> tuple[list[str], int]:
        """The stored views that a view is drawn from, and which of the drawn order it takes."""
        base, number = _parsed(view)
        stored = sorted((name for name in self._stored if _parsed(name)[0] == base), key=lambda name: _parsed(name)[1])
        if not stored:
            raise UserError(f"Features of the view {view!r} are not stored.{suggest(base, self._stored)}")
        choices = ["plain", *stored] if base == "flip" else stored
        if number >= len(choices):
            raise UserError(
                f"The view {view!r} asks for {number + 1} different draws, but features are stored for "
                f"{len(choices)}: {', '.join(choices)}."
            )
        return choices, number

    def _take(self, choices: Sequence[str], chosen: np.ndarray, index: np.ndarray) -> Tensor:
        """Row i is that of image index[i] in the stored view choices[chosen[i]], in single precision."""
        out = np.empty((len(index), *self.shape), np.float32)
        for number, name in enumerate(choices):
            rows = np.flatnonzero(chosen == number)
            out[rows] = self._stored[name][index[rows]]
        return to_device(torch.from_numpy(out), self.device)


def _parsed(view: str) -> tuple[str, int]:
    """A view's name without its number, and which draw of it is meant: `weak` is the first, `weak2` the second.

    >>> _parsed("weak"), _parsed("strong2")
    (('weak', 0), ('strong', 1))
    """
    found = re.fullmatch("(.*?)([2-9]|[1-9][0-9]{1,8})?", view, re.DOTALL)
    assert found is not None
    return found[1], int(found[2] or 1) - 1
