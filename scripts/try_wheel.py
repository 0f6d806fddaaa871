"""Install a built wheel, and nothing else of the repository, into an empty environment, and use it as a newcomer would.

python scripts/try_wheel.py dist/osp-0.1.0-py3-none-any.whl --python python3.12

Versions are those of requirements.lock; which packages are installed is the wheel's own word.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LOCK = Path(__file__).parents[1] / "requirements.lock"

DRAW = """
import numpy as np
from pathlib import Path
from PIL import Image
for number, middle in enumerate([(200, 60, 40), (40, 80, 200), (60, 180, 60)]):
    for photo in range(8 if number < 2 else 4):
        folder = Path("photos", "red" if number == 0 else "blue") if number < 2 and photo < 4 else Path("unsorted")
        folder.mkdir(parents=True, exist_ok=True)
        coarse = np.random.default_rng([number, photo]).normal(size=(5, 6, 3)).repeat(32, 0).repeat(32, 1) * 30
        pixels = np.clip(np.array(middle) + coarse, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}-{photo}.jpg")
"""
"""Twenty photos: two classes with four each, and twelve unsorted, of which four are of neither class."""


def timed(what: str, *command: str | Path, cwd: Path) -> str:
    """What a command prints; it must succeed."""
    start = time.monotonic()
    done = subprocess.run([str(each) for each in command], cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{what} failed ({done.returncode}):\n{done.stdout}{done.stderr}")
    print(f"{time.monotonic() - start:6.1f} s  {what}", flush=True)
    return done.stdout


def use(python: Path | str, folder: Path, demo: bool = True) -> None:
    """The doors of the installed package, in a folder of their own."""
    run: list[str | Path] = [python, "-m", "osp"]
    print(timed("osp --version", *run, "--version", cwd=folder).strip())
    if demo:
        timed("osp demo", *run, "demo", cwd=folder)
    timed("twenty photos drawn", python, "-c", DRAW, cwd=folder)
    timed("osp fit", *run, "fit", "photos", "unsorted", "--out", "fitted", cwd=folder)
    timed("osp predict", *run, "predict", "fitted", "unsorted", cwd=folder)
    timed("osp report", *run, "report", "fitted", cwd=folder)
    timed("osp verify", *run, "verify", "fitted", cwd=folder)
    timed("osp bench list", *run, "bench", "list", cwd=folder)
    assert (folder / "fitted" / "report.html").stat().st_size > 10_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("wheel", type=Path, help="the wheel, or the folder that holds it")
    parser.add_argument("--python", default=sys.executable, help="which Python the environment is made with")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        timed("an empty environment", given.python, "-m", "venv", "env", cwd=folder)
        python = folder / "env" / ("Scripts" if sys.platform == "win32" else "bin") / "python"
        pip: list[str | Path] = [python, "-m", "pip", "--disable-pip-version-check"]
        wheel = given.wheel.resolve() if given.wheel.is_file() else next(given.wheel.resolve().glob("*.whl"))
        timed(f"pip install {wheel.name}", *pip, "install", "-c", LOCK, wheel, cwd=folder)
        count = len(timed("pip list", *pip, "list", "--format=freeze", cwd=folder).split())
        size = sum(path.stat().st_size for path in (folder / "env").rglob("*") if path.is_file())
        print(f"{count} packages with pip, {size / 2**20:,.0f} MB; the wheel {wheel.stat().st_size / 2**10:,.0f} KB")
        use(python, folder)


if __name__ == "__main__":
    main()
