"""What a stranger may leave for others to run: modules named like those we import, and method files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

MODULES = ("numpy", "torch", "osp", "signal", "json", "multiprocessing")
METHOD = "from osp.methods.supervised import Supervised\n\n\nclass Mine(Supervised):\n    pass\n"


def trap(folder: Path) -> Path:
    """Put modules into a folder that leave a file when they are imported; the path of that file."""
    ran = folder / "ran"
    for name in MODULES:
        (folder / f"{name}.py").write_text(f"open({str(ran)!r}, 'a').write('{name}\\n')\nraise SystemExit(9)\n")
    return ran


def payload(path: Path) -> Path:
    """A method file that leaves a file when it is run, and is a good method; the path of what it leaves."""
    ran = path.with_suffix(".ran")
    path.write_text(f"open({str(ran)!r}, 'w')\n{METHOD}")
    return ran


def osp(cwd: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """The command `osp` in this folder, as the installed script starts it: the script's own folder is on the path."""
    script = cwd.parent / f"{cwd.name}-bin" / "osp"
    script.parent.mkdir(exist_ok=True)
    script.write_text("from osp.cli import main\n\nif __name__ == '__main__':\n    main()\n")
    command = [sys.executable, str(script), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, env=environment())


def environment() -> dict[str, str]:
    """Without what would keep the working folder off the path, or put it there."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
