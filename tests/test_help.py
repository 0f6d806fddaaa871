"""`help()` of what users call says what goes in, what comes out and what is raised, and shows an example that runs."""

from __future__ import annotations

import inspect
import pydoc

import pytest

import osp
from osp.methods import Method

CALLED = [osp.train, osp.load, osp.fit, osp.Recipe, osp.Run, osp.Predictor, osp.RobustClassifier, Method]


@pytest.mark.parametrize("called", CALLED, ids=lambda each: each.__name__)
def test_help_has_an_example(called: object) -> None:
    assert ">>> " in (inspect.getdoc(called) or "")  # run by --doctest-modules


@pytest.mark.parametrize("function", [osp.train, osp.load, osp.fit], ids=lambda each: each.__name__)
def test_help_names_every_argument_and_what_comes_back_and_what_is_raised(function: object) -> None:
    text = inspect.getdoc(function) or ""
    assert callable(function)
    arguments, returned, raised = (text.index(f"{each}\n---") for each in ("Parameters", "Returns", "Raises"))
    assert arguments < returned < raised
    explained = text[arguments:returned].replace(",", " ").split()
    assert set(inspect.signature(function).parameters) <= set(explained)
    assert "UserError" in text[raised:]


def test_help_of_the_recipe_describes_every_field() -> None:
    shown = pydoc.plain(pydoc.render_doc(osp.Recipe))
    for name, field in osp.Recipe.model_fields.items():
        assert field.description
        assert f"{name} : {field.description}" in shown
