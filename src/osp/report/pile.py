"""What the page of a fit shows of the pile: counts by class, and photos of each class and of the unknown groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from osp.errors import printable
from osp.report.galleries import shots
from osp.report.html import mark
from osp.report.view import Gallery, percent
from osp.runs.fitted import groups_of, strangers_of

if TYPE_CHECKING:
    from osp.report.fitted import FittedView

MOST_GROUPS, MOST_NEARLY = 20, 16


def counted_strangers(count: int) -> str:
    """How many, in words.

    >>> counted_strangers(1), counted_strangers(1200)
    ('1 stranger', '1,200 strangers')
    """
    return f"{count:,} stranger{'s' * (count != 1)}"


def bars(view: FittedView) -> list[dict[str, Any]]:
    """How many photos of the pile look like each class, and how many look unknown."""
    pile = view.result["pile_photos"]
    if not pile["counted"]:
        return []
    classes = zip(view.names, view.tables.names, strict=True)
    counts = [(mark(k)["style"], name, int(pile["per_class"].get(raw, 0))) for k, (name, raw) in enumerate(classes)]
    counts.append(("cood", "unknown", int(pile["out"])))
    most = max(count for *_, count in counts) or 1
    strangers = strangers_of(view.result) or {}
    doubts = [strangers[name].strangers if name in strangers else 0 for name in view.tables.names]
    return [
        {
            "style": style,
            "name": name,
            "count": f"{count:,}{f' ({counted_strangers(doubt)}?)' if doubt else ''}",
            "share": round(100 * count / most, 1),
        }
        for (style, name, count), doubt in zip(counts, [*doubts, 0], strict=True)
    ]


def class_galleries(view: FittedView) -> list[Gallery]:
    """For each class the photos of the pile that it is surest and least sure of."""
    if not len(view.pool):
        return []
    each = 8 if len(view.names) <= 8 else 6 if len(view.names) <= 30 else 3
    inside = view.pool.rows(np.flatnonzero(~view.pool.outside))
    found, strangers = [], strangers_of(view.result)
    for number, name in enumerate(view.names):
        members = np.flatnonzero(inside.predicted == number)
        best = members[np.argsort(-inside.confidence[members], kind="stable")][: min(each, -(-len(members) // 2))]
        rest = np.setdiff1d(members, best)
        near = rest[np.argsort(-inside.scores[rest], kind="stable")][:each]
        rows = [shots(inside, end, lambda row: percent(inside.confidence[row])) for end in (best, near)]
        titles = "surest", "nearest the threshold: look here for strangers"
        parts = [(title, some) for title, some in zip(titles, rows, strict=True) if some]
        note = (
            f"{len(members):,} photos of the pile look like it"
            if len(members)
            else "no photo of the pile looks like it"
        )
        if strangers and (some := strangers.get(view.tables.names[number])):
            note += f": about {some.right:,} right, {counted_strangers(some.strangers)}"
        found.append(Gallery(name, [], note, number, parts))
    return found


def nearly_let_in(view: FittedView) -> Gallery:
    """Unknown photos just above the threshold."""
    outside = np.flatnonzero(view.pool.outside)
    order = outside[np.argsort(view.pool.scores[outside], kind="stable")][:MOST_NEARLY]
    words = shots(view.pool, order, lambda row: f"{view.names[view.pool.predicted[row]]}?", view.pool.outside)
    return Gallery("Nearly let in", words, "Photos of the pile just above the threshold: yours that are lost are here.")


def group_galleries(view: FittedView) -> list[Gallery]:
    """The largest groups of unknown photos, the surest of each."""
    row_of = {file: row for row, file in enumerate(view.pool.where)}
    found = []
    for group in groups_of(view.result)[:MOST_GROUPS]:
        rows = [row_of[file] for file in group.surest if file in row_of]
        surest = shots(view.pool, rows, lambda row: f"{view.names[view.pool.predicted[row]]}?")
        found.append(Gallery(printable(group.name), [], f"{group.photos:,} photos", parts=[("surest", surest)]))
    return found
