"""Write `requirements.lock` from the packages installed here: what osp, its tests and its build need, and no more.

python scripts/lock.py > requirements.lock
"""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HEAD = """\
# Exact versions of everything `make demo`, `make test` and `make lint` use, for Python 3.11 on Linux.
# Made by `python scripts/lock.py > requirements.lock` in an environment with `pip install -e '.[dev]'`.
# torch is pinned without the name of a build: pip takes the one your package index offers. For a certain build (CPU, a
# CUDA version) install torch 2.13.0 first, as pytorch.org tells, and then this file: pip leaves that torch in place.
"""


def needed(requirements: list[str]) -> dict[str, str]:
    """Name and version of each installed package that the requirements ask for, directly or through others."""
    found: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        wanted = waiting.pop()
        key = (canonicalize_name(wanted.name), frozenset(wanted.extras))
        if key in seen:
            continue
        seen.add(key)
        try:
            package = distribution(wanted.name)
        except PackageNotFoundError:
            raise SystemExit(f"{wanted.name} is needed but not installed") from None
        found[key[0]] = package.version.split("+")[0]  # 2.13.0+cpu is 2.13.0: which build is the index's choice
        for text in package.requires or []:
            inner = Requirement(text)
            extras = wanted.extras or {""}
            if inner.marker is None or any(inner.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(inner)
    return found


def main() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))
    wanted = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    wanted += project["project"]["optional-dependencies"]["dev"]
    pins = sorted(f"{name}=={version}" for name, version in needed(wanted).items())
    assert not any(re.search(r"[@/\\]", pin) for pin in pins), "a pin names a place"
    print(HEAD + "\n".join(pins))


if __name__ == "__main__":
    main()
