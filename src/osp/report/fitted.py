"""The view of a run of `osp fit`, from its folder alone; pictures need the photos where they were."""

from __future__ import annotations

import shlex
from functools import cached_property
from typing import Any

import numpy as np

from osp.data.decode import Unreadable, decode
from osp.errors import UserError, printable
from osp.evaluate.metrics import confusion_matrix
from osp.evaluate.predictions import NONE, Judged, sample_rows
from osp.report.album import Photos
from osp.report.embedding import embed
from osp.report.galleries import MOST, accepted, by_score, disagreements, mistakes
from osp.report.pile import MOST_GROUPS, bars, class_galleries, group_galleries, nearly_let_in
from osp.report.view import Gallery, Histogram, Looked, Map, Point, Shot, View, shown
from osp.runs.fitted import FitTables, answer_of, belongs_in_words, groups_of, strangers_in_words, strangers_of

LOOKED_SIDE = 160
MOST_BY_SCORE = 16
MOST_LABELED, MOST_PILE = 300, 500
"""Points on the map."""
MOST_LEFT_OUT = 20
KEEPS = "The threshold is set to keep about 95 % of the known classes; few sorted photos say that only roughly."
CUT = "It lies where as much speaks for one of your classes as for what you said to be none of them."

NUMBERS: dict[str, tuple[str, str, str]] = {
    "accuracy": ("estimates", "accuracy by cross-validation", "%"),
    "balanced_accuracy": ("estimates", "average over classes", "%"),
    "ece": ("estimates", "calibration error by cross-validation", "%"),
    "test accuracy": ("test", "accuracy on test photos", "%"),
    "auroc": ("test", "AUROC, known against unknown test photos", ""),
    "known_accepted": ("test", "known test photos that are accepted", "%"),
    "foreign_accepted": ("test", "unknown test photos that are accepted", "%"),
    "share": ("pile_photos", "share of the pile that belongs, estimated", "%"),
    "seconds": ("", "seconds, without this page", ""),
}


