"""How many photos of a pile that are let in as a class are probably right, and how many show none of the classes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from osp.models.model import Model, Prediction
from osp.models.photo import PhotoModel
from osp.runs.schema import LetIn


def any_suspected(model: Model) -> bool:
    """Whether anything shows that the pile of a fit held unknown photos; nothing is known of other models' piles."""
    belonging = model.instant.belonging if isinstance(model, PhotoModel) else None
    return belonging is None or belonging.high < 1


def let_in(said: Iterable[Prediction], classes: Sequence[str]) -> dict[str, LetIn]:
    """Of each class the photos let in, and the sums of their chances to be right and to show none of the classes.

    >>> cats = [Prediction(file, "cat", 0.9, inside=True, belongs=0.7) for file in ("a", "b", "c")]
    >>> let_in([*cats, Prediction("d", "dog", 0.9, belongs=0.1)], ["cat", "dog"])
    {'cat': LetIn(let_in=3, right=2, strangers=1), 'dog': LetIn(let_in=0, right=0, strangers=0)}
    """
    sums = {name: [0, 0.0, 0.0] for name in classes}
    for each in said:
        if each.inside and not each.reason:
            belongs = 1.0 if each.belongs is None else each.belongs
            for place, more in enumerate((1, each.sure, 1 - belongs)):
                sums[each.label][place] += more
    return {name: LetIn(int(count), round(right), round(others)) for name, (count, right, others) in sums.items()}
