"""XMP sidecars: the class of a photo as a keyword, which digiKam, darktable, Lightroom, exiftool and others read.

A sidecar that is there already is added to: all that it holds stays as it is, byte for byte. What comes from others is
parsed without entities, so that it costs no more than its size.
"""

from __future__ import annotations

import errno
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

LARGEST = 16 << 20
"""Bytes of a sidecar that is added to."""
_DEEPEST = 100

_RDF, _DC = "http://www.w3.org/1999/02/22-rdf-syntax-ns#", "http://purl.org/dc/elements/1.1/"
_LR = "http://ns.adobe.com/lightroom/1.0/"
_PROPERTIES = {f"{_DC} subject": "dc:subject", f"{_LR} hierarchicalSubject": "lr:hierarchicalSubject"}
_LISTS = tuple(f"{_RDF} {kind}" for kind in ("Bag", "Seq", "Alt"))
_NEW = f"""<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/">
 <rdf:RDF xmlns:rdf="{_RDF}">
 </rdf:RDF>
</x:xmpmeta>
<?xpacket end="w"?>
""".encode()
_NO_TEXT = re.compile("[^\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML cannot hold, and ends of lines."""


@dataclass
class _Sidecar:
    """What was found in one, and where."""

    about: str | None = None
    end: int = -1
    """Where the end of its descriptions begins."""
    lists: dict[str, int] = field(default_factory=dict)
    """Where the end of each list of keywords begins."""
    keywords: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))


def merged(old: bytes | None, keyword: str, path: str) -> bytes:
    """A sidecar with a keyword and its path among the keywords (`osp|cat`), added to what is there.

    OSError where the old one has a form that cannot be added to.
    """
    content = old if old is not None else _NEW
    found = _read(content)
    added: dict[int, str] = {}
    lists = ""
    for name, given in zip(_PROPERTIES, (keyword, path), strict=True):
        text = _NO_TEXT.sub("_", given)
        item = f'<rdf:li xmlns:rdf="{_RDF}">{escape(text)}</rdf:li>'
        if text in found.keywords[name]:
            continue
        if name in found.lists:
            added[found.lists[name]] = item
        else:
            tag = _PROPERTIES[name]
            lists += f"\n   <{tag}><rdf:Bag><rdf:li>{escape(text)}</rdf:li></rdf:Bag></{tag}>"
    if lists:
        spaces = f'xmlns:rdf="{_RDF}" xmlns:dc="{_DC}" xmlns:lr="{_LR}"'
        about = quoteattr(found.about or "")
        added[found.end] = f" <rdf:Description rdf:about={about} {spaces}>{lists}\n  </rdf:Description>\n "
    for position in sorted(added, reverse=True):
        content = content[:position] + added[position].encode() + content[position:]
    return content


def _read(content: bytes) -> _Sidecar:
    """Where the keywords are in a sidecar in UTF-8."""
    found, parser, above = _Sidecar(), expat.ParserCreate(namespace_separator=" "), list[str]()
    text: list[str] = []

    def refuse(*_: Any) -> None:
        raise _odd()

    def declared(_: str, encoding: str | None, __: int) -> None:
        if (encoding or "utf-8").lower() not in ("utf-8", "us-ascii"):
            raise _odd()

    def begin(name: str, attributes: dict[str, str]) -> None:
        if len(above) == _DEEPEST:
            raise _odd()
        if name == f"{_RDF} Description" and above[-1:] == [f"{_RDF} RDF"] and found.about is None:
            found.about = attributes.get(f"{_RDF} about", "")
        above.append(name)
        text.clear()

    def end(name: str) -> None:
        above.pop()
        if name == f"{_RDF} li" and len(above) > 1 and above[-2] in _PROPERTIES:
            found.keywords[above[-2]].add("".join(text))
        if name in _LISTS and above[-1:] and above[-1] in _PROPERTIES:
            found.lists.setdefault(above[-1], closing(name))
        if name == f"{_RDF} RDF" and found.end < 0:
            found.end = closing(name)

    def closing(name: str) -> int:
        position = parser.CurrentByteIndex
        local = name.rpartition(" ")[2].encode()
        if not re.match(rb"</([^<>\s]+:)?" + local + rb"\s*>", content[position : position + 200]):
            raise _odd()  # <rdf:Bag/>: nothing can be put into it
        return position

    parser.StartDoctypeDeclHandler = refuse
    parser.XmlDeclHandler = declared
    parser.StartElementHandler, parser.EndElementHandler = begin, end
    parser.CharacterDataHandler = text.append
    try:
        parser.Parse(content, True)
    except expat.ExpatError:
        raise _odd() from None
    if found.end < 0 or content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _odd()
    return found


def _odd() -> OSError:
    return OSError(errno.EINVAL, "its sidecar has a form that cannot be added to")