class FittedView(View):
    """A run of `osp fit`."""

    template = "photos"
    look_rows = ("photo", "where it looks")

    @property
    def tables(self) -> FitTables:
        return self.run.tables

    @property
    def result(self) -> dict[str, Any]:
        return self.run.result

    @cached_property
    def album(self) -> Photos:
        return Photos()

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(printable(name) for name in self.tables.names)

    @property
    def threshold(self) -> float | None:
        return self.run.number("threshold")

    @cached_property
    def pool(self) -> Judged:
        return self.tables.pile.rows(self.tables.counted)

    @property
    def test(self) -> Judged:
        return self.tables.test

    @cached_property
    def held_out(self) -> Judged | None:
        """The sorted photos, each as the others say; None where that was not stored."""
        chances, taught = self.tables.held_out, self.tables
        if chances is None:
            return None
        rows = np.flatnonzero(chances.sum(axis=1) > 0)
        best, nothing = chances[rows], np.zeros(len(rows))
        where = [taught.labeled_files[row] for row in rows]
        return Judged(
            where, best.argmax(axis=1), best.max(axis=1, initial=0), nothing, nothing > 0, taught.labels[rows]
        )

    @property
    def answer(self) -> str:
        """The name under which the figures of the chosen answer stand."""
        return answer_of(self.result)

    @property
    def tested(self) -> dict[str, Any] | None:
        """Figures on test photos."""
        return (self.result.get("test") or {}).get(self.answer)

    # Words

    @property
    def title(self) -> str:
        names = self.names
        listed = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        return f"{listed} – or none of them"

    @property
    def called(self) -> str:
        return printable(self.run.name)

    def sentences(self) -> list[str]:
        """What was learned from what, how well it names classes, what it makes of the pile."""
        return [self._learned(), self._named(), self._in_pile()]

    def _learned(self) -> str:
        counted = self.result["pile_photos"]["counted"]
        rest = f" and {counted:,} unsorted ones" if counted else " alone"
        kept = self.result.get("answer", "instant")
        how = "" if kept == "instant" else f" It was trained on by {printable(kept)}."
        if counted and self.answer == "labels alone":
            how = " The classes are learned from the sorted ones alone, which cross-validation found better."
        return (
            f"This classifier learned {len(self.names)} classes from {len(self.tables.labels):,} sorted photos{rest}, "
            f"looking at them with {printable(self.result['backbone'])}.{how}"
        )

    def _named(self) -> str:
        estimate, tested = self.result["estimates"][self.answer], self.tested
        if estimate is None and tested is None:
            return "Every class has one photo, so nothing can be said of its accuracy."
        parts = []
        if estimate is not None:
            parts.append(
                f"{estimate['accuracy']:.1f} % of {estimate['images']:,} sorted photos, each tested with a model that "
                f"had not seen it (95 % interval: {estimate['low']:.0f} to {estimate['high']:.0f})"
            )
        if tested is not None:
            parts.append(
                f"{tested['accuracy']:.1f} % of {tested['images']:,} test photos ({tested['low']:.0f} to "
                f"{tested['high']:.0f})"
            )
        return f"It names the right class for {', and for '.join(parts)}.{_accepted(tested)}"

    def _in_pile(self) -> str:
        pile = self.result["pile_photos"]
        if not pile["counted"]:
            return "There was no pile to look through."
        known = self.threshold is not None
        unknown = f"{pile['out']:,} look unknown" if known else "there was nothing to tell unknown photos by"
        guess = ""
        if known and not len(self.tables.known_scores) and self.result.get("cut") is None:
            guess = " Take that as a guess: with one photo per class the threshold rests on the pile alone."
        found = f"{pile['in']:,} of {pile['counted']:,} photos look like one of the classes"
        classes = strangers_of(self.result)
        belongs = f" {belongs_in_words(pile)}" if pile.get("share_low") is not None else ""
        doubt = f" {strangers_in_words(classes, pile)}" if classes else ""
        return f"Of the pile, {found}; {unknown}.{belongs}{doubt}{guess}"

    def numbers(self) -> dict[str, str]:
        """Each with what it rests on."""
        return {
            name: self._number(where, key.removeprefix("test "), unit) for key, (where, name, unit) in NUMBERS.items()
        }

    def _number(self, where: str, key: str, unit: str) -> str:
        """`85.0 % (71 to 93) of 40`; empty where it is unknown."""
        part: Any = self.result.get(where) if where else self.result
        if where in ("estimates", "test"):
            part = (part or {}).get(self.answer)
        value = (part or {}).get(key)
        if not isinstance(value, int | float):
            return ""
        if not where:
            return shown(float(value), unit)
        interval = f" ({part['low']:.0f} to {part['high']:.0f})" if key == "accuracy" else ""
        if key == "share" and part.get("share_low") is not None:
            interval = f" ({100 * part['share_low']:.0f} to {100 * part['share_high']:.0f})"
        if key == "auroc":
            interval = f" ({part['images']:,} known, {part['foreign']:,} unknown)"
        counted = {"share": "counted", "foreign_accepted": "foreign", "auroc": ""}.get(key, "images")
        count = f" of {part[counted]:,}" if counted else ""
        return f"{100 * value if key == 'share' else value:.1f}{' %' if unit else ''}{interval}{count}"

    def more(self, other: View | None, name: str) -> dict[str, Any]:
        left_out = [
            {"file": printable(file), "reason": printable(why)} for file, why in self.tables.left_out[:MOST_LEFT_OUT]
        ]
        version = printable(self.result.get("version", ""))
        return {
            "tiles": self._tiles(),
            "differences": [] if other is None else differences(self, other, name),
            "pile": bars(self),
            "left_out": left_out,
            "more_left_out": max(0, len(self.tables.left_out) - MOST_LEFT_OUT),
            "threshold_note": CUT if self.result.get("cut") is not None else KEEPS,
            "duplicates": int(self.result.get("duplicates") or 0),
            "command": self.command(),
            "more_groups": max(0, len(groups_of(self.result)) - MOST_GROUPS),
            "run": printable(shlex.quote(str(self.run.path))),
            "made_with": f"osp {version}, {self.result['seconds']:.0f} seconds without this page.",
        }

    def _tiles(self) -> list[dict[str, str]]:
        """Large numbers, each with what it is."""
        found = []
        tested = self.tested
        best = tested or self.result["estimates"][self.answer]
        if best is not None:
            kind = "test photos" if tested else "photos held out"
            text = f"right, of {best['images']:,} {kind} ({best['low']:.0f} to {best['high']:.0f})"
            found.append({"number": f"{best['accuracy']:.1f} %", "text": text})
        pile = self.result["pile_photos"]
        if pile["counted"]:
            found.append({"number": f"{pile['in']:,}", "text": f"of {pile['counted']:,} in the pile look like a class"})
            if classes := strangers_of(self.result):
                count = sum(each.strangers for each in classes.values())
                least, most = pile.get("strangers_low"), pile.get("strangers_high")
                ends = "" if least is None or most is None else f" ({least:,} to {most:,})"
                found.append({"number": f"{count:,}", "text": f"of these {pile['in']:,} are probably strangers{ends}"})
            found.append({"number": f"{pile['out']:,}", "text": "look unknown"})
        if tested and tested.get("foreign"):
            known = f"(of the {tested['images']:,} known ones {tested['known_accepted']:.0f} %)"
            text = f"of {tested['foreign']:,} unknown test photos are accepted {known}"
            found.append({"number": f"{tested['foreign_accepted']:.0f} %", "text": text})
        if tested and tested.get("auroc") is not None:
            found.append({"number": f"{tested['auroc']:.1f}", "text": "AUROC, known against unknown test photos"})
        doubts = len(self.tables.doubts)
        found.append({"number": f"{doubts:,}", "text": "label looks wrong" if doubts == 1 else "labels look wrong"})
        return found

    def command(self) -> str:
        """What to type to have the same again."""
        result, asked = self.result, self.result.get("asked") or {}
        places = [str(result[name]) for name in ("sorted", "pile") if result.get(name) is not None]
        words = ["osp", "fit" if result.get("sorted") or asked.get("from") else "label", *places]
        for option, value, usual in (
            ("--backbone", result["backbone"], "efficientnet-lite0"),
            ("--method", asked.get("method"), "instant"),
            ("--test", asked.get("test"), None),
            ("--from", asked.get("from"), None),
            ("--labels", asked.get("labels") if result.get("sorted") else None, None),
            ("--none", asked.get("none"), None),
            ("--seed", asked.get("seed"), 0),
        ):
            if value is not None and value != usual:
                words += [option, str(value)]
        words += [word for each in asked.get("name") or () for word in ("--name", str(each))]
        return printable(shlex.join([*words, "--out", "again"]))

    # Figures

    def histograms(self) -> list[Histogram]:
        if self.threshold is None:
            return []
        known = self.test.truth != NONE
        pile = {"ID": self.tables.known_scores, "unlabeled": self.pool.scores}
        test = {"ID": self.test.scores[known], "OOD": self.test.scores[~known]}
        return [
            Histogram("The pile, and sorted photos", pile, {"ID": "sorted, held out", "unlabeled": "pile"}),
            Histogram("Test photos", test, {"ID": "known", "OOD": "unknown"}),
        ]

    def map(self) -> Map | None:
        """Sorted photos by class, photos of the pile by the class they look like, small, and unknown ones black."""
        taught, pile = self.tables, self.tables.pile
        sorted_rows = sample_rows(len(taught.labels), MOST_LABELED)
        pile_rows = sample_rows(len(taught.sample), MOST_PILE)
        features = np.concatenate([taught.labeled[sorted_rows], taught.sample_features[pile_rows]])
        if len(features) < 5:
            return None
        points = [
            Point(
                taught.labeled_files[row], int(taught.labels[row]), f"sorted as {self.names[taught.labels[row]]}", True
            )
            for row in sorted_rows
        ]
        for row in taught.sample[pile_rows]:
            number, chance = int(pile.predicted[row]), 100 * pile.confidence[row]
            words = f"pile: {self.names[number]} {chance:.0f} %; OOD score {pile.scores[row]:.2f}"
            points.append(Point(pile.where[row], NONE if pile.outside[row] else number, words, False, small=True))
        return Map(embed(features), points, "unknown")

    def confusions(self) -> list[tuple[str, np.ndarray]]:
        """Of the held-out photos and of the test photos."""
        parts = {"Sorted photos, by a model that had not seen them": self.held_out, "Test photos": self.test}
        found = []
        for title, images in parts.items():
            if images is not None:
                known = images.truth != NONE
                matrix = confusion_matrix(images.truth[known], images.predicted[known], len(self.names))
                found.append((title, matrix))
        return found

    # Photos

    def galleries(self, other: View | None, name: str) -> list[Gallery]:
        limit = self.threshold
        unknown = "" if limit is None else f" Above {limit:.2f}, in a dashed frame, a photo counts as unknown."
        why = "the least unknown first. Their folder is named like none of the classes."
        found = [*class_galleries(self), *group_galleries(self), self._doubts()]
        if self.held_out is not None:
            of = " sorted photos, each tested with a model that had not seen it."
            found.append(mistakes(self.held_out, self.names, "Sorted photos it gets wrong", of))
        found += [
            mistakes(self.test, self.names, "Mistakes, test photos", "; the surest first."),
            accepted(self.test, self.names, "Unknown test photos that are accepted", why),
        ]
        note = f"Photos of the pile by OOD score.{unknown}"
        found += [by_score(self.pool, self.names, self.pool.outside, note, MOST_BY_SCORE)[0], nearly_let_in(self)]
        if isinstance(other, FittedView):
            found.append(disagreements(self.pool, self.names, other.tables.pile, other.names, name))
        return found

    def _doubts(self) -> Gallery:
        number = {name: place for place, name in enumerate(self.tables.names)}
        found = [
            Shot(doubt.file, number.get(doubt.label, 0), f"{printable(doubt.label)}: {printable(doubt.looks_like)}?")
            for doubt in self.tables.doubts[:MOST]
        ]
        why = "These look as if they were sorted into the wrong folder. If so, move the file and run osp fit again."
        return Gallery("Labels that look wrong", found, why)

    def looked(self, most: int) -> Looked:
        """A photo of each of the first classes and one or two unknown ones.

        Test photos where there are any, else photos of the pile: those that taught it would only be remembered.
        """
        found: list[tuple[str, str]] = []
        test, pool, taught = self.test, self.pool, self.tables
        near = np.argsort(pool.scores, kind="stable")
        for number in range(min(most - 2, len(self.names))):
            tested = [(test.where[row], self.names[number]) for row in np.flatnonzero(test.truth == number)]
            alike = [(pool.where[row], "of the pile") for row in near if pool.predicted[row] == number]
            sorted_as = [taught.labeled_files[row] for row in np.flatnonzero(taught.labels == number)]
            others = [*alike, *((file, self.names[number]) for file in sorted_as)]
            found += [each for each in (tested + others)[:3] if _there(each[0])][:1]
        strange = test.rows(np.flatnonzero(test.truth == NONE)) if (test.truth == NONE).any() else pool
        order = [row for row in np.argsort(-strange.scores, kind="stable") if strange.outside[row]]
        what = "unknown" if len(test) else "of the pile, unknown"
        found += [(strange.where[row], what) for row in order[:6] if _there(strange.where[row])][:2]
        if not found:
            raise UserError("the photos are no longer where they were.")
        files = [file for file, _ in found]
        images = [np.ascontiguousarray(decode(file, LOOKED_SIDE).transpose(1, 2, 0)) for file in files]
        captions = [caption for _, caption in found]
        return Looked(images, captions, lambda model: np.stack([decode(file, model.size) for file in files]))


