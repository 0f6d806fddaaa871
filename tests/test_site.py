"""Pages of the documentation site that are made from the source say all that the source says.

That every link leads somewhere is checked by `make site`, which .ci/run runs.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import osp
from osp.methods import Options, available, get

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "scripts" / "site_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_method_has_its_formula_reference_and_options(pages: ModuleType) -> None:
    sections = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## )", "\n".join(pages.methods()), re.DOTALL | re.MULTILINE))
    for name in available():
        kind = get(name)
        module = inspect.getmodule(kind)
        assert module is not None
        formula = [line for line in (module.__doc__ or "").splitlines() if line.startswith("    ")]
        assert all(line in sections[name] for line in formula), name
        for option in kind.Options.model_fields.keys() - Options.model_fields.keys():
            assert f"| `{option}` |" in sections[name]


def test_scores_api_and_glossary_are_whole(pages: ModuleType) -> None:
    scores, api, glossary = ("\n".join(make()) for make in (pages.scores, pages.api, pages.glossary))
    assert [name for name in osp.scores.available() if f"## {name}\n" not in scores] == []
    assert [name for name in osp.__all__ if name != "__version__" and f"## osp.{name}\n" not in api] == []
    assert "| recipe |" in glossary


def test_docstrings_become_markdown(pages: ModuleType) -> None:
    def example() -> None:
        """Do it into runs/<name>, as `<a>` says.

        Parameters
        ----------
        one, two : what <goes> in.

        >>> 1 + 1
        2
        """

    made = pages.docstring(example)
    assert "runs/&lt;name>, as `<a>` says" in made
    assert "**Parameters**" in made
    assert "- `one, two`: what &lt;goes> in." in made
    assert "```pycon\n>>> 1 + 1\n2\n```" in made


def test_links_are_as_they_must_be_from_within(pages: ModuleType) -> None:
    text = (
        "[a](docs/photos.md#b) [c](CHANGELOG.md) [d](examples/README.md) [e](examples/x.ipynb) ![f](docs/images/f.png)"
    )
    assert pages.moved(text) == "[a](photos.md#b) [c](changelog.md) [d](examples.md) e ![f](images/f.png)"
    assert pages.on_page_markdown("[c](../SECURITY.md)") == "[c](security.md)"


def test_the_navigation_names_pages_that_there_are(pages: ModuleType) -> None:
    named = set(re.findall(r"[\w/-]+\.md", str(yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"])))
    there = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert named <= there | set(pages.GENERATED) | set(pages.COPIED)
    config = {"nav": [{"Start": ["start.md"]}]}
    pages.on_config(config)
    assert set(config["nav"][1]["More"]) == there - {"start.md"}
