"""schemathesis against a running `osp serve`: does it answer as its OpenAPI description says?

schemathesis needs an environment of its own, as it is none of osp's packages:

python -m venv elsewhere && elsewhere/bin/pip install schemathesis
PATH=$PATH:elsewhere/bin python -m torture http
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from osp.engine.train import train
from torture.load import serving
from torture.works import recipe

KINDS = ("jpeg", "png", "webp", "gif", "bmp", "tiff")


def cases(base: Path, examples: int) -> Iterator[tuple[str, Callable[[], str]]]:
    """One, or none where schemathesis is not there."""
    if shutil.which("schemathesis") is None:
        print("schemathesis is not there (pip install schemathesis, in an environment of its own): left out")
        return
    yield f"schemathesis, {examples} examples each", lambda: asked(base, examples)


def asked(base: Path, examples: int) -> str:
    """What schemathesis complains of. Whether bytes are an image only a decoder can tell, so that a refusal of a body
    that fits the description (`positive_data_acceptance`) is no fault."""
    pictures = base / "pictures"
    pictures.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    for kind in KINDS:
        content = io.BytesIO()
        Image.fromarray(pixels).save(content, kind)
        (pictures / kind).write_bytes(content.getvalue())
    train(recipe("supervised", 4), base / "run")
    with serving(base / "run") as (port, _):
        command = ["schemathesis", "run", f"http://127.0.0.1:{port}/openapi.json", "--no-color", "--checks", "all"]
        command += ["--exclude-checks", "positive_data_acceptance", "--max-examples", str(examples)]
        hooks = {"SCHEMATHESIS_HOOKS": "torture_pictures", "TORTURE_PICTURES": str(pictures)}
        path = {"PYTHONPATH": str(Path(__file__).parent / "hooks")}
        done = subprocess.run(
            command, cwd=base, capture_output=True, text=True, check=False, env={**os.environ, **hooks, **path}
        )
    (base / "said.txt").write_text(done.stdout + done.stderr, "utf-8")
    told = re.search(r"^ *([\d,]+ generated.*)$", done.stdout, re.MULTILINE)
    print(f"  schemathesis: {told[1] if told else 'no count'}")
    return "" if done.returncode == 0 and told else (done.stdout + done.stderr)[-1500:]
