"""Read a pickle of plain values and numpy arrays, and nothing else: a data file from a stranger must not run code.

The reader is Python's own in its Python form, with its table of instructions cut down and watched: the fast form in C
lets ten bytes of a file reserve gigabytes (for a memo of 2^28 places), and hashes whatever a file offers as a key. A
batch of CIFAR has few instructions beside its pixels, so that reading it takes no longer to speak of.
"""

from __future__ import annotations

import io
import math
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from osp.errors import UserError

LARGEST = 1 << 29  # bytes of a file: more than three times those of CIFAR-100
MOST_DIMENSIONS = 8

Refused = pickle.UnpicklingError


class _DType:
    """Stands in for numpy's dtype, whose state may not come from a file: wrong flags in it break numpy's memory."""

    def __init__(self, kind: Any, *_: object) -> None:
        if not re.fullmatch(r"[<>|=]?[buif][1248]", name := _text(kind)):
            raise Refused(f"an array of type {name[:40]!r}")
        self.real: np.dtype[Any] = np.dtype(name)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        """Of all there is, only the order of bytes counts."""
        self.real = self.real.newbyteorder(_text(state[1]))  # type: ignore[arg-type]  # or ValueError


class _Array(np.ndarray[Any, Any]):
    """An array filled from a file only with as many bytes as its shape and type need."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, raw = state
        real = _numbers(dtype, raw)
        if len(raw) != math.prod(_shape(shape)) * real.itemsize:
            raise Refused("an array whose bytes do not fit its shape")
        super().__setstate__((1, shape, real, bool(fortran), raw))  # type: ignore[arg-type]


def _text(value: object) -> str:
    text = value.decode("latin1") if isinstance(value, bytes) else value
    if not isinstance(text, str):
        raise Refused(f"a {type(text).__name__} in place of a text")
    return text


def _shape(shape: Any) -> tuple[int, ...]:
    sides = shape if isinstance(shape, tuple) and len(shape) <= MOST_DIMENSIONS else (None,)
    if not all(isinstance(side, int) and 0 <= side < 2**40 for side in sides):
        raise Refused("an array of an odd shape")
    return shape  # type: ignore[no-any-return]


def _numbers(dtype: object, raw: object) -> np.dtype[Any]:
    if not isinstance(dtype, _DType) or not isinstance(raw, bytes):
        raise Refused("an array of something else than numbers")
    return dtype.real


def _ndarray(*_: object) -> None:
    """Only ever handed to `_reconstruct`: numpy's own class could be called with anything."""
    raise Refused("an array made from nothing")


def _reconstruct(subtype: object, shape: object, _kind: object) -> np.ndarray:
    """numpy's own calls this with an empty shape; a large one would only serve to eat memory."""
    if subtype is not _ndarray or shape != (0,):
        raise Refused("an array of an unusual kind")
    return _Array((0,), np.int8)


def _frombuffer(raw: Any, dtype: object, shape: object, order: object, *_: object) -> np.ndarray:
    return np.frombuffer(raw, _numbers(dtype, raw)).reshape(_shape(shape), order="F" if order == "F" else "C")


def _encode(text: object, encoding: str = "latin1") -> bytes:
    if encoding not in ("latin1", "latin-1", "utf-8", "ascii"):
        raise Refused("an odd encoding")
    return _text(text).encode(encoding)


def _bytes(value: object = b"") -> bytes:
    if not isinstance(value, bytes):
        raise Refused("bytes made from something else")
    return value


def _ordered(pairs: Any = ()) -> dict[Any, Any]:
    """An ordered table; Python 2 gives its pairs to the call."""
    if not isinstance(pairs, list | tuple) or not all(isinstance(p, list | tuple) and len(p) == 2 for p in pairs):
        raise Refused("a table of something else than pairs")  # an array of no bytes may have 2⁴⁰ rows
    _check_keys([key for key, _ in pairs])
    return dict(pairs)


def _check_keys(keys: list[Any]) -> None:
    """Only what is hashed in no time: a tuple of tuples, a million deep, ends the process when it is hashed."""
    if not all(type(key) in (str, bytes, int) for key in keys):
        raise Refused("a key that is neither text nor a number")


class _Memo(dict[int, Any]):
    """A value seen before is no container: 40 lists, each twice in the next, are 10^12."""

    def __getitem__(self, number: int) -> Any:
        if isinstance(value := super().__getitem__(number), tuple | list | dict):
            raise Refused("a list or table that is used twice")
        return value


class _File(io.BytesIO):
    def read(self, count: int | None = -1, /) -> bytes:
        content = super().read(count)
        if len(content) < (count or 0):
            raise EOFError
        return content


