"""A pool for the hooks of a method, without an engine: images by part, and a memory of what was asked of it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from osp.methods import Method
from osp.nets import as_tested


class FakePool:
    """`osp.methods.Pool` over these images; a pass goes through them in `chunks`.

    With the method given, it is in eval mode during a pass unless that is asked to be otherwise, as in the engine.
    """

    def __init__(
        self,
        parts: Mapping[str, Tensor],
        labels: Mapping[str, Tensor] | None = None,
        method: Method | None = None,
        chunks: int = 1,
    ) -> None:
        self.parts, self._labels, self.method, self.chunks = dict(parts), dict(labels or {}), method, chunks
        self.asked: list[dict[str, Any]] = []
        """Arguments of every pass."""
        self.restricted: dict[str, Tensor | None] = {}
        self.restarted: list[str] = []
        self.warnings: list[str] = []

    @property
    def images(self) -> Tensor:
        return self.parts["unlabeled"]

    @property
    def passes(self) -> list[tuple[str, bool]]:
        """Of every pass: over which part, and whether with averaged weights."""
        return [(asked["part"], asked["ema"]) for asked in self.asked]

    def map(
        self,
        function: Any,
        part: str = "unlabeled",
        rows: Tensor | None = None,
        ema: bool = False,
        view: str = "plain",
        train: bool = False,
    ) -> tuple[Tensor, ...]:
        self.asked.append({"part": part, "rows": rows, "ema": ema, "view": view, "train": train})
        chosen = self.parts[part] if rows is None else self.parts[part][rows]
        tested = nullcontext() if self.method is None or train else as_tested(self.method)
        with torch.no_grad(), tested:
            found = [function(chunk) for chunk in torch.tensor_split(chosen, self.chunks)]
        columns = zip(*(each if isinstance(each, tuple) else (each,) for each in found), strict=True)
        return tuple(torch.cat(column) for column in columns)

    def each(self, function: Any, take: Any, part: str = "unlabeled", rows: Tensor | None = None) -> None:
        rows = torch.arange(len(self.parts[part])) if rows is None else rows
        for chunk in torch.tensor_split(rows, self.chunks):
            take(chunk, *self.map(function, part, chunk))

    def labels(self, part: str) -> Tensor:
        return self._labels[part]

    def restrict(self, stream: str, rows: Tensor | None) -> None:
        self.restricted[stream] = rows

    def restart_average(self, prefix: str = "") -> None:
        self.restarted.append(prefix)

    def warn(self, message: str) -> None:
        self.warnings.append(message)
