"""Which photographs there are: sorted into a folder per class, a pile, and perhaps some kept for testing."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from osp.data.folders import Found, check_folder, list_classes, seen_in, walk
from osp.data.source import Progress
from osp.errors import UserError, first_few, user_path
from osp.nets.pretrained import Backbone
from osp.photos.class_folders import OLD_UNKNOWN, UNKNOWN, UNSURE
from osp.photos.duplicates import Duplicates, Twins, find_duplicates
from osp.photos.features import Features, compute
from osp.photos.journal import JOURNAL
from osp.photos.labels import Label
from osp.photos.whereabouts import guesses_in

MARKS = "*?["
"""Of patterns."""
NO_CLASSES = (UNKNOWN, OLD_UNKNOWN, UNSURE)
"""Folders that `osp sort` makes beside those of the classes."""


@dataclass
class Listed:
    """Files of one kind, with their classes where they have one."""

    files: list[str] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    """-1 where the class is none of the known ones."""
    earlier: set[int] = field(default_factory=set)
    """Positions of those whose class comes from an earlier fit or a table: a folder says otherwise, and is right."""
    contents: dict[str, str] = field(default_factory=dict)
    """The checksums that some files had when they got their label."""
    notes: list[str] = field(default_factory=list)
    guesses: list[str] = field(default_factory=list)
    """Photos that `osp sort` has moved into folders of classes, and that stayed there: part of the pile."""
    nones: list[str] = field(default_factory=list)
    """Photos that a person has moved to the unknown ones of a sort: none of the classes."""
    grouped: set[str] = field(default_factory=set)
    """Files that got their class as members of a group of unknown photos that look alike."""

    def add(self, found: Found, label: int, root: Path) -> None:
        """The files found in one folder, and a sentence on what was passed over there."""
        self.files += [os.path.abspath(file.path) for file in found.files]
        self.labels += [label] * len(found.files)
        self.notes += found.notes(root)


def list_sorted(
    root: Path | None, earlier: Sequence[Label] = (), told: Sequence[Label] = (), least: int = 2
) -> tuple[Listed, tuple[str, ...]]:
    """The labeled photographs and the names of the classes: one folder per class, labels of an earlier fit, and those
    that a person `told` about single photos. Fewer than `least` classes are refused."""
    listed = Listed()
    found: dict[str, Found] = {}
    if root is not None:
        found = _list_folders(root, listed)
    old = [label for label in (*told, *earlier) if os.path.isfile(label.file)]
    classes = sorted({name for name, each in found.items() if each.files} | {label.name for label in old})
    for name, each in found.items():
        if each.files:
            listed.add(each, classes.index(name), Path(root or "", name))
        else:
            listed.notes.append(f"The folder {Path(root or '', name)} has no image in it and makes no class.")
    there = set(listed.files)
    for label in old:
        if label.file not in there:
            there.add(label.file)
            listed.earlier.add(len(listed.files))
            listed.files.append(label.file)
            listed.labels.append(classes.index(label.name))
    listed.contents = {label.file: label.content for label in told}
    if gone := len(earlier) + len(told) - len(old):
        why = "Photos that you had labeled and that are no longer where they were (their labels are dropped)"
        listed.notes.append(f"{why}: {gone}.")
    where = "the labels" if root is None else root
    if not classes and least:
        if root is None:
            raise UserError("None of the labeled photos is where it was.")
        raise UserError(f"There is no sorted photo in {root}: it should hold one folder of images for each class.")
    if len(classes) < least:
        ours = root is not None and (root / JOURNAL).is_file()
        more = " Or add --from RUN, to learn from the labels of the run that sorted it, too." if ours else ""
        raise UserError(
            f"A classifier needs at least two classes, and {where} has one: {classes[0]!r}. Sort some photos of "
            f"another class into a folder beside it.{more}"
        )
    return listed, tuple(classes)


def _list_folders(root: Path, listed: Listed) -> dict[str, Found]:
    """The images of each class's folder; notes on what was passed over are added."""
    check_folder(root, "the folder of sorted photos")
    found, links = list_classes(root)
    if (root / JOURNAL).is_file():
        found = _labels_in(root, found, listed)
    if links:
        listed.notes.append(f"Linked folders in {root} that lead back into it were not followed ({first_few(links)}).")
    if loose := walk(root, deep=False).files:
        listed.notes.append(
            f"{len(loose)} photos lie in {root} itself, in no class's folder, and were left out. Put them into the "
            "folder of a class, or into the pile."
        )
    return found