_ADMITTED: dict[str, Callable[..., Any]] = {
    "_codecs.encode": _encode,
    "collections.OrderedDict": _ordered,
    "numpy.ndarray": _ndarray,
    "numpy.dtype": _DType,
}
for _core in ("numpy.core", "numpy._core"):  # before and after numpy 2
    _ADMITTED |= {f"{_core}.multiarray._reconstruct": _reconstruct, f"{_core}.numeric._frombuffer": _frombuffer}
for _builtins in ("builtins", "__builtin__"):  # Python 3 and 2
    _ADMITTED |= {f"{_builtins}.bytes": _bytes, f"{_builtins}.bytearray": _bytes}


class _Unpickler(pickle._Unpickler):
    """Python's reader with its instructions watched: no state but an array's, no key but text and numbers, no container
    twice, and no more bytes made than the file has."""

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(pickle._Unpickler.dispatch)
    stack: list[Any]
    read: Callable[[int], bytes]

    def __init__(self, content: bytes) -> None:
        super().__init__(_File(content), encoding="bytes")
        self.memo = _Memo()
        self._budget = 2 * len(content) + 2**20

    def find_class(self, module: str, name: str) -> Any:
        if (found := _ADMITTED.get(f"{module}.{name}")) is None:
            raise Refused(f"{str(module)[:80]}.{str(name)[:80]}, which has no place in a data file")
        return found

    def call(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if not callable(function) or not isinstance(arguments, tuple):
            raise Refused("a call of something that is no function")
        self.stack.append(function(*arguments))
        self._count_made()

    def build(self) -> None:
        state = self.stack.pop()
        if not isinstance(self.stack[-1], _DType | _Array) or not isinstance(state, tuple):
            raise Refused(f"a state for a {type(self.stack[-1]).__name__}")
        self.stack[-1].__setstate__(state)
        self._count_made()

    def _count_made(self) -> None:
        """Count the bytes of what a call has made: calls of one long text, many times over, could fill the memory."""
        value = self.stack[-1]
        self._budget -= len(value) if isinstance(value, bytes) else getattr(value, "nbytes", 0)
        if self._budget < 0:
            raise Refused("more bytes than the file can hold")

    def read_bytearray(self) -> None:
        """As bytes: Python's own makes room for as many as the file says before it reads them."""
        self.stack.append(self.read(int.from_bytes(self.read(8), "little")))

    def refuse(self) -> None:
        raise Refused("an instruction that has no place in a data file")


def _keys_checked(code: bytes, keys: slice) -> Callable[[_Unpickler], None]:
    usual: Callable[[Any], None] = pickle._Unpickler.dispatch[code[0]]

    def load(reader: _Unpickler) -> None:
        _check_keys(reader.stack[keys])
        usual(reader)

    return load


_Unpickler.dispatch |= {
    pickle.REDUCE[0]: _Unpickler.call,
    pickle.BUILD[0]: _Unpickler.build,
    pickle.BYTEARRAY8[0]: _Unpickler.read_bytearray,
    pickle.SETITEM[0]: _keys_checked(pickle.SETITEM, slice(-2, -1)),
    pickle.SETITEMS[0]: _keys_checked(pickle.SETITEMS, slice(None, None, 2)),
    pickle.DICT[0]: _keys_checked(pickle.DICT, slice(None, None, 2)),
}
# these make objects in other ways than batches of images need: INST, OBJ, NEWOBJ, NEWOBJ_EX, EXT1, EXT2, EXT4, PERSID,
# BINPERSID, NEXT_BUFFER, READONLY_BUFFER, DUP, EMPTY_SET, ADDITEMS and FROZENSET
_Unpickler.dispatch |= dict.fromkeys(b"io\x81\x92\x82\x83\x84PQ\x97\x982\x8f\x90\x91", _Unpickler.refuse)


def load_plain(path: Path) -> Any:
    """The value in a pickle of numbers, text, bytes, lists, dicts and arrays; keys and text of Python 2 come as bytes.

    Raises UserError for anything else (before it can run) and for a file that is cut short or no pickle at all.
    """
    try:
        if (size := path.stat().st_size) > LARGEST:
            raise UserError(f"{path} has {size:,} bytes, more than any batch of images here. Fetch it again.")
        return _Unpickler(path.read_bytes()).load()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from None
    except MemoryError:
        raise UserError(f"{path} asks for more memory than there is: it is damaged. Fetch it again.") from None
    except UserError:
        raise
    except Exception as error:  # a damaged pickle can fail with almost any exception
        if isinstance(error, EOFError) or "truncated" in str(error) or "exhausted" in str(error):
            raise UserError(f"{path} ends too early (it has {path.stat().st_size:,} bytes). Fetch it again.") from None
        raise UserError(
            f"{path} was refused: it is not the plain pickle it should be (found {str(error)[:300]}). "
            "Fetch it again from its publisher; nothing in it was run."
        ) from None
