"""Pages of the documentation site that are made from the source: `mkdocs.yml` names this file as its hook.

Methods, OOD scores and the API come from their docstrings, the start page from README.md, the glossary from
CONTRIBUTING.md, so that each text is written once.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
COPIED = {
    "index.md": "README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
    "maintaining.md": "MAINTAINING.md",
    "conduct.md": "CODE_OF_CONDUCT.md",
    "examples.md": "examples/README.md",
}
"""Files beside docs/ that are pages of the site."""


# Text


def docstring(of: object) -> str:
    """A docstring as Markdown: headings of sections, their entries as a list, examples as code."""
    lines = (inspect.getdoc(of) or "").splitlines()
    made: list[str] = []
    within = ""
    for number, line in enumerate(lines):
        following = lines[number + 1] if number + 1 < len(lines) else ""
        if re.fullmatch(r"-{3,}", line):
            continue
        if re.fullmatch(r"-{3,}", following):
            made += ["", f"**{line}**", ""]
            within = "entries"
        elif line.startswith(">>>"):
            if within != "example":
                made += ["", "```pycon"]
            within = "example"
            made.append(line)
        elif within == "example":
            if not line:
                made += ["```", ""]
                within = ""
            else:
                made.append(line)
        elif within == "entries" and (entry := re.match(r"([\w., *]+?) : (.*)", line)):
            made.append(f"- `{entry[1]}`: {shown(entry[2])}")
        else:
            made.append(line if line.startswith("    ") else shown(line))
    if within == "example":
        made.append("```")
    return "\n".join(made) + "\n"


def shown(line: str) -> str:
    """A line in which `<` is no tag, outside code."""
    parts = line.split("`")
    parts[::2] = [each.replace("<", "&lt;") for each in parts[::2]]
    return "`".join(parts)


def cell(value: object) -> str:
    """Text for a cell of a table."""
    return str(value).replace("|", "\\|").replace("\n", " ")


# Pages


def methods() -> Iterator[str]:
    """Every method: what it does, its formula, its source, its options."""
    from osp.methods import Options, available, get

    yield "# Methods\n"
    yield "What each method does, its loss, where it comes from and what can be set. `osp methods NAME` says the same."
    yield "How they compare: [comparison](../comparison.md). How to write one: [a method of your own](../methods.md).\n"
    yield "| name | in one line | reference |\n|---|---|---|"
    kinds = {name: get(name) for name in available()}
    for name, kind in kinds.items():
        yield f"| [`{name}`](#{name}) | {cell(kind.summary)} | {cell(kind.reference or 'the labels alone')} |"
    for name, kind in kinds.items():
        yield f"\n## {name}\n"
        yield docstring(inspect.getmodule(kind))
        own = {key: field for key, field in kind.Options.model_fields.items() if key not in Options.model_fields}
        if own:
            yield "\n| option | default | published | meaning |\n|---|---|---|---|"
        for key, field in own.items():
            said = kind.paper.get(key)
            published = "" if said is None else f"`{said.value}`"
            yield f"| `{key}` | `{cell(field.default)}` | {cell(published)} | {cell(field.description)} |"
    yield "\n## Options of all methods\n\n| option | default | meaning |\n|---|---|---|"
    for key, field in Options.model_fields.items():
        yield f"| `{key}` | `{cell(field.default)}` | {cell(field.description)} |"


def scores() -> Iterator[str]:
    """Every OOD score that any network has."""
    from osp.scores.registry import available, get

    yield "# OOD scores\n"
    yield "One number per image, larger = more unknown. Every run evaluates all of these; `--set score=NAME` reports"
    yield 'another, and `osp.load(run).ood_score(images, score="knn")` works after the fact.'
    yield "[Your own](../methods.md#scores) is one file.\n"
    for name in available():
        kind = get(name)
        yield f"## {name}\n\n{cell(kind.summary)}\n\n{docstring(inspect.getmodule(kind))}"


def api() -> Iterator[str]:
    """What users call from Python."""
    import osp
    from osp.methods import Method

    yield "# Python API\n"
    yield "`import osp` is quick: torch is loaded by what needs it. A mistake that you can fix is an `osp.UserError`.\n"
    for called in (osp.train, osp.fit, osp.load, osp.Recipe, osp.Run, osp.Predictor, osp.RobustClassifier, osp.Plan):
        yield from described(called, f"osp.{called.__name__}")
    yield from described(osp.UserError, "osp.UserError")
    yield from described(Method, "osp.methods.Method")
    for name in osp.parts.__all__:
        yield from described(getattr(osp.parts, name), f"osp.parts.{name}")


def described(called: Any, name: str) -> Iterator[str]:
    """Signature, docstring and public methods of what users call."""
    yield f"\n## {name}\n"
    if inspect.isfunction(called):
        yield f"```python\n{name}{signature(called)}\n```\n"
    yield docstring(called)
    if not inspect.isclass(called):
        return
    members = [(key, each) for key, each in vars(called).items() if not key.startswith(("_", "model_"))]
    told = [
        (key, each) for key, each in members if inspect.getdoc(each) and (callable(each) or isinstance(each, property))
    ]
    if told:
        yield "\n| member | what it does |\n|---|---|"
    for key, each in told:
        first = (inspect.getdoc(each) or "").partition("\n\n")[0]
        arguments = "" if isinstance(each, property) or inspect.isclass(each) else names_of(each)
        yield f"| `{key}{arguments}` | {cell(first)} |"


def signature(called: Callable[..., Any]) -> str:
    """Arguments with their types, one per line where they are many."""
    text = str(inspect.signature(called)).replace("'", "")
    return re.sub(r"(?<=\(), |, (?=\w+:|\*)", ",\n    ", text.replace("(", "(\n    ", 1)) if len(text) > 80 else text


def names_of(called: Any) -> str:
    """The names of the arguments."""
    try:
        return f"({', '.join(each for each in inspect.signature(called).parameters if each != 'self')})"
    except (TypeError, ValueError):
        return "()"


def glossary() -> Iterator[str]:
    """The words of this project, from CONTRIBUTING.md."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8").split("## Glossary")[1].split("\n## ")[0]
    yield f"# Glossary\n{text}"


