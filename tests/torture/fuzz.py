"""Real files, damaged in many ways, read as the command reads them: a result or a clear error, never anything else.

Each case is a mutation of a good file (or of several) and runs in a fork with limits (`torture.trial`). A defect is a
traceback, a hang, more than 2 GB, a crash, or a file left where none was.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torture.trial import Outcome, read_one, trial


@dataclass(frozen=True)
class Subject:
    """A kind of input: how a good one is made, which of its files are damaged, how it is read."""

    name: str
    make: Callable[[Path], None]
    """Put a good input into an empty folder."""
    files: tuple[str, ...]
    """Patterns of the files that are damaged."""
    read: Callable[[Path], Any]
    texts: tuple[str, ...] = ()
    """Pieces that mean something in such a file."""


@dataclass
class Count:
    """What came of the cases of one subject."""

    tried: int = 0
    refused: int = 0
    faults: list[str] = field(default_factory=list)


NUMBERS = ("-1", "0", "1e999", "NaN", "null", "true", "9" * 400, "1e-320", '"x"', "[]", "{}", "2147483648", "-0.0")
TEXTS = (
    "\x00",
    "\x1b[2J",
    "../../x",
    "[/x]",
    "\ud800",
    "é" * 50,
    "%s%n",
    "'",
    '"',
    "\\",
    "\r\n",
    "a" * 5000,
    "null",
    "~",
)


def damaged(content: bytes, draws: random.Random, pieces: tuple[str, ...] = ()) -> bytes:
    """One mutation: bits, bytes, cuts, repetitions, numbers, words."""
    if draws.random() < 0.7 and (text := _as_text(content)) is not None:
        return _other_value(content, draws, pieces) or _other_lines(text, draws, pieces)
    kind = draws.randrange(9)
    if not content or kind == 0:
        return bytes(draws.randrange(256) for _ in range(draws.randrange(64)))
    data = bytearray(content)
    at = draws.randrange(len(data))
    if kind == 1:
        for _ in range(draws.choice((1, 1, 2, 8, 64))):
            data[draws.randrange(len(data))] ^= 1 << draws.randrange(8)
    elif kind == 2:
        del data[at:]
    elif kind == 3:
        del data[at : at + draws.choice((1, 4, 100, 5000))]
    elif kind == 4:
        data[at:at] = data[at : at + draws.choice((1, 16, 1000))] * draws.choice((1, 2, 50))
    elif kind == 5:
        value = draws.choice((0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63, 255, 10**6))
        packed = struct.pack(draws.choice("<>") + "Q", value)
        data[at : at + 8] = packed[: draws.choice((1, 2, 4, 8))]
    elif kind == 6:
        data[at:at] = draws.choice((*NUMBERS, *TEXTS, *pieces)).encode("utf-8", "surrogatepass")
    elif kind == 7:
        return _other_value(content, draws, pieces) or damaged(content, draws, pieces)
    else:
        early = draws.randrange(min(len(data), 64))  # headers are where lengths stand
        data[early] = draws.randrange(256)
    return bytes(data)


def _as_text(content: bytes) -> str | None:
    """A text of ours; most damage to its bytes would be refused as no text, and its values never met."""
    try:
        text = content[:100_000].decode("utf-8")
    except UnicodeDecodeError:
        return None
    return text if (len(content) <= 100_000 and text.isprintable()) or ("\n" in text and "\0" not in text) else None


def _other_lines(text: str, draws: random.Random, pieces: tuple[str, ...]) -> bytes:
    """Lines left out, doubled, in another place, or with another piece inside."""
    lines = text.split("\n")
    at, other = draws.randrange(len(lines)), draws.randrange(len(lines))
    choice = draws.randrange(4)
    if choice == 0:
        del lines[at]
    elif choice == 1:
        lines.insert(other, lines[at])
    elif choice == 2:
        lines[at], lines[other] = lines[other], lines[at]
    else:
        place = draws.randrange(len(lines[at]) + 1)
        lines[at] = lines[at][:place] + draws.choice((*NUMBERS, *pieces, "[/x]", "~nouser", "=")) + lines[at][place:]
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _other_value(content: bytes, draws: random.Random, pieces: tuple[str, ...]) -> bytes | None:
    """A JSON or YAML text in which one value is another, so that it still parses."""
    try:
        fields = json.loads(content)
        text = json.dumps(_changed(fields, draws, pieces))
        return text.encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        pass
    lines = content.split(b"\n")
    places = [i for i, line in enumerate(lines) if b": " in line]
    if not places or len(content) > 100_000:
        return None
    place = draws.choice(places)
    value = draws.choice((*NUMBERS, "[/x]", "../../x", "a" * 5000, "~nouser", *pieces)).encode("utf-8", "surrogatepass")
    lines[place] = lines[place].split(b": ")[0] + b": " + value
    return b"\n".join(lines)


def _changed(value: Any, draws: random.Random, pieces: tuple[str, ...]) -> Any:
    odd: tuple[Any, ...] = (None, True, -1, 2**70, 1e308, "x", "", [], {}, [[]], "\x1b[31m[/x]", *pieces)
    if isinstance(value, dict) and value and draws.random() < 0.85:
        key = draws.choice(list(value))
        if draws.random() < 0.2:
            return {name: each for name, each in value.items() if name != key}
        return {**value, key: _changed(value[key], draws, pieces)}
    if isinstance(value, list) and value and draws.random() < 0.7:
        at = draws.randrange(len(value))
        return [*value[:at], _changed(value[at], draws, pieces), *value[at + 1 :]]
    return draws.choice(odd)


BATCH = 25
"""Cases that share a fork; where one of them brings it down, each gets its own."""


@dataclass(frozen=True)
class Damage:
    """One case: which file, and what stands in it."""

    folder: Path
    target: str
    content: bytes

    def lay_out(self, good: Path) -> set[str]:
        """The input with its damage, in place; its files."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(good, self.folder, symlinks=True)
        (self.folder / self.target).write_bytes(self.content)
        return set(_files(self.folder))


