"""A fit in three sentences, a few large numbers, a table, and the command that repeats it."""

from __future__ import annotations

import shlex
from typing import Any

from osp.errors import printable
from osp.photos.page.reading import FittedRun
from osp.report.summary import shown


def title(run: FittedRun) -> str:
    names = run.shown_names
    listed = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    return f"{listed} – or none of them"


def sentences(run: FittedRun) -> list[str]:
    """What was learned from what, how well it names classes, what it makes of the pile."""
    return [_learned(run), _named(run), _pile(run)]


def _learned(run: FittedRun) -> str:
    counted = run.result["pile_photos"]["counted"]
    rest = f" and {counted:,} unsorted ones" if counted else " alone"
    kept = run.result.get("answer", "instant")
    how = "" if kept == "instant" else f" It was trained on by {printable(kept)}."
    if counted and run.answer == "labels alone":
        how = " The classes are told apart by the sorted ones alone, which cross-validation found better."
    return (
        f"This classifier learned {len(run.names)} classes from {len(run.labels):,} sorted photos{rest}, looking at "
        f"them with {printable(run.result['backbone'])}.{how}"
    )


def _named(run: FittedRun) -> str:
    estimate = run.result["estimates"][run.answer]
    tested = (run.result.get("test") or {}).get(run.answer)
    if estimate is None and tested is None:
        return "Every class has one photo, so nothing can be said of its accuracy."
    parts = []
    if estimate is not None:
        parts.append(
            f"{estimate['accuracy']:.1f} % of {estimate['images']:,} sorted photos, each held out in turn (95 % "
            f"interval: {estimate['low']:.0f} to {estimate['high']:.0f})"
        )
    if tested is not None:
        parts.append(
            f"{tested['accuracy']:.1f} % of {tested['images']:,} test photos ({tested['low']:.0f} to "
            f"{tested['high']:.0f})"
        )
    return f"It names the right class for {', and for '.join(parts)}.{_accepted(tested)}"


def _accepted(tested: dict[str, Any] | None) -> str:
    """How many test photos of either kind get in; nothing without foreign ones."""
    if not tested or not tested.get("foreign"):
        return ""
    counts = [(tested[f"{kind}_accepted"], tested[of]) for kind, of in (("foreign", "foreign"), ("known", "images"))]
    (foreign, strangers), (known, familiar) = [(round(share * count / 100), count) for share, count in counts]
    return f" {foreign:,} of {strangers:,} foreign test photos get in, and {known:,} of the {familiar:,} known ones."


def _pile(run: FittedRun) -> str:
    pile = run.result["pile_photos"]
    if not pile["counted"]:
        return "There was no pile to look through."
    foreign = f"{pile['out']:,} look foreign" if run.threshold is not None else "there was nothing to tell others by"
    guess = ""
    if run.threshold is not None and not len(run.known_scores):
        guess = " Take that as a guess: with one photo per class the threshold rests on the pile alone."
    return f"Of the pile, {pile['in']:,} of {pile['counted']:,} photos look like one of the classes; {foreign}.{guess}"


def tiles(run: FittedRun) -> list[dict[str, str]]:
    """Large numbers, each with what it is."""
    found = []
    estimate, tested = run.result["estimates"][run.answer], (run.result.get("test") or {}).get(run.answer)
    best = tested or estimate
    if best is not None:
        kind = "test photos" if tested else "photos held out"
        text = f"right, of {best['images']:,} {kind} ({best['low']:.0f} to {best['high']:.0f})"
        found.append({"number": f"{best['accuracy']:.1f} %", "text": text})
    pile = run.result["pile_photos"]
    if pile["counted"]:
        found.append({"number": f"{pile['in']:,}", "text": f"of {pile['counted']:,} in the pile look like a class"})
        found.append({"number": f"{pile['out']:,}", "text": "look foreign"})
    if tested and tested.get("foreign"):
        known = f"(of the {tested['images']:,} known ones {tested['known_accepted']:.0f} %)"
        text = f"of {tested['foreign']:,} foreign test photos get in {known}"
        found.append({"number": f"{tested['foreign_accepted']:.0f} %", "text": text})
    if tested and tested.get("auroc") is not None:
        found.append({"number": f"{tested['auroc']:.1f}", "text": "AUROC, known against foreign test photos"})
    one = len(run.doubts) == 1
    found.append({"number": f"{len(run.doubts):,}", "text": "label looks wrong" if one else "labels look wrong"})
    return found