def list_none(root: Path | None, told: Sequence[Label], others: Sequence[str] = ()) -> Listed:
    """Photographs that show none of the classes: those of a folder, and those a person said so of."""
    listed = Listed(list(others))
    if root is not None:
        check_folder(root, "--none")
        listed.add(walk(root), -1, root)
    listed.files = list(dict.fromkeys([*listed.files, *(each.file for each in told if os.path.isfile(each.file))]))
    listed.contents = {label.file: label.content for label in told}
    return listed


def _labels_in(root: Path, found: dict[str, Found], listed: Listed) -> dict[str, Found]:
    """What a person has put into the folders of a sort, by class; where the sort has put the rest is no label."""
    places, classes = guesses_in(root)
    unknown = {os.path.basename(path) for path in places if Path(path).relative_to(root.absolute()).parts[0] == UNKNOWN}
    labels: dict[str, Found] = {}
    guessed = 0
    for name, each in found.items():
        paths = {os.path.abspath(file.path): file for file in each.files}
        mine = {path: file for path, file in paths.items() if path not in places and name != UNSURE}
        guessed += len(paths) - len(mine)
        listed.guesses += [path for path in paths if path not in mine and places.get(path, "move") == "move"]
        if name in NO_CLASSES:
            listed.nones += mine
        elif mine:
            each.files = list(mine.values())
            listed.grouped.update(path for path in mine if os.path.basename(path) in unknown)
            labels[classes.get(name, name)] = each
    count = sum(len(each.files) for each in labels.values()) + len(listed.nones)
    if guessed and not count:
        raise UserError(
            f"{root} was made by osp sort: its folders hold guesses, and no photo in them was put there by you. Move "
            f"photos between them (wrong ones to their class or {UNKNOWN}, right ones out of {UNSURE}); then osp fit "
            "learns from those. Folders that you have checked photo by photo: copy them into a folder of your own, and "
            "fit on that."
        )
    listed.notes.append(
        f"{root} was made by osp sort: {count} photos that you have moved or added teach; {guessed} others in it are "
        "guesses, and belong to the pile."
    )
    return labels


def list_pile(root: Path | None, others: Sequence[str] = ()) -> Listed:
    """The unsorted photographs, at any depth, and others that lie elsewhere; none without a folder."""
    listed = Listed(list(others), [-1] * len(others))
    if root is not None:
        check_folder(root, "the pile")
        listed.add(walk(root), -1, root)
    return listed


def list_test(root: Path, classes: Sequence[str]) -> Listed:
    """Photographs for testing: folders named like classes, and others, which hold what belongs to none."""
    check_folder(root, "--test")
    listed = Listed()
    found, _ = list_classes(root)
    names, guessed = {name: name for name in found}, 0
    if (root / JOURNAL).is_file():
        found.pop(UNSURE, None)
        places, stands = guesses_in(root)
        names |= stands
        for each in found.values():
            mine = [file for file in each.files if os.path.abspath(file.path) not in places]
            guessed += len(each.files) - len(mine)
            each.files = mine
    for name, each in found.items():
        listed.add(each, classes.index(names[name]) if names[name] in classes else -1, root / name)
    unknown = [name for name, each in found.items() if names[name] not in classes and (each.files or not guessed)]
    said = (
        f" {guessed} photos that osp sort has put into folders there are guesses, and test nothing." if guessed else ""
    )
    if guessed:
        listed.notes.append(f"In {root}:{said}")
    if unknown:
        listed.notes.append(f"In {root}, these count as none of the classes: {', '.join(unknown)}.")
    if not any(label >= 0 for label in listed.labels):
        raise UserError(
            f"--test {root} has no folder with images named like one of the classes {', '.join(classes)}.{said}"
        )
    return listed


