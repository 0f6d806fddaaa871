"""`osp label` killed: a server of its own, somebody who answers and undoes, SIGKILL at any moment, and a new server.

Every answer that was confirmed must be in labels.csv then, an answer under way may be, and nothing else; the fit at
the end must end.
"""

from __future__ import annotations

import json
import random
import subprocess
import threading
import time
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

from helpers.labeling import Started, make_pile, start
from osp.photos.labels import BOOK, current, read_labels
from osp.verify import verify
from torture.kill import Tally

PHOTOS = 300
LONGEST = 4.0
"""Seconds after which the kill comes at the latest."""
NAMES = ("red", "green", "none")


@dataclass
class Told:
    """What a person knows to be on the disk."""

    states: list[dict[str, str]] = field(default_factory=lambda: [{}])
    """Class by photo: after each answer that counts; undo leads back."""
    under_way: dict[str, str] | None = None
    """The state after the request that has no answer yet."""
    confirmed: int = 0
    fault: str = ""
    """An answer of the server that is none."""


def killed(base: Path, kills: int, draws: random.Random) -> Tally:
    """Kill so many servers, one after the other, on one folder."""
    make_pile(base / "pile", PHOTOS)
    told, total = Told(), Tally()
    for number in range(kills):
        finishing = number % 4 == 3
        fault = _one(base, told, draws, finishing)
        total += Tally(1, 1, bool(fault), (f"label, kill {number}: {fault}",) if fault else ())
        if fault:
            return total
    server = start(base)
    person = threading.Thread(target=_answer_on, args=(server, told, draws.randrange(2**32)), daemon=True)
    person.start()
    until = time.monotonic() + 60
    while not set(NAMES) <= set(told.states[-1].values()) and time.monotonic() < until:
        time.sleep(0.1)
    fault = _end(base, server)
    person.join(60)
    fault = fault or _lost(base, told)
    total += Tally(0, 0, bool(fault), (f"label, at the end: {fault}",) if fault else ())
    print(f"  label: {kills} kills, {told.confirmed:,} answers and undos confirmed, {len(told.states[-1])} labels kept")
    return total


def _one(base: Path, told: Told, draws: random.Random, finishing: bool) -> str:
    server = start(base)
    person = threading.Thread(target=_answer_on, args=(server, told, draws.randrange(2**32)))
    person.start()
    try:
        time.sleep(draws.uniform(0, LONGEST))
        if finishing and len(set(told.states[-1].values())) > 2:  # the kill meets the fit
            server.ask("/done", {})
            time.sleep(draws.uniform(0, LONGEST))
    finally:
        server.process.kill()
        server.process.communicate()
    person.join(90)
    return _lost(base, told)


def _lost(base: Path, told: Told) -> str:
    """What is missing, or too much; else what lies on the disk is what the person knows."""
    if told.fault:
        return told.fault
    try:
        labels = current(read_labels(base / "run" / BOOK)).values()
    except Exception as error:
        return f"{BOOK} cannot be read: {error}"
    now = {Path(label.file).name: label.name for label in labels}
    before, after, told.under_way = told.states[-1], told.under_way, None
    if now == before:
        return ""
    if after is None:
        return f"{_differing(before, now)} differ, and nothing was under way"
    odd = [photo for photo in {*now, *before} if now.get(photo) not in (before.get(photo), after.get(photo))]
    kept = [photo for photo in before if after.get(photo) == before[photo] != now.get(photo)]
    if odd or kept:
        return f"{odd + kept} are neither as before nor as after the answer under way"
    if len(told.states) > 1 and now == told.states[-2]:
        told.states.pop()  # an undo
    else:
        told.states.append(now)
    return ""


def _differing(one: dict[str, str], other: dict[str, str]) -> list[str]:
    return sorted(photo for photo in {*one, *other} if one.get(photo) != other.get(photo))


def _answer_on(server: Started, told: Told, seed: int) -> None:
    """Answer, and every fourth time undo, as fast as the server takes it, until it is gone."""
    draws = random.Random(seed)
    try:
        question = None
        while True:
            if question is None:
                question = _asked(server.ask("/state")[1])
            if len(told.states) > 1 and (question is None or draws.random() < 0.25):
                question = _undo(server, told)
            elif question is None:
                time.sleep(0.05)
            else:
                question = _answer(server, told, question)
    except (OSError, HTTPException):
        return
    except AssertionError as error:
        told.fault = str(error)


def _asked(content: bytes) -> dict[str, Any] | None:
    found: dict[str, Any] | None = json.loads(content)["question"]
    return found


def _answer(server: Started, told: Told, question: dict[str, Any]) -> dict[str, Any] | None:
    colors = [NAMES[int(name.partition(".")[0]) % 3] for name in question["names"]]
    name = colors[0]
    chosen = [color == name for color in colors]
    files = [file for file, mine in zip(question["names"], chosen, strict=True) if mine]
    photos = [number for number, mine in zip(question["photos"], chosen, strict=True) if mine]
    others = [number for number, mine in zip(question["photos"], chosen, strict=True) if not mine]
    told.under_way = {**told.states[-1], **dict.fromkeys(files, name)}
    status, content = server.ask("/answer", {"photos": photos, "others": others, "name": name})
    assert status == 200, content
    told.states.append(told.under_way)
    told.under_way, told.confirmed = None, told.confirmed + 1
    return _asked(content)


def _undo(server: Started, told: Told) -> dict[str, Any] | None:
    told.under_way = told.states[-2]
    status, content = server.ask("/undo", {})
    assert status == 200, content
    told.states.pop()
    told.under_way, told.confirmed = None, told.confirmed + 1
    return _asked(content)


def _end(base: Path, server: Started) -> str:
    """The button Done: the server ends by itself, and leaves a run that is whole."""
    if server.ask("/done", {})[0] != 200:
        return "Done was refused"
    try:
        said, _ = server.process.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        server.process.kill()
        return "the fit does not end"
    if server.process.returncode != 0:
        return f"exit code {server.process.returncode}: {said[-300:]}"
    problems = [problem for verdict in verify(base / "run") for problem in verdict.problems]
    return "; ".join(problems) or ("" if (base / "run/result.json").is_file() else "there is no run")
