"""The card of an exported model says what its file and its run know, and nothing that was not measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from osp.models.card import beside, model_card

FACTS = {
    "class_names": json.dumps(["cat", "d`og\x1b"]),
    "threshold": "0.25",
    "score": "pool",
    "score_direction": "larger = more OOD",
    "input": "uint8 N x 8 x 8 x 1, grey, 0 to 255",
    "preprocessing": "with Pillow: resized",
    "backbone": "cnn",
    "license": "MIT",
    "producer": "osp 1",
}


def test_it_shows_numbers_limits_and_how_it_was_made() -> None:
    result = {"accuracy": 91.26, "auroc": None, "method": "osp", "steps": 400, "warnings": ["The pool did harm."]}
    card = model_card("model.onnx", FACTS, result)
    assert card.startswith("# `model.onnx`\n")
    assert "| accuracy (%) | 91.3 |" in card
    assert "AUROC" not in card
    assert "| steps | `400` |" in card
    assert "- The pool did harm." in card
    assert "above 0.25 looks unknown" in card
    assert "## Limits" in card
    assert "`cat`, `d'og\\x1b`" in card  # names are shown, never obeyed


def test_a_fit_shows_what_cross_validation_found_for_the_answer_that_was_kept() -> None:
    found = {"labels alone": {"accuracy": 80.0}, "labels and pile": {"accuracy": 90.0}}
    card = model_card("model.onnx", FACTS, {"kept": "labels and pile", "estimates": found, "classes": {"cat": 5}})
    assert "| by cross-validation | |" in card
    assert "| accuracy (%) | 90.0 |" in card
    assert "| classes | `cat` 5 |" in card


def test_sentences_of_the_file_are_written_as_they_are_on_one_line() -> None:
    card = model_card("m.onnx", {**FACTS, "preprocessing": "with Pillow: EXIF", "license": "Apache\n2.0"}, {})
    assert "With Pillow: EXIF." in card
    assert "Apache 2.0." in card


@pytest.mark.parametrize("result", [{}, {"accuracy": None, "classes": {}}])
def test_what_is_not_known_is_said(result: dict[str, object]) -> None:
    card = model_card("model.pt2", FACTS, result)
    assert "Nothing was measured." in card
    assert "Nothing is known of it." in card


def test_without_a_threshold_nothing_is_called_unknown() -> None:
    card = model_card("model.onnx", {**FACTS, "threshold": "inf"}, {})
    assert "There is no threshold: nothing is called unknown." in card
    assert "inf " not in card


def test_it_lies_beside_the_file() -> None:
    assert beside(Path("a/model.onnx")) == Path("a/model.onnx.md")


def test_the_quality_is_that_of_the_score_in_the_file() -> None:
    result = {"auroc": 93.3, "fpr95": 35.0, "scores": {"energy": {"auroc": 51.7, "fpr95": 99.2}}}
    card = model_card("model.onnx", {**FACTS, "score": "energy"}, result)
    assert "| 51.7 |" in card
    assert "| 99.2 |" in card
    assert "93.3" not in card


def test_a_fit_that_does_not_say_which_answer_it_keeps_shows_the_one_that_was_kept() -> None:
    found = {"labels alone": {"accuracy": 80.0}, "labels and pile": {"accuracy": 90.0}}
    assert "| accuracy (%) | 90.0 |" in model_card("model.onnx", FACTS, {"estimates": found, "answer": "instant"})