def fuzz(subject: Subject, base: Path, cases: int, draws: random.Random, seconds: float = 300.0) -> Count:
    """Damage and read `cases` times."""
    good = base / f"{subject.name.replace(' ', '-')}-good"
    good.mkdir(parents=True)
    subject.make(good)
    once = base / f"{good.name}-read"  # a copy: reading may finish a run, or undo a sort
    shutil.copytree(good, once, symlinks=True)
    first = trial(lambda: subject.read(once), seconds)
    assert first.kind == "result", f"{subject.name}: the good input gives {first}"
    targets = sorted(path for pattern in subject.files for path in good.glob(pattern) if path.is_file())
    count = Count()
    for start in range(0, cases, BATCH):
        batch = []
        for number in range(start, min(start + BATCH, cases)):
            target = draws.choice(targets)
            content = target.read_bytes()
            for _ in range(draws.choice((1, 1, 1, 2, 4))):
                content = damaged(content, draws, subject.texts)
            folder = base / f"{subject.name.replace(' ', '-')}-{number}"
            batch.append(Damage(folder, str(target.relative_to(good)), content))
        for damage, fault, refused in read_batch(subject, good, batch, seconds):
            count.tried += 1
            count.refused += refused
            if fault:
                count.faults.append(f"{damage.folder.name} ({damage.target}): {fault}")
                damage.lay_out(good)
                shutil.copytree(damage.folder, base / "faults" / damage.folder.name, symlinks=True)
            shutil.rmtree(damage.folder)
    return count


def read_batch(subject: Subject, good: Path, batch: list[Damage], seconds: float) -> Iterator[tuple[Damage, str, bool]]:
    """Each case with its fault, and whether it was refused: all in one fork, or, where that fails, one by one."""
    notes = good.parent / f"{good.name}.outcomes"
    before = [damage.lay_out(good) for damage in batch]

    def read_all() -> None:
        with open(notes, "w", encoding="utf-8") as file:
            for damage in batch:
                kind, text = read_one(lambda damage=damage: subject.read(damage.folder))  # type: ignore[misc]
                file.write(json.dumps([kind, text]) + "\n")
                file.flush()

    whole = trial(read_all, seconds)
    if whole.good:
        lines = [json.loads(line) for line in notes.read_text("utf-8").splitlines()]
        outcomes = [Outcome(kind, text, 0.0, 0.0) for kind, text in lines]
    else:
        before = [damage.lay_out(good) for damage in batch]
        outcomes = [trial(lambda d=damage: subject.read(d.folder), seconds) for damage in batch]  # type: ignore[misc]
    for damage, files, outcome in zip(batch, before, outcomes, strict=True):
        yield damage, _fault(outcome, set(_files(damage.folder)) - files), outcome.kind == "refused"


def _fault(outcome: Outcome, new: set[str]) -> str:
    if not outcome.good:
        return str(outcome)
    stray = sorted(name for name in new if outcome.kind == "refused" or name.endswith((".partial", ".part")))
    return f"stray files {stray[:3]}" if stray else ""


def _files(folder: Path) -> Iterator[str]:
    for here, _, names in os.walk(folder):
        for name in names:
            if name != ".lock":
                yield os.path.relpath(os.path.join(here, name), folder)
