"""Which classes are meant: by number, by name, or by a number written as text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from osp.data.imageset import ImageSet
from osp.errors import UserError, suggest


def resolve_classes(id_classes: Sequence[int | str] | None, train: ImageSet) -> list[int]:
    """The class numbers meant by numbers, names, or numbers written as text (`"3"`, where no class has that name)."""
    if train.labels is None or not len(train.labels) or int(np.max(train.labels)) < 0:
        where = Path(train.files[0]).parent if train.files else None
        hint = f" {where} has images but no folders of classes; perhaps its parent is meant." if where else ""
        raise UserError(f"id_classes: the images of {train.name} have no classes; a set with labels is needed.{hint}")
    names = train.class_names
    names = (*names, *map(str, range(len(names), int(np.max(train.labels)) + 1)))
    chosen = list(range(len(names))) if id_classes is None else class_numbers(id_classes, names, train.name)
    if len(chosen) < 2:
        said = f"{len(chosen)} given" if id_classes is not None else f"{train.name} has one class"
        raise UserError(f"id_classes: {said}, but a classifier needs at least 2 of {train.name}'s {len(names)}.")
    return chosen


def class_numbers(id_classes: Sequence[int | str], names: Sequence[str], set_name: str) -> list[int]:
    """The numbers of these classes, in the order given; one named twice is refused."""
    chosen = [_class_number(given, names, set_name) for given in id_classes]
    for position, number in enumerate(chosen):
        if number in chosen[:position]:
            raise UserError(f"id_classes: class {class_name(names, number)} is named twice; once is enough.")
    return chosen


def _class_number(given: int | str, names: Sequence[str], set_name: str) -> int:
    if isinstance(given, str):
        if names.count(given) > 1:
            numbers = [str(number) for number, name in enumerate(names) if name == given]
            raise UserError(f"id_classes: {given!r} is the name of classes {' and '.join(numbers)}; give the number.")
        if given in names:
            return names.index(given)
        if not given.strip().isdecimal():
            raise UserError(f"id_classes: {set_name} has no class {given!r}.{_suggest(given, names)}")
    number = int(given)
    if not 0 <= number < len(names):
        raise UserError(f"id_classes: {set_name} has no class {number}; its classes are 0 to {len(names) - 1}.")
    return number


def _suggest(word: str, names: Sequence[str]) -> str:
    hint = suggest(word, names)
    return hint if len(hint) < 400 else f" It has {len(names)} classes: {few_names(names)}."


def few_names(names: Sequence[str]) -> str:
    """A list of names that stays short."""
    return ", ".join(names) if len(names) <= 8 else f"{', '.join(names[:4])}, ..., {names[-1]}"


def class_name(names: Sequence[str], number: int) -> str:
    """A class's number and, where it has one, its name."""
    return f"{number} ({names[number]})" if number < len(names) and names[number] != str(number) else str(number)