def _there(file: str) -> bool:
    try:
        decode(file, 8)
    except (Unreadable, OSError, ValueError):
        return False
    return True


def _accepted(tested: dict[str, Any] | None) -> str:
    """How many test photos of either kind are accepted; nothing without unknown ones."""
    if not tested or not tested.get("foreign"):
        return ""
    counts = [(tested[f"{kind}_accepted"], tested[of]) for kind, of in (("foreign", "foreign"), ("known", "images"))]
    (unknown, strangers), (known, familiar) = [(round(share * count / 100), count) for share, count in counts]
    return (
        f" It accepts {unknown:,} of {strangers:,} unknown test photos, and {known:,} of the {familiar:,} known ones."
    )


def differences(view: FittedView, other: View, name: str) -> list[str]:
    """Why figures of two runs do not compare, where they do not."""
    found = []
    if set(view.names) != set(other.names):
        counts = f"{len(view.names)} in this run, {len(other.names)} in {name}"
        lacking = ", ".join(sorted(set(view.names) ^ set(other.names)))
        found.append(f"The classes differ ({counts}; not in both: {lacking}): the figures cannot be compared.")
    mine, theirs = set(view.test.where), set(other.test.where)
    if mine != theirs:
        both = len(mine & theirs)
        found.append(
            f"The test photos differ ({len(mine):,} in this run, {len(theirs):,} in {name}, {both:,} of them in both): "
            "their figures cannot be compared."
        )
    return found
