"""Write `requirements.lock` from the packages installed here: what osp, its tests and its release need, and no more.

python scripts/lock.py > requirements.lock
python scripts/lock.py --hashes > requirements.hashes

The second asks pip for the files it would install for the pins of requirements.lock, and writes what they must hash to.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HEAD = """\
# Exact versions of everything that `make` installs, for Python 3.11 on Linux. A list of constraints (`pip install -c`):
# which of them are installed is said in pyproject.toml; `make demo` needs half of them.
# Made by `python scripts/lock.py > requirements.lock` in an environment with `pip install -e '.[dev,release]'`.
# torch is pinned without the name of a build: pip takes the one your package index offers. For a certain build (CPU, a
# CUDA version) install torch 2.13.0 first, as pytorch.org tells, and then the rest: pip leaves that torch in place.
"""

HASHES_HEAD = """\
# The same pins with the SHA-256 of the files that pip takes for Python 3.11 on Linux (x86-64). Made by
# `python scripts/lock.py --hashes > requirements.hashes`. To install nothing else, into a fresh environment:
#   pip install torch==2.13.0 && pip install --no-deps --require-hashes -r requirements.hashes
# torch is left out: its file differs by build (CPU, CUDA), and which one there is depends on your package index.
"""

ROOT = Path(__file__).parents[1]


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


def pins() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    wanted = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    for extra in ("dev", "release"):
        wanted += project["project"]["optional-dependencies"][extra]
    found = sorted(f"{name}=={version}" for name, version in needed(wanted).items())
    assert not any(re.search(r"[@/\\]", pin) for pin in found), "a pin names a place"
    return found


def hashed(report: dict[str, Any]) -> list[str]:
    """Lines with hashes, from what pip says it would install; no address is kept."""
    lines = []
    for each in report["install"]:
        name, version = canonicalize_name(each["metadata"]["name"]), each["metadata"]["version"]
        digest = each["download_info"]["archive_info"]["hashes"]["sha256"]
        lines.append(f"{name}=={version} --hash=sha256:{digest}")
    return sorted(lines)


def ask_pip() -> dict[str, Any]:
    """What pip would install for the pins of requirements.lock, torch aside; nothing is installed."""
    lock = (ROOT / "requirements.lock").read_text("utf-8").splitlines()
    wanted = [line for line in lock if line and not line.startswith(("#", "torch=="))]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "pins.txt").write_text("\n".join(wanted), "utf-8")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps", "--ignore-installed"]
        command += ["--report", str(Path(folder, "report.json")), "-r", str(Path(folder, "pins.txt"))]
        subprocess.run(command, check=True, stdout=sys.stderr)
        report: dict[str, Any] = json.loads(Path(folder, "report.json").read_text("utf-8"))
    assert len(report["install"]) == len(wanted), "pip left some out"
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hashes", action="store_true", help="the pins of requirements.lock with hashes")
    if parser.parse_args().hashes:
        print(HASHES_HEAD + "\n".join(hashed(ask_pip())))
    else:
        print(HEAD + "\n".join(pins()))


if __name__ == "__main__":
    main()