def image_files(given: Iterable[str], listed: Iterable[str] = ()) -> tuple[list[str], list[str]]:
    """Files as named, all images of folders, and what patterns match; `-` stands for the names in `listed`.

    A file that is not there stays in the list: its row will say so. Each file is there once. Beside them sentences on
    what was passed over in folders.
    """
    files: list[str] = []
    notes: list[str] = []
    for each in given:
        names = [line for line in (name.rstrip("\r\n") for name in listed) if line] if each == "-" else [each]
        for name in names:
            path = name if os.path.lexists(name) else str(user_path(name))
            matches = not os.path.lexists(path) and any(mark in path for mark in MARKS)
            for each_path in _matches(path) if matches else [path]:
                if not os.path.isdir(each_path):
                    files.append(each_path)
                    continue
                found = walk(each_path)
                files += [file.path for file in found.files]
                notes += found.notes(each_path)
    if not files:
        said = "".join(f" {note}" for note in notes)
        raise UserError(f"There is no image to look at. Name files, folders, patterns, or - for a list of names.{said}")
    return list(dict.fromkeys(files)), list(dict.fromkeys(notes))


def _matches(pattern: str) -> list[str]:
    found = sorted(glob.glob(pattern, recursive=True))
    if not found:
        raise UserError(f"Nothing matches {pattern!r}.")
    return found


def without_copies(test: Listed, learned: Sequence[Listed]) -> Listed:
    """Test photos, those left out whose bytes are among what was learned from."""
    copies = seen_in(test.files, [file for listed in learned for file in listed.files])
    left_out = set(copies)
    keep = [i for i in range(len(test.files)) if i not in left_out]
    if not any(test.labels[i] >= 0 for i in keep):
        raise UserError("All test photos of known classes are learned from, too: keep other photos for --test.")
    notes = list(test.notes)
    if copies:
        shown = first_few([test.files[i] for i in copies])
        notes.append(f"Left out of the test, because they are learned from, too: {len(copies)} ({shown}).")
    return Listed([test.files[i] for i in keep], [test.labels[i] for i in keep], notes=notes)


@dataclass(frozen=True)
class Photographs:
    """What is learned from: each image once, with its features."""

    classes: tuple[str, ...]
    labeled: Features
    labels: np.ndarray
    use: np.ndarray
    """Rows of `labeled` that teach."""
    grouped: np.ndarray
    """Of each labeled image whether it got its class as one of a group that looks alike."""
    pile: Features
    pile_use: np.ndarray
    """Rows of `pile` that teach."""
    test: Features
    test_labels: np.ndarray
    none: Features
    """Photos that are known to show none of the classes, each image once."""
    duplicates: Duplicates
    left_out: tuple[tuple[str, str], ...]
    """(file, reason)."""
    unreadable_pile: tuple[tuple[str, str], ...]
    """Those of them that lie in the pile."""
    notes: tuple[str, ...]

    @property
    def counts(self) -> np.ndarray:
        """Labeled images per class."""
        return np.bincount(self.labels[self.use], minlength=len(self.classes))


