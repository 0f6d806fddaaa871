"""Digits are scikit-learn's own, read without importing it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from osp.data.sources import digits


@pytest.mark.parametrize("file", [True, False])
def test_they_are_those_of_scikit_learn_with_or_without_its_file(file: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not file:
        monkeypatch.setattr(Path, "is_file", lambda self: False)
    pixels, labels = digits.read()
    theirs, their_labels = load_digits(return_X_y=True)
    assert np.array_equal(pixels, theirs)
    assert np.array_equal(labels, their_labels)


def test_they_are_read_without_importing_scikit_learn() -> None:
    code = "import sys, osp\nassert len(osp.data.load('digits')[0].images) == 1201\nassert 'sklearn' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
