"""Commands in this process: one of its own would spend seconds importing torch."""

from __future__ import annotations

import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from io import BytesIO, TextIOWrapper
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch

from osp import cli


def osp(folder: Path, *arguments: object, **variables: str | None) -> CompletedProcess[str]:
    """`osp ARGUMENTS` in this folder, with its exit code and what it said; an unforeseen error is raised here.

    `variables` are those of the environment to set, or to take out if None. All is as before afterwards.
    """
    words = ["osp", *map(str, arguments)]
    streams = BytesIO(), BytesIO()
    said, complained = (TextIOWrapper(each, encoding="utf-8", write_through=True) for each in streams)
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(said), redirect_stderr(complained):
        patch.chdir(folder)
        patch.setattr(sys, "argv", words)
        patch.setattr(warnings, "showwarning", warnings.showwarning)  # put back, because the command has its own
        for name, value in variables.items():
            if value is None:
                patch.delenv(name, raising=False)
            else:
                patch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            cli.main()
    torch.set_num_threads(threads)
    stdout, stderr = (each.getvalue().decode("utf-8") for each in streams)
    return CompletedProcess(words, int(ended.value.code or 0), stdout, stderr)
