"""`osp label` as a process of its own, with a backbone that takes no time."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

START = """
import sys
from helpers.small_backbone import small_backbone
from osp import cli
from osp.models.photo import BACKBONES
BACKBONES["lite0"] = BACKBONES["tiles"] = small_backbone
sys.argv = ["osp", *sys.argv[1:]]
cli.main()
"""


def make_pile(folder: Path, count: int) -> None:
    """Photos of three colors; the number of a photo, modulo 3, is that of its color."""
    folder.mkdir(parents=True)
    for number in range(count):
        color = np.eye(3)[number % 3] * 160 + 40
        coarse = np.random.default_rng(number).normal(size=(5, 6, 3)).repeat(8, 0).repeat(8, 1) * 30
        Image.fromarray(np.clip(color + coarse, 0, 255).astype(np.uint8)).save(folder / f"{number}.png")


@dataclass(frozen=True)
class Started:
    """A running server."""

    process: subprocess.Popen[str]
    address: str

    @property
    def port(self) -> int:
        return int(self.address.split(":")[2].partition("/")[0])

    @property
    def token(self) -> str:
        return self.address.partition("token=")[2]

    def ask(self, path: str, body: dict[str, Any] | None = None, timeout: float = 60.0) -> tuple[int, bytes]:
        """Status and content; OSError or HTTPException where the server is gone."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            kind = {"Content-Type": "application/json", "Cookie": f"osp-label-{self.port}={self.token}"}
            content = None if body is None else json.dumps(body)
            connection.request("GET" if content is None else "POST", path, content, kind)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


def start(folder: Path) -> Started:
    """`osp label pile --out run` in this folder."""
    words = [sys.executable, "-c", START, "label", "pile", "--out", "run", "--no-open"]
    paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OSP_CACHE": str(folder / "cache"), "PYTHONPATH": paths}
    process = subprocess.Popen(words, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=\S+\n", line), line
    return Started(process, line.strip())
