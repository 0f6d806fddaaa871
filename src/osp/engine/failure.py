"""A loss that is no longer a number: at which step, in which term, and of which images."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from osp.errors import UserError
from osp.files import write_arrays
from osp.methods.base import Batch, Step
from osp.runs.folder import RunFolder


class FirstFailure:
    """The first step whose loss was not finite, noted on the device and read only when a line of the log is due."""

    def __init__(self) -> None:
        self._step: Tensor | None = None

    def note(self, total: Tensor, step: Step) -> None:
        bad = torch.where(total.detach().isfinite(), -1, step.index)
        self._step = bad if self._step is None else torch.where(self._step < 0, bad, self._step)

    def step(self) -> int | None:
        """Its number, counted from 0."""
        found = -1 if self._step is None else int(self._step)
        return None if found < 0 else found


def keep_batch(folder: RunFolder, batch: Batch, step: int, terms: Sequence[str]) -> str:
    """Write the batch of a failed step beside the run, and where it is; nothing where even that fails."""
    arrays = {"step": np.array(step), "terms": np.array(list(terms))}
    for name, sample in batch.items():
        arrays[f"{name}/rows"] = sample.rows.cpu().numpy()
        if sample.labels is not None:
            arrays[f"{name}/labels"] = sample.labels.cpu().numpy()
        for view, images in sample.views.items():
            arrays[f"{name}/{view}"] = images.float().cpu().numpy()
    with contextlib.suppress(UserError):
        write_arrays(folder.failed_batch, arrays)
        return f" Its batch is kept in {folder.failed_batch.name}."
    return ""
