"""Read a pickle of plain values and numpy arrays, and nothing else: a data file from a stranger must not run code.

The reader is Python's own in its Python form, with its table of instructions cut down and watched: the fast form in C
lets ten bytes of a file reserve gigabytes (for a memo of 2^28 places), and hashes whatever a file offers as a key. A
batch of CIFAR has few instructions beside its pixels, so that reading it takes no longer to speak of.
"""

from __future__ import annotations

import math
import os
import pickle
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np

from osp.errors import UserError


class _DType:
    """Stands in for numpy's dtype, whose state may not come from a file: wrong flags in it break numpy's memory."""

    def __init__(self, kind: Any, *_: object) -> None:
        name = kind.decode("latin1") if isinstance(kind, bytes) else kind
        if not isinstance(name, str) or not re.fullmatch(r"[<>|=]?[buif][1248]", name):
            raise pickle.UnpicklingError(f"an array of type {_shown(name)}")
        self.real: np.dtype[Any] = np.dtype(name)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Of all there is, only the order of bytes counts."""
        if not isinstance(state, tuple) or len(state) < 2:
            raise pickle.UnpicklingError("a type of numbers without its byte order")
        order = state[1].decode("latin1") if isinstance(state[1], bytes) else state[1]
        if order not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError(f"the byte order {_shown(order)}")
        self.real = np.dtype(order + self.real.str[1:])


class _Array(np.ndarray[Any, Any]):
    """An array filled from a file only with as many bytes as its shape and type need."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise pickle.UnpicklingError("an array without its shape")
        _, shape, dtype, fortran, raw = state
        if not isinstance(dtype, _DType) or not isinstance(raw, bytes):
            raise pickle.UnpicklingError("an array of something else than numbers")
        if len(raw) != math.prod(_shape(shape)) * dtype.real.itemsize:
            raise pickle.UnpicklingError("an array whose bytes do not fit its shape")
        super().__setstate__((1, shape, dtype.real, bool(fortran), raw))  # type: ignore[arg-type]


def _shape(shape: Any) -> tuple[int, ...]:
    sides = shape if isinstance(shape, tuple) and len(shape) <= MOST_DIMENSIONS else (None,)
    if not all(isinstance(side, int) and 0 <= side < 2**40 for side in sides):
        raise pickle.UnpicklingError("an array of an odd shape")
    return shape  # type: ignore[no-any-return]


def _shown(value: object) -> str:
    """A value for a message: only text and bytes are spelled out, for anything else could be of any size."""
    return repr(value[:40]) if isinstance(value, str | bytes) else f"a {type(value).__name__}"


MOST_DIMENSIONS = 8


_NDARRAY = object()
"""Only ever handed to `_reconstruct`: numpy's own class could be called with anything."""


def _reconstruct(subtype: object, shape: tuple[int, ...], _kind: object) -> np.ndarray:
    """numpy's own calls this with an empty shape; a large one would only serve to eat memory."""
    if subtype is not _NDARRAY or not isinstance(shape, tuple) or len(shape) != 1 or shape[0] != 0:
        raise pickle.UnpicklingError("an array of an unusual kind")
    return _Array((0,), np.int8)


def _frombuffer(buffer: bytes, dtype: _DType, shape: tuple[int, ...], order: str, *_: object) -> np.ndarray:
    if not isinstance(dtype, _DType) or not isinstance(buffer, bytes | bytearray):
        raise pickle.UnpicklingError("an array of something else than numbers")
    flat = np.frombuffer(buffer, dtype=dtype.real)
    return flat.reshape(_shape(shape), order="F" if order == "F" else "C")


def _encode(text: str, encoding: str = "latin1") -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1", "utf-8", "ascii"):
        raise pickle.UnpicklingError(f"the encoding {_shown(encoding)}")
    return text.encode(encoding)


def _bytes(value: bytes | bytearray = b"") -> bytes:
    if not isinstance(value, bytes | bytearray):
        raise pickle.UnpicklingError("bytes made from something else")
    return bytes(value)


def _ordered(pairs: Any = ()) -> OrderedDict[Any, Any]:
    """An ordered table; Python 2 gives its pairs to the call."""
    if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        raise pickle.UnpicklingError("a table of something else than pairs")
    _check_keys([pair[0] for pair in pairs])
    return OrderedDict(pairs)


def _check_keys(keys: list[Any]) -> None:
    """Only what is hashed in no time: a tuple of tuples, a million deep, ends the process when it is hashed."""
    if not all(type(key) in (str, bytes, int) for key in keys):
        raise pickle.UnpicklingError("a key that is neither text nor a number")


_ADMITTED: dict[tuple[str, str], object] = {
    ("_codecs", "encode"): _encode,
    ("collections", "OrderedDict"): _ordered,
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _DType,
}
for _core in ("numpy.core", "numpy._core"):  # before and after numpy 2
    _ADMITTED[_core + ".multiarray", "_reconstruct"] = _reconstruct
    _ADMITTED[_core + ".numeric", "_frombuffer"] = _frombuffer