GENERATED: dict[str, Callable[[], Iterator[str]]] = {
    "reference/methods.md": methods,
    "reference/scores.md": scores,
    "reference/api.md": api,
    "glossary.md": glossary,
}


# What mkdocs calls


def on_config(config: Any) -> Any:
    """Pages of docs/ that the navigation does not name stand at its end, so that none is lost."""
    named = set(re.findall(r"[\w/-]+\.md", str(config["nav"])))
    others = sorted(path.name for path in (ROOT / "docs").glob("*.md") if path.name not in named)
    if others:
        config["nav"].append({"More": others})
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made here."""
    from mkdocs.structure.files import File

    for name, make in GENERATED.items():
        files.append(File.generated(config, name, content="\n".join(make()) + "\n"))
    for name, origin in COPIED.items():
        if (ROOT / origin).exists():
            text = moved((ROOT / origin).read_text("utf-8"))
            files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links from docs/ to files beside it lead to the pages made of those."""
    for page, origin in COPIED.items():
        markdown = markdown.replace(f"](../{origin}", f"]({page}")
    return markdown


def moved(text: str) -> str:
    """Links of a file beside docs/ as they are from within; what is no page is only named."""
    text = text.replace("](docs/", "](")
    for page, origin in COPIED.items():
        text = text.replace(f"]({origin}", f"]({page}")
    return re.sub(r"(?<!!)\[([^]]*)\]\((?!https?:|#)([^)#]*?)(?<!\.md)(?<!\.png)(?<!\.jpg)/?\)", r"\1", text)
