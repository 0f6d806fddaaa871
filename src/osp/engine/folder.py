"""The run folder: `recipe.yaml`, `split.npz`, `metrics.jsonl`, `checkpoints/`, `result.json`."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import IO, Any

from osp.engine.checkpoint import write_bytes
from osp.errors import UserError
from osp.recipe import Recipe


class RunFolder:
    """Paths and small files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe = path / "recipe.yaml"
        self.split = path / "split.npz"
        self.data = path / "data.json"
        self.metrics = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self.last = self.checkpoints / "last.safetensors"
        self.best = self.checkpoints / "best.safetensors"
        self.result = path / "result.json"
        self.picture = path / "result.png"
        self._lock: IO[str] | None = None

    def check_free(self) -> None:
        """Refuse a folder that is in use or cannot be written, before any work is done; creates nothing."""
        if self.path.exists():
            if not self.path.is_dir():
                raise UserError(f"--out {self.path} is a file; name a folder.")
            if any(self.path.iterdir()):
                raise UserError(
                    f"The folder {self.path} is not empty. Continue that run with --resume, or choose another --out."
                )
        parent = next(p for p in [self.path, *self.path.absolute().parents] if p.exists())
        if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
            raise UserError(f"--out {self.path}: cannot write into {parent}. Choose another --out.")

    def create(self, recipe: Recipe) -> None:
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"--out {self.path}: cannot create the folder: {error.strerror}.") from error
        write_bytes(self.recipe, recipe.dump().encode())

    def lock(self) -> None:
        """Keep a second process out of the same run, as long as this one lives."""
        try:
            self._lock = open(self.checkpoints / ".lock", "w")  # noqa: SIM115 - held until unlock()
        except OSError as error:
            raise UserError(f"Cannot write into {self.checkpoints}: {error.strerror}.") from error
        with contextlib.suppress(ImportError):  # no such locks on Windows
            import fcntl

            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UserError(f"Another process is training in {self.path}.") from None

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None
            (self.checkpoints / ".lock").unlink(missing_ok=True)

    def append_metrics(self, line: dict[str, Any]) -> None:
        try:
            with open(self.metrics, "a", encoding="utf-8") as file:
                file.write(json.dumps(line, allow_nan=False) + "\n")
        except OSError as error:
            raise UserError(f"Cannot write {self.metrics}: {error.strerror}. Go on with --resume.") from error

    def read_metrics(self) -> list[dict[str, Any]]:
        """All whole lines; a last line cut off by a crash is left out."""
        lines = []
        if self.metrics.exists():
            for text in self.metrics.read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(json.JSONDecodeError):
                    lines.append(json.loads(text))
        return lines

    def rewind_metrics(self, step: int) -> None:
        """Drop what a crashed run logged after the checkpoint it is resumed from."""
        if self.metrics.exists():
            kept = [json.dumps(line) for line in self.read_metrics() if line["step"] <= step]
            write_bytes(self.metrics, "".join(line + "\n" for line in kept).encode())

    def check_data(self, fingerprints: dict[str, str]) -> None:
        """Note which images the split's row numbers refer to, or refuse if they are others now."""
        if not self.data.exists():
            write_bytes(self.data, (json.dumps(fingerprints, indent=2) + "\n").encode())
        elif json.loads(self.data.read_text(encoding="utf-8")) != fingerprints:
            raise UserError(
                f"The images have changed since the run in {self.path} began: some came, went or changed places. "
                "Put them back, or start a new run with another --out."
            )

    def write_result(self, result: dict[str, Any]) -> None:
        write_bytes(self.result, (json.dumps(result, indent=2, allow_nan=False) + "\n").encode())

    def read_result(self) -> dict[str, Any] | None:
        """The result of a finished run, otherwise None."""
        if not self.result.exists():
            return None
        try:
            result = json.loads(self.result.read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise UserError(f"{self.result} is damaged: {error}. Delete it and go on with --resume.") from None
        assert isinstance(result, dict)
        return result
