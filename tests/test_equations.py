"""A reader who knows the paper finds its fifteen equations by number, in the code and in docs/osp.md."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from osp.methods.osp import OSP
from osp.methods.t2t import T2T
from osp.parts import bank, orthogonality, pruning, rotation

DOCS = Path(__file__).parents[1] / "docs" / "osp.md"
OWNERS = {"T2T": T2T, "OSP": OSP, "OODBank": bank.OODBank}
FUNCTIONS: dict[int, Callable[..., Any]] = {
    1: T2T.partition,
    2: orthogonality.labeled_anchors,
    3: orthogonality.unlabeled_anchors,
    4: OSP.orthogonality_terms,
    5: OSP.feed_bank,
    6: bank.OODBank.sample,
    7: pruning.prune,
    8: pruning.prune,
    9: pruning.pruned_logits,
    10: orthogonality.labeled_orthogonality_loss,
    11: T2T.labeled_terms,
    12: rotation.rotation_loss,
    13: T2T.pretraining,
    14: T2T.t2t_terms,
    15: OSP.finetuning,
}


def says(function: Any, number: int) -> bool:
    return re.search(rf"Eq\. {number}\b", inspect.getdoc(function) or "") is not None


def table() -> list[tuple[str, str]]:
    """Rows of "Where each equation is": the equations and the code."""
    text = DOCS.read_text("utf-8").split("## Where each equation is")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")][2:]
    return [(row[0].strip(), row[2]) for row in rows]


def named(cell: str) -> list[Any]:
    """What a cell of the table names: functions of the file before them, or `Class.method`."""
    module, found = None, []
    for name in re.findall(r"`([^`]+)`", cell):
        if name.endswith(".py"):
            module = import_module("osp." + name.removesuffix(".py").replace("/", "."))
            continue
        owner, _, method = name.rpartition(".")
        found.append(getattr(OWNERS[owner] if owner else module, method))
    return found


@pytest.mark.parametrize("number", FUNCTIONS)
def test_the_docstring_of_the_function_says_which_equation_it_is(number: int) -> None:
    assert says(FUNCTIONS[number], number)


def test_the_table_of_the_docs_has_all_fifteen() -> None:
    numbers = [int(number) for equations, _ in table() for number in re.findall(r"\d+", equations)]
    assert numbers == list(range(1, 16))


@pytest.mark.parametrize(("equations", "cell"), table())
def test_the_table_of_the_docs_names_what_exists(equations: str, cell: str) -> None:
    functions = named(cell)
    assert functions
    for number in map(int, re.findall(r"\d+", equations)):
        assert FUNCTIONS[number] in functions
        assert [each for each in functions if says(each, number)]
