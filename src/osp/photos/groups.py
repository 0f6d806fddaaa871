"""The unknown photos of a pile by group: what looks alike, the largest group first.

Where the pile was asked (`osp.parts.clusters`), its free centers stand where the pile is dense and no label is. Unknown
photos nearest the same center are a group; what is nearer to a class than to any of them, and groups of fewer than
five, are left over.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from osp.errors import UserError, printable
from osp.models.instant import FeatureRows, Instant
from osp.models.model import group_name
from osp.photos.labels import NONE, Label
from osp.runs.fitted import groups_of
from osp.runs.schema import Group

SAME = 0.8
"""Cosine from which two centers are one: several may have settled on one kind."""
LEAST = 5
"""Photos that make a group."""
SUREST = 12
"""Photos of a group that the page shows, and that a name given to the group makes a class of."""


def group_pile(instant: Instant, pile: np.ndarray | FeatureRows) -> tuple[Instant, list[np.ndarray]]:
    """The answer with its groups numbered, and the rows of the pile (raw features) in each, the surest first."""
    if instant.asked is None or not len(pile):
        return instant, []
    centers = instant.asked.clusters.free[0].numpy()
    alike = (centers @ centers.T > SAME).argmax(axis=1)  # the first center that is the same
    first = np.append(alike[alike], -1)
    nearest, nearness = instant.kinds(pile)
    kinds = np.where(instant.ood_score(pile) > instant.threshold(), first[nearest], -1)
    sizes = np.bincount(kinds[kinds >= 0], minlength=len(centers))
    order = [kind for kind in np.argsort(-sizes, kind="stable") if sizes[kind] >= LEAST]
    numbers = np.zeros(len(centers), np.int64)
    for number, kind in enumerate(order, 1):
        numbers[first[:-1] == kind] = number
    members = (np.flatnonzero(kinds == kind) for kind in order)
    return replace(instant, groups=numbers), [rows[np.argsort(-nearness[rows], kind="stable")] for rows in members]


def described(members: Sequence[np.ndarray], files: Sequence[str]) -> list[dict[str, Any]]:
    """The groups as result.json has them."""
    found = (
        Group(group_name(number), len(rows), [files[row] for row in rows[:SUREST]])
        for number, rows in enumerate(members, 1)
    )
    return [asdict(each) for each in found]


def in_words(groups: Sequence[Group], most: int = 6) -> str:
    """The groups in one sentence.

    >>> in_words([Group("group-01", 45, []), Group("group-02", 9, [])])
    'The unknown form 2 groups: group-01 (45 photos), group-02 (9).'
    >>> in_words([])
    ''
    """
    if not groups:
        return ""
    listed = [f"{each.name} ({each.photos:,}{'' if place else ' photos'})" for place, each in enumerate(groups)]
    more = len(groups) - most
    rest = f" and {more} smaller one{'s' * (more > 1)}" if more > 0 else ""
    count = "1 group" if len(groups) == 1 else f"{len(groups)} groups"
    return f"The unknown form {count}: {', '.join(listed[:most])}{rest}."


def named_groups(run: Path, result: dict[str, Any], names: Sequence[str]) -> list[Label]:
    """The surest photos of groups of an earlier fit as labels, for each `group-3=heron`."""
    groups = {each.name: each for each in groups_of(result)}
    found: list[Label] = []
    for given in names:
        asked, _, name = given.partition("=")
        number = re.fullmatch(r"group-0*([1-9][0-9]*)", asked.strip())
        if number is None or not name.strip():
            raise UserError(f"--name {printable(given)}: say it as group-3=heron.")
        if "/" in name or "\\" in name:
            raise UserError(f"--name {printable(given)}: the name of a class has no / or \\ in it.")
        if name.strip() == NONE:
            raise UserError(
                f"--name {printable(given)}: {NONE} is no class. Put photos of none of your classes into a folder, and "
                "name it with --none."
            )
        group = groups.get(group_name(int(number[1])))
        if group is None:
            have = f"has {', '.join(groups)}" if groups else "has no groups"
            raise UserError(f"--name {printable(given)}: there is no such group; {run} {have}.")
        found += [Label(file, name.strip(), "") for file in group.surest]
    return found
