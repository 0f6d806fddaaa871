"""The model card beside an exported file: what the model is for, how good it was found to be, and its limits."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from osp.errors import printable
from osp.runs.fitted import answer_of

NUMBERS = {
    "accuracy": "accuracy (%)",
    "auroc": "AUROC, known against unknown (%)",
    "fpr95": "unknown images accepted where 95 % of the known are (%)",
    "ece": "calibration error (%)",
}
"""Fields of result.json that a card shows, and their names there."""
NO_LIMIT = "There is no threshold: nothing is called unknown."
ASKED = ("method", "dataset", "data_variant", "labels_per_class", "ood_ratio", "scale", "steps", "seed", "classes")


def beside(path: Path) -> Path:
    """The card of an exported file."""
    return path.with_name(f"{path.name}.md")


def model_card(name: str, facts: Mapping[str, str], result: Mapping[str, Any]) -> str:
    """Markdown, from what the file says of itself and what its run found; numbers that nobody measured are left out."""
    classes = ", ".join(_code(each) for each in json.loads(facts["class_names"]))
    held_out = result["estimates"].get(answer_of(dict(result))) if result.get("estimates") else None
    by_score = (result.get("scores") or {}).get(facts["score"]) or {}  # of the score that the file has
    found, limit = held_out or {**result, **by_score}, float(facts["threshold"])  # of a fit: by cross-validation
    how, terms = facts["preprocessing"], printable(" ".join(facts["license"].split()))
    numbers = [f"| {text} | {found[key]:.1f} |" for key, text in NUMBERS.items() if isinstance(found.get(key), float)]
    made = [f"| {key} | {_listed(result[key])} |" for key in ASKED if result.get(key) not in (None, "", {}, [])]
    warned = [f"- {printable(each)}" for each in result.get("warnings") or []]
    return "\n".join(
        [
            f"# {_code(name)}",
            "",
            f"Says which class an image shows, and whether it belongs to none of them. Written by {facts['producer']}.",
            "",
            f"- **Classes**: {classes}",
            f"- **Input** `images`: {facts['input']}. {how[:1].upper()}{how[1:]}.",
            f"- **Output** `probabilities`, and `ood_score` ({facts['score']}; {facts['score_direction']}). "
            + (f"An image above {limit:.4g} looks unknown." if math.isfinite(limit) else NO_LIMIT),
            f"- **Backbone**: {_code(facts['backbone'])}. **License** of its weights: {terms}.",
            "",
            "## How good it is",
            "",
            *(
                [f"| {'by cross-validation' if held_out else 'on test images of its run'} | |", "|---|---|", *numbers]
                if numbers
                else ["Nothing was measured."]
            ),
            *warned,
            "",
            "## How it was made",
            "",
            *(["| | |", "|---|---|", *made] if made else ["Nothing is known of it."]),
            "",
            "## Limits",
            "",
            "It has seen few labels and knows no class but these. Numbers hold for images like those of its run:",
            "another camera, place or year may lower them. Kinds of unknown images that its pool did not hold are",
            "found less often. Look at samples before it decides anything that matters to somebody.",
            "",
        ]
    )


def _listed(value: object) -> str:
    """`cat` 12, `dog` 9; other values as they are."""
    if isinstance(value, Mapping):
        return ", ".join(f"{_code(each)} {printable(number)}" for each, number in value.items())
    return _code(value)


def _code(value: object) -> str:
    return f"`{printable(value).replace('`', chr(39))}`"
