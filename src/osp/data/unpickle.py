"""Read a pickle of plain values and numpy arrays, and nothing else: a data file from a stranger must not run code."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from osp.errors import UserError


def _reconstruct(subtype: type, shape: tuple[int, ...], _dtype: object) -> np.ndarray:
    """numpy's own calls this with an empty shape; a large one would only serve to eat memory."""
    if subtype is not np.ndarray or tuple(shape) != (0,):
        raise pickle.UnpicklingError("an array of an unusual kind")
    return np.ndarray((0,), np.int8)


def _frombuffer(buffer: bytes, dtype: np.dtype[Any], shape: tuple[int, ...], order: Any, *_: object) -> np.ndarray:
    return np.frombuffer(buffer, dtype=_dtype(dtype)).reshape(shape, order=order)


def _dtype(kind: Any, *_: object) -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.dtype(kind, align=False, copy=True)  # a copy: its state is set next
    if dtype.kind not in "buif":
        raise pickle.UnpicklingError(f"an array of type {dtype}")
    return dtype


def _encode(text: str, encoding: str = "latin1") -> bytes:
    if encoding not in ("latin1", "latin-1", "utf-8", "ascii"):
        raise pickle.UnpicklingError(f"the encoding {encoding!r}")
    return text.encode(encoding)


def _bytes(value: bytes | bytearray = b"") -> bytes:
    if not isinstance(value, bytes | bytearray):
        raise pickle.UnpicklingError("bytes made from something else")
    return bytes(value)


_ADMITTED: dict[tuple[str, str], Callable[..., Any]] = {
    ("_codecs", "encode"): _encode,
    ("collections", "OrderedDict"): OrderedDict,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _dtype,
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
