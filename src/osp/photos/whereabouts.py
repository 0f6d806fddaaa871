"""Where the photos of a sort are now: a person may have moved some of them from one of its folders to another.

They are known by their content, links by what they lead to, files that go along by lying beside their photo.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from osp.photos.journal import JOURNAL, TABLE, placed, read_journal
from osp.photos.reaching import Outside, reached
from osp.tables import fused

Moved = dict[tuple[str, str], str]
"""Where a person has put a file, by the `from` and the `to` of its line in the journal."""

_CELLS = 6, 7
"""Of a row of the table: file, class, probability, OOD score, decision, how sure (not in earlier versions), place."""


def place_now(entry: dict[str, Any], moved: Moved) -> str:
    """The place of a sorted file below its folder; Outside where sorting cannot have made such a one."""
    return moved.get((entry["from"], entry["to"])) or placed(entry)


def is_there(out: Path, entry: dict[str, Any]) -> bool:
    """Whether something lies at the place that the journal names."""
    try:
        with reached(out, placed(entry)) as place:
            return place.status() is not None
    except (Outside, OSError):
        return False


def moved_by_hand(out: Path, entries: Iterable[dict[str, Any]]) -> Moved:
    """The files of a sort that are not where it put them, and lie elsewhere in its folder."""
    ours = [entry for entry in entries if entry.get("action") in ("link", "copy", "move")]
    there = {entry["to"] for entry in ours if is_there(out, entry)}
    here = {entry["from"] for entry in ours if entry["to"] in there}  # placed at the second attempt
    missing = [entry for entry in ours if entry["to"] not in there and entry["from"] not in here]
    missing = [entry for entry in missing if entry["action"] != "move" or not os.path.lexists(entry["from"])]
    if not missing:
        return {}
    free: dict[object, list[str]] = defaultdict(list)
    for place in _files(out):
        if place not in there:
            free[_kind(out, place)].append(place)
    found: Moved = {}
    folders: dict[str, str] = {}  # of photos that were found: what goes along lies beside them
    for entry in sorted(missing, key=lambda entry: "with" in entry):
        alike = free[entry["from"] if entry["action"] == "link" else entry["size"]]
        name = os.path.basename(entry["to"])
        if "with" in entry:
            wanted = [os.path.join(folders.get(entry["with"], ""), name)]
        else:
            wanted = sorted(alike, key=lambda place: os.path.basename(place) != name)
        for place in wanted:
            if place in alike and (entry["action"] == "link" or "with" in entry or _has_content(out, place, entry)):
                found[entry["from"], entry["to"]] = place
                folders[entry["from"]] = os.path.dirname(place)
                alike.remove(place)
                break
    return found


def guesses_in(out: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Files that lie where a sort has put them, with what was done to them; and the class that each folder stands for.

    What a person has put into such a folder is a label. The rest are guesses.
    """
    entries = [
        entry for entry in read_journal(out / JOURNAL).entries if entry.get("action") in ("link", "copy", "move")
    ]
    places, classes = {}, {}
    for entry in entries:
        with contextlib.suppress(Outside):
            places[os.path.join(os.path.abspath(out), placed(entry))] = entry["action"]
            if len(row := entry.get("row", ())) in _CELLS and row[4] == "in":
                classes[os.path.dirname(entry["to"])] = fused(row[1])
    return places, classes


def _kind(out: Path, relative: str) -> object:
    """What a link leads to, and the size of a file; None of all else."""
    with contextlib.suppress(OSError, Outside), reached(out, relative) as place:
        if place.is_link():
            return place.readlink()
        status = place.status()
        return status.st_size if status is not None and place.is_file() else None
    return None


def _has_content(out: Path, relative: str, entry: dict[str, Any]) -> bool:
    with contextlib.suppress(OSError, Outside), reached(out, relative) as place:
        return "content" in entry and place.content() == entry["content"]
    return False


def _files(out: Path) -> Iterator[str]:
    """All below a folder but what sorting writes for itself; links are not followed."""
    for here, _, names in os.walk(out):
        for name in names:
            place = os.path.relpath(os.path.join(here, name), out)
            if place not in (JOURNAL, TABLE) and not name.startswith("."):
                yield place