NUMBERS: dict[str, tuple[str, str, str]] = {
    "accuracy": ("estimates", "accuracy by cross-validation", "%"),
    "balanced_accuracy": ("estimates", "the same, all classes counted alike", "%"),
    "ece": ("estimates", "calibration error by cross-validation", "%"),
    "test accuracy": ("test", "accuracy on test photos", "%"),
    "auroc": ("test", "AUROC, known against foreign test photos", ""),
    "known_accepted": ("test", "known test photos taken for known", "%"),
    "foreign_accepted": ("test", "foreign test photos taken for known", "%"),
    "share": ("pile_photos", "share of the pile that belongs, estimated", "%"),
    "seconds": ("", "seconds, without this page", ""),
}


def table(run: FittedRun, other: FittedRun | None) -> list[dict[str, str]]:
    """The numbers that either run has, with what each rests on."""
    rows = []
    for key, (where, name, unit) in NUMBERS.items():
        cells = [None if each is None else _cell(each, where, key.removeprefix("test "), unit) for each in (run, other)]
        if any(cells):
            rows.append({"name": name, "value": cells[0] or "–", "other": cells[1] or "–"})
    return rows


def _cell(run: FittedRun, where: str, key: str, unit: str) -> str:
    """`85.0 % (71 to 93) of 40`; empty where it is unknown."""
    part: Any = run.result.get(where) if where else run.result
    if where in ("estimates", "test"):
        part = (part or {}).get(run.answer)
    value = (part or {}).get(key)
    if not isinstance(value, int | float):
        return ""
    interval = f" ({part['low']:.0f} to {part['high']:.0f})" if key == "accuracy" else ""
    if key == "auroc":
        interval = f" ({part['images']:,} known, {part['foreign']:,} foreign)"
    counted = {"share": "counted", "foreign_accepted": "foreign", "auroc": ""}.get(key, "images" if where else "")
    count = f" of {part[counted]:,}" if counted else ""
    if not where:
        return shown(float(value), unit)
    return f"{100 * value if key == 'share' else value:.1f}{' %' if unit else ''}{interval}{count}"


def name_of(other: FittedRun, run: FittedRun) -> str:
    """What a run that this one is compared with is called."""
    alike = other.path.name == run.path.name
    return printable(other.path if alike else other.path.name)


def differences(run: FittedRun, other: FittedRun, name: str) -> list[str]:
    """Why figures of two runs do not compare, where they do not."""
    found = []
    if set(run.names) != set(other.names):
        counts = f"{len(run.names)} in this run, {len(other.names)} in {name}"
        lacking = sorted(map(printable, set(run.names) ^ set(other.names)))
        found.append(f"The classes differ ({counts}; not in both: {', '.join(lacking)}): the figures do not compare.")
    mine, theirs = ({said.file for said in each.test} for each in (run, other))
    if mine != theirs:
        both = len(mine & theirs)
        found.append(
            f"The test photos differ ({len(mine):,} in this run, {len(theirs):,} in {name}, {both:,} of them in both): "
            "their figures do not compare."
        )
    return found


def made_with(run: FittedRun) -> str:
    version = printable(run.result.get("version", ""))
    return f"osp {version}, {run.result['seconds']:.0f} seconds without this page."


def command(run: FittedRun) -> str:
    """What to type to have the same again."""
    result, asked = run.result, run.result.get("asked") or {}
    words = ["osp", "fit", str(result["sorted"])]
    words += [] if result.get("pile") is None else [str(result["pile"])]
    for option, value, usual in (
        ("--backbone", result["backbone"], "efficientnet-lite0"),
        ("--method", asked.get("method"), "instant"),
        ("--test", asked.get("test"), None),
        ("--from", asked.get("from"), None),
        ("--seed", asked.get("seed"), 0),
    ):
        if value is not None and value != usual:
            words += [option, str(value)]
    return printable(shlex.join([*words, "--out", "again"]))
