"""Read a pickle of plain values and numpy arrays, and nothing else: a data file from a stranger must not run code."""

from __future__ import annotations

import math
import pickle
import re
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np

from osp.errors import UserError


class _DType:
    """Stands in for numpy's dtype, whose state may not come from a file: wrong flags in it break numpy's memory."""

    def __init__(self, kind: Any, *_: object) -> None:
        name = kind.decode("latin1") if isinstance(kind, bytes) else kind
        if not isinstance(name, str) or not re.fullmatch(r"[<>|=]?[buif][1248]", name):
            raise pickle.UnpicklingError(f"an array of type {name!r}")
        self.real: np.dtype[Any] = np.dtype(name)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Of all there is, only the order of bytes counts."""
        order = state[1].decode("latin1") if isinstance(state[1], bytes) else state[1]
        if order not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError(f"the byte order {order!r}")
        self.real = np.dtype(order + self.real.str[1:])


class _Array(np.ndarray[Any, Any]):
    """An array filled from a file only with as many bytes as its shape and type need."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, raw = state
        if not isinstance(dtype, _DType) or not isinstance(raw, bytes):
            raise pickle.UnpicklingError("an array of something else than numbers")
        if len(raw) != math.prod(_shape(shape)) * dtype.real.itemsize:
            raise pickle.UnpicklingError("an array whose bytes do not fit its shape")
        super().__setstate__((1, shape, dtype.real, bool(fortran), raw))  # type: ignore[arg-type]


def _shape(shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, tuple) or not all(isinstance(side, int) and side >= 0 for side in shape):
        raise pickle.UnpicklingError(f"an array of shape {shape!r}")
    return shape


_NDARRAY = object()
"""Only ever handed to `_reconstruct`: numpy's own class could be called with anything."""


def _reconstruct(subtype: object, shape: tuple[int, ...], _kind: object) -> np.ndarray:
    """numpy's own calls this with an empty shape; a large one would only serve to eat memory."""
    if subtype is not _NDARRAY or tuple(shape) != (0,):
        raise pickle.UnpicklingError("an array of an unusual kind")
    return _Array((0,), np.int8)


def _frombuffer(buffer: bytes, dtype: _DType, shape: tuple[int, ...], order: str, *_: object) -> np.ndarray:
    flat = np.frombuffer(buffer, dtype=dtype.real)
    return flat.reshape(_shape(shape), order="F" if order == "F" else "C")


def _encode(text: str, encoding: str = "latin1") -> bytes:
    if encoding not in ("latin1", "latin-1", "utf-8", "ascii"):
        raise pickle.UnpicklingError(f"the encoding {encoding!r}")
    return text.encode(encoding)


def _bytes(value: bytes | bytearray = b"") -> bytes:
    if not isinstance(value, bytes | bytearray):
        raise pickle.UnpicklingError("bytes made from something else")
    return bytes(value)


_ADMITTED: dict[tuple[str, str], object] = {
    ("_codecs", "encode"): _encode,
    ("collections", "OrderedDict"): OrderedDict,
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _DType,
}
for _core in ("numpy.core", "numpy._core"):  # before and after numpy 2
    _ADMITTED[_core + ".multiarray", "_reconstruct"] = _reconstruct
    _ADMITTED[_core + ".numeric", "_frombuffer"] = _frombuffer
for _builtins in ("builtins", "__builtin__"):  # Python 3 and 2
    _ADMITTED[_builtins, "bytes"] = _bytes
    _ADMITTED[_builtins, "bytearray"] = _bytes


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name}, which has no place in a data file") from None


def load_plain(path: Path) -> Any:
    """The value in a pickle of numbers, text, bytes, lists, dicts and arrays; keys and text of Python 2 come as bytes.

    Raises UserError for anything else (before it can run) and for a file that is cut short or no pickle at all.
    """
    try:
        with open(path, "rb") as file:
            return _Unpickler(file, encoding="bytes").load()
    except EOFError:
        raise UserError(f"{path} ends too early (it has {path.stat().st_size:,} bytes). Fetch it again.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from None
    except MemoryError:
        raise UserError(f"{path} asks for more memory than there is: it is damaged. Fetch it again.") from None
    except Exception as error:  # a damaged pickle can fail with almost any exception
        if "truncated" in str(error) or "Ran out of input" in str(error):
            raise UserError(f"{path} ends too early (it has {path.stat().st_size:,} bytes). Fetch it again.") from None
        raise UserError(
            f"{path} was refused: it is not the plain pickle it should be (found {error}). "
            "Fetch it again from its publisher; nothing in it was run."
        ) from None