def read(
    sorted_files: Listed,
    classes: tuple[str, ...],
    pile_files: Listed,
    test_files: Listed,
    none_files: Listed,
    backbone: Backbone,
    progress: Progress | None = None,
) -> Photographs:
    """Features of all photographs, and which of them count: an image that is there several times counts once.

    A test image is not learned from, and an image with a class is not in the pile; the same image in two classes
    teaches neither. A class beats "none of the classes".
    """
    listed = (sorted_files, pile_files, test_files, none_files)
    counts = [len(each.files) for each in listed]
    everything = compute([file for each in listed for file in each.files], backbone, progress=progress)
    labeled, pile, test, none = (_part(everything, sum(counts[:i]), sum(counts[: i + 1])) for i in range(4))
    labels = np.array(sorted_files.labels, np.int64)[labeled.kept]
    found = find_duplicates(labeled, _part(everything, counts[0], sum(counts)))  # all others in one pass
    tests_end = len(pile) + len(test)
    tested: set[int] = set()
    tested_pile: set[int] = set()
    nones_pile: set[int] = set()
    left = {i for i in range(len(none)) if none_files.contents.get(none.files[i], none.keys[i]) != none.keys[i]}
    changed = {
        i
        for i, (file, key) in enumerate(zip(labeled.files, labeled.keys, strict=True))
        if int(labeled.kept[i]) in sorted_files.earlier and sorted_files.contents.get(file, key) != key
    }
    groups = []
    for group in found.groups:
        taught = tuple(i for i in group.labeled if i not in changed)
        of_pile = tuple(i for i in group.pile if i < len(pile))
        of_none = [i - tests_end for i in group.pile if i >= tests_end and i - tests_end not in left]
        if any(len(pile) <= i < tests_end for i in group.pile):
            tested.update(taught)
            tested_pile.update(of_pile)
            left.update(of_none)
        left.update(of_none if taught else of_none[1:])
        if of_none and not taught:
            nones_pile.update(of_pile)
        if len(taught) + len(of_pile) > 1:
            groups.append(Twins(taught, of_pile, group.exact))
    duplicates = Duplicates(tuple(groups), found.scenes)
    reasons = dict.fromkeys(tested, "it is a test image, too")
    reasons |= dict.fromkeys(changed, "it has changed since it was labeled")
    copies: dict[str, list[int]] = {}
    for i, key in enumerate(labeled.keys):
        copies.setdefault(key, []).append(i)
    exact = [(each, True) for each in copies.values()]
    for alike, same in (*exact, *((group.labeled, False) for group in duplicates.groups)):
        members = [i for i in alike if i not in reasons]
        members.sort(key=lambda i: (int(labeled.kept[i]) in sorted_files.earlier, i))
        new = [i for i in members if int(labeled.kept[i]) not in sorted_files.earlier] or members
        if len({int(labels[i]) for i in new}) == 1:
            others = [i for i in members[1:] if same or labels[i] == labels[members[0]]]
            reasons |= dict.fromkeys(others, f"the same image as {labeled.files[members[0]]}")
        elif same:
            reasons |= dict.fromkeys(members, "the same image lies in the folder of another class, too")
    use = np.array([i for i in range(len(labeled)) if i not in reasons], np.int64)
    once = duplicates.pile_once(len(pile))
    pile_use = once[~np.isin(once, list(tested_pile | nones_pile))]
    left_out = [*everything.unreadable, *((labeled.files[i], reason) for i, reason in sorted(reasons.items()))]
    notes = [note for each in listed for note in each.notes]
    in_pile = set(pile_files.files)
    if everything.unreadable:
        shown = first_few([f"{file}: {reason}" for file, reason in everything.unreadable])
        notes.append(f"Left out, because they cannot be read as images: {len(everything.unreadable)} ({shown}).")
    if reasons:
        shown = first_few([f"{labeled.files[i]}: {reason}" for i, reason in sorted(reasons.items())])
        notes.append(f"Left out of the sorted photos: {len(reasons)} ({shown}).")
    if duplicates.in_both:
        notes.append(f"Sorted photos that also lie in the pile, and count once: {len(duplicates.in_both)}.")
    if again := sum(len(group.pile) - 1 for group in duplicates.groups if not group.labeled):
        notes.append(f"Photos that are in the pile several times, and count once: {again} fewer.")
    if found.scenes:
        shown = (
            "one scene (a fixed camera?)" if len(found.scenes) == 1 else f"{len(found.scenes)} scenes (fixed cameras?)"
        )
        notes.append(f"{sum(found.scenes):,} photos show {shown}: each counts.")
    _check_classes(classes, labels[use], left_out)
    return Photographs(
        classes,
        labeled,
        labels,
        use,
        np.array([file in sorted_files.grouped for file in labeled.files], bool),
        pile,
        pile_use,
        test,
        np.array(test_files.labels, np.int64)[test.kept],
        _chosen(none, np.array([i for i in range(len(none)) if i not in left], np.int64)),
        duplicates,
        tuple(left_out),
        tuple(each for each in everything.unreadable if each[0] in in_pile),
        tuple(notes),
    )


def _part(features: Features, start: int, end: int) -> Features:
    """Those of the files from `start` to before `end`, with positions counted from there."""
    return _chosen(features, np.flatnonzero((features.kept >= start) & (features.kept < end)), start)


def _chosen(features: Features, chosen: np.ndarray, start: int = 0) -> Features:
    return Features(
        tuple(features.files[i] for i in chosen),
        tuple(features.keys[i] for i in chosen),
        features.kept[chosen] - start,
        (),
        {view: (records, places[chosen]) for view, (records, places) in features.stored.items()},
    )


def _check_classes(classes: Sequence[str], labels: np.ndarray, left_out: Sequence[tuple[str, str]]) -> None:
    for number, name in enumerate(classes):
        if not (labels == number).any():
            why = next((f" ({file}: {reason})" for file, reason in left_out if Path(file).parent.name == name), "")
            raise UserError(
                f"The class {name!r} has no photo that can be used{why}. Put some into its folder, or take it away."
            )
