"""One run on disk. Nothing here needs torch; files are never followed through links."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from osp.errors import UserError
from osp.files import PARTIAL, append_text, check_writable, lines_of, make_folder, owned, write_text
from osp.runs.schema import DataKeys, Fields, Map, Result, metrics_line, read_checked

AGAIN = "Delete it and go on with --resume."

LEFTOVERS = (".lock", "checkpoints")
BEGUN = ("plan.yaml", "recipe.yaml", "split.npz", "data.json")
"""What a run leaves that ended before its first number and checkpoint, as by a mistake in a method of one's own: such a
folder is as good as empty."""


class RunFolder:
    """Paths and small files of one run. The plan is written first: a folder that has one is a run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe = path / "recipe.yaml"
        self.plan = path / "plan.yaml"
        self.split = path / "split.npz"
        self.data = path / "data.json"
        self.metrics = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self.last = self.checkpoints / "last.safetensors"
        self.previous = self.checkpoints / "previous.safetensors"
        self.best = self.checkpoints / "best.safetensors"
        self.model = path / "model.safetensors"
        self.predictions = path / "predictions.npz"
        self.map = path / "map.json"
        self.result = path / "result.json"
        self.picture = path / "result.png"
        self.failed_batch = path / "failed-batch.npz"

    def begun(self) -> bool:
        return self.plan.exists()

    def check_free(self) -> None:
        """Refuse a folder that is in use or cannot be written, before any work is done."""
        check_writable(self.path)
        if self.path.exists() and not all(_left_over(entry) for entry in self.path.iterdir()):
            raise UserError(
                f"The folder {self.path} is not empty. Continue that run with --resume, or choose another "
                "--out (in Python: resume=True, or another out=)."
            )

    @contextlib.contextmanager
    def owned(self) -> Iterator[None]:
        """Be the only process that writes here, from before the first file to after the last."""
        make_folder(self.path)
        with owned(self.path / ".lock", f"Another process is training in {self.path}."):
            make_folder(self.checkpoints)
            yield

    def append_metrics(self, line: Mapping[str, Any]) -> None:
        append_text(self.metrics, json.dumps(line, allow_nan=False) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """All whole lines; a last line cut off by a crash is left out."""
        if not self.metrics.exists():
            return []
        try:
            return [line for text in lines_of(self.metrics) if (line := metrics_line(text)) is not None]
        except (OSError, ValueError) as error:
            raise UserError(f"{self.metrics} is damaged: {getattr(error, 'strerror', None) or error}.") from None

    def rewind_metrics(self, step: int) -> None:
        """Drop what a crashed run logged after the checkpoint it is resumed from."""
        if self.metrics.exists():
            kept = [json.dumps(line) for line in self.read_metrics() if line["step"] <= step]
            write_text(self.metrics, "".join(line + "\n" for line in kept))

    def write_result(self, result: Mapping[str, Any]) -> None:
        write_text(self.result, json.dumps(result, indent=2, allow_nan=False) + "\n")

    def read_result(self) -> dict[str, Any] | None:
        """The result of a finished run, otherwise None."""
        return read_checked(self.result, Result, AGAIN) if self.result.exists() else None

    def read_map(self) -> dict[str, Any] | None:
        """The points of the t-SNE map that was drawn of this run; None where none was."""
        return read_checked(self.map, Map, "Delete it.") if self.map.exists() else None

    def forget_start(self) -> None:
        """Make a folder that is as good as empty empty."""
        for name in BEGUN:
            (self.path / name).unlink(missing_ok=True)

    def forget_previous(self) -> None:
        """A finished run needs no second checkpoint."""
        self.previous.unlink(missing_ok=True)

    def read_data(self) -> dict[str, str] | None:
        """Content keys of the images that the run began with; None where it has not noted them yet."""
        return read_checked(self.data, DataKeys, AGAIN) if self.data.exists() else None

    def read_json(self, path: Path) -> dict[str, Any]:
        """The fields of a small file."""
        return read_checked(path, Fields, AGAIN)


def _left_over(entry: Path) -> bool:
    """Whether a file or folder may stem from a start that never got to its plan."""
    if entry.name.endswith(PARTIAL) and entry.name.startswith("."):
        return True
    if entry.is_symlink() or entry.name not in (*LEFTOVERS, *BEGUN):
        return False
    return not entry.is_dir() or (entry.name in LEFTOVERS and not any(entry.iterdir()))