for _builtins in ("builtins", "__builtin__"):  # Python 3 and 2
    _ADMITTED[_builtins, "bytes"] = _bytes
    _ADMITTED[_builtins, "bytearray"] = _bytes


_USUAL: dict[int, Callable[[Any], None]] = dict(pickle._Unpickler.dispatch)


class _Unpickler(pickle._Unpickler):
    """Python's reader with its instructions watched: no state but an array's, no key but text and numbers, no container
    twice, and no more bytes made than the file has."""

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(_USUAL)
    stack: list[Any]

    def __init__(self, file: IO[bytes]) -> None:
        self._left = os.fstat(file.fileno()).st_size
        self._budget = 2 * self._left + 2**20
        self._file = file
        super().__init__(self, encoding="bytes")

    def read(self, count: int) -> bytes:
        """As many bytes as there are, never room for more."""
        if not 0 <= count <= self._left:
            raise EOFError
        self._left -= count
        return self._file.read(count)

    def readline(self) -> bytes:
        line = self._file.readline(1 << 20)
        self._left -= len(line)
        return line

    def readinto(self, _buffer: object) -> int:
        raise pickle.UnpicklingError("a buffer from elsewhere")

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ADMITTED[module, name]
        except (KeyError, TypeError):
            raise pickle.UnpicklingError(
                f"{str(module)[:80]}.{str(name)[:80]}, which has no place in a data file"
            ) from None

    def check_call(self) -> None:
        if not any(self.stack[-2] is each for each in _ADMITTED.values()):
            raise pickle.UnpicklingError("a call of something that is no function")

    def check_state(self) -> None:
        if not isinstance(self.stack[-2], _DType | _Array):
            raise pickle.UnpicklingError(f"a state for a {type(self.stack[-2]).__name__}")

    def count_made(self) -> None:
        """Count the bytes of what a call has made: calls of one long text, many times over, could fill the memory."""
        value = self.stack[-1]
        self._budget -= len(value) if isinstance(value, bytes) else getattr(value, "nbytes", 0)
        if self._budget < 0:
            raise pickle.UnpicklingError("more bytes than the file can hold")

    def check_seen(self) -> None:
        """A value seen before is no container: 40 lists, each twice in the next, are 10^12."""
        if isinstance(self.stack[-1], tuple | list | dict):
            raise pickle.UnpicklingError("a list or table that is used twice")

    def refuse(self) -> None:
        raise pickle.UnpicklingError("an instruction that has no place in a data file")


Check = Callable[[_Unpickler], None]


def _watch(codes: Sequence[bytes], before: Check = lambda _: None, after: Check = lambda _: None) -> None:
    for code in codes:

        def watched(reader: _Unpickler, usual: Callable[[Any], None] = _USUAL[code[0]]) -> None:
            before(reader)
            usual(reader)
            after(reader)

        _Unpickler.dispatch[code[0]] = watched


_watch([pickle.REDUCE], _Unpickler.check_call, _Unpickler.count_made)
_watch([pickle.BUILD], _Unpickler.check_state, _Unpickler.count_made)
_watch([pickle.SETITEM], lambda reader: _check_keys(reader.stack[-2:-1]))
_watch([pickle.SETITEMS, pickle.DICT], lambda reader: _check_keys(reader.stack[::2]))
_watch([pickle.GET, pickle.BINGET, pickle.LONG_BINGET], after=_Unpickler.check_seen)
for _code in (
    # these make objects in other ways than batches of images need
    *(pickle.INST, pickle.OBJ, pickle.NEWOBJ, pickle.NEWOBJ_EX, pickle.EXT1, pickle.EXT2, pickle.EXT4),
    *(pickle.PERSID, pickle.BINPERSID, pickle.NEXT_BUFFER, pickle.READONLY_BUFFER),
    *(pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET),
):
    _Unpickler.dispatch[_code[0]] = _Unpickler.refuse


def load_plain(path: Path) -> Any:
    """The value in a pickle of numbers, text, bytes, lists, dicts and arrays; keys and text of Python 2 come as bytes.

    Raises UserError for anything else (before it can run) and for a file that is cut short or no pickle at all.
    """
    try:
        with open(path, "rb") as file:
            return _Unpickler(file).load()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from None
    except MemoryError:
        raise UserError(f"{path} asks for more memory than there is: it is damaged. Fetch it again.") from None
    except Exception as error:  # a damaged pickle can fail with almost any exception
        if isinstance(error, EOFError) or "truncated" in str(error) or "Ran out of input" in str(error):
            raise UserError(f"{path} ends too early (it has {path.stat().st_size:,} bytes). Fetch it again.") from None
        raise UserError(
            f"{path} was refused: it is not the plain pickle it should be (found {str(error)[:300]}). "
            "Fetch it again from its publisher; nothing in it was run."
        ) from None
