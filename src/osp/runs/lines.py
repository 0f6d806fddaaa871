"""Finished runs as lines of a text file: all that a run says in words and numbers, without weights and predictions.

    FILE.jsonl             one JSON object per run (`Line`); pandas.read_json(FILE, lines=True) reads it too
    map-NAME.json          the t-SNE map of the run NAME, where one was drawn

A file is only ever replaced as a whole, by one process at a time. The last line of a run counts: one that was tested on
more sets is written again, and a union of two branches may hold both. What is no line (the end of a copy that was
interrupted, the marks of a conflict) is passed over and told, and an end that was cut off goes with the next addition.
Nothing in a line names code that is run, and no file is read through a link.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from osp.errors import UserError, short
from osp.files import LARGEST_SMALL as LARGEST
from osp.files import locked, make_folder, open_plain, write_bytes
from osp.runs.folder import RunFolder
from osp.runs.schema import Origin, Result, Word, check, is_metrics

FORMAT = 1
ENDING = ".jsonl"
LOCK = ".lines.lock"
MOST_BYTES = 1 << 30
"""Of a file; a run has some thousand bytes."""
DEEPEST = 20
"""Brackets within brackets; ours have four."""
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


class Line(Origin):
    """A run as one line has it."""

    format: Literal[1]
    name: str = Field(max_length=255, pattern=r"^[^./\\\x00-\x1f][^/\\\x00-\x1f]*$")
    """Under which a store has it: a name, never a path."""
    identity: Word
    versions: dict[str, Word]
    recipe: dict[str, Any] = Field(default_factory=dict)
    plan: dict[str, Any]
    """Without its recipe and versions, which stand beside it."""
    result: Result
    metrics: list[dict[str, Any]] = Field(default_factory=list)
    """Its evaluations."""


@dataclass(frozen=True)
class Lines:
    """What a file holds."""

    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By name: the fields of `Line`, as they were read."""
    problems: tuple[str, ...] = ()
    """Lines that are none."""
    torn: str = ""
    """What is wrong with an end that was cut off."""


class LineRun(RunFolder):
    """A run of which only a line is kept: read as a folder is, and nothing but its map lies on the disk."""

    def __init__(self, root: Path, line: Mapping[str, Any]) -> None:
        super().__init__(root / str(line["name"]))
        self.line = line
        self.map = root / map_name(str(line["name"]))

    def begun(self) -> bool:
        return True

    def read_result(self) -> dict[str, Any]:
        return dict(self.line["result"])

    def read_data(self) -> dict[str, str]:
        return dict(self.line.get("data", {}))

    def read_metrics(self) -> list[dict[str, Any]]:
        return [line for line in self.line.get("metrics", ()) if is_metrics(line)]


def map_name(run: str) -> str:
    return f"map-{run}.json"


def line_files(root: Path) -> list[Path]:
    """Files of a folder that may hold lines."""
    return sorted(path for path in root.glob(f"*{ENDING}") if not path.name.startswith("."))


def holds_lines(root: Path) -> bool:
    """Whether a folder has a file that begins with a run, or did before its end was cut off."""
    for path in line_files(root):
        try:
            with open_plain(path) as file:
                begun = file.readline(100)
        except OSError:
            continue
        if begun.startswith(b'{"format":'):
            return True
    return False


def read_lines(path: Path) -> Lines:
    """The runs of a file; UserError where it cannot be read at all."""
    runs: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    torn = ""
    for number, (content, line, wrong) in enumerate(_each(path), start=1):
        if _cut_off(content, wrong):
            torn = f"{path}, line {number} was cut off ({wrong}); it is passed over"
        elif wrong:
            problems.append(f"{path}, line {number} is passed over: {wrong}")
        elif line is not None:
            runs.pop(line["name"], None)  # the last one counts, and stands where it is
            runs[line["name"]] = line
    return Lines(runs, tuple(problems), torn)


def _each(path: Path) -> Iterator[tuple[bytes, dict[str, Any] | None, str]]:
    """The lines of a file, each with its fields, or with what is wrong with it."""
    try:
        with open_plain(path) as file:
            if os.fstat(file.fileno()).st_size > MOST_BYTES:
                raise ValueError(f"it is longer than {MOST_BYTES >> 20} MB")
            for content in iter(lambda: file.readline(LARGEST + 1), b""):
                try:
                    found = content, parsed(content), ""
                except ValueError as error:
                    yield content, None, str(error)
                else:
                    yield found
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from None


def _cut_off(content: bytes, wrong: str) -> bool:
    return bool(wrong) and not content.endswith(b"\n") and len(content) <= LARGEST


def parsed(content: bytes) -> dict[str, Any] | None:
    """The fields of a line; None for an empty one, ValueError where it is none."""
    if not content.strip():
        return None
    if len(content) > LARGEST:
        raise ValueError(f"it is longer than {LARGEST >> 20} MB")
    if _depth(content) > DEEPEST and _depth(_STRING.sub(b"", content)) > DEEPEST:
        raise ValueError("it is nested too deeply")
    try:
        fields = json.loads(content)
    except UnicodeDecodeError:
        raise ValueError("it is not text") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not valid JSON: {error}") from None
    if not isinstance(fields, dict):
        raise ValueError("it holds no fields")
    check(fields, Line)
    return fields


def _depth(content: bytes) -> int:
    steps = (1 if bracket in b"[{" else -1 for bracket in content.translate(None, _NOT_BRACKETS))
    return max(accumulate(steps), default=0)


def add_lines(root: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Put runs into the files of a folder, each into that of its data set; one of the same name gives way.

    Everything else in a file stays as it is, but for an end that was cut off.
    """
    make_folder(root)
    by_file: dict[Path, dict[str, bytes]] = {}
    for line in lines:
        file = re.sub(r"[^\w-]", "_", str(line["plan"].get("data")))[:100] + ENDING
        try:
            content = json.dumps(line, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n"
            parsed(content)  # what would not be read again is not written
        except ValueError as error:
            raise UserError(f"The run {short(line.get('name'))} cannot be written as a line: {error}.") from None
        by_file.setdefault(root / file, {})[str(line["name"])] = content
    with locked(root / LOCK):
        for path, new in by_file.items():
            write_bytes(path, _without(path, new) + b"".join(new.values()))


def _without(path: Path, names: Mapping[str, object]) -> bytes:
    """What a file holds now, up to an end that was cut off and without the runs of these names."""
    if not path.exists() and not path.is_symlink():
        return b""
    kept = [
        content
        for content, line, wrong in _each(path)
        if not _cut_off(content, wrong) and (line is None or line["name"] not in names)
    ]
    content = b"".join(kept)
    return content if content.endswith(b"\n") or not content else content + b"\n"
