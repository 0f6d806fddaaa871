"""The description of the JSON endpoint at /openapi.json (OpenAPI 3.1): openapi.yaml with what this server adds."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import yaml

from osp.data.folders import has_heif
from osp.version import __version__


def _read() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(files("osp.serve").joinpath("openapi.yaml").read_text("utf-8"))
    return found


_PREDICT = _read()["paths"]["/predict"]["post"]
DEFAULTS: dict[str, Any] = {each["name"]: each["schema"]["default"] for each in _PREDICT["parameters"]}
MOST_NEIGHBORS: int = next(each["schema"]["maximum"] for each in _PREDICT["parameters"] if each["name"] == "neighbors")
BODY_TYPES = tuple(_PREDICT["requestBody"]["content"])


def listed_types() -> str:
    """Kinds of image that can be read here."""
    return ", ".join(kind for kind in BODY_TYPES if kind != "image/heic" or has_heif())


def description(classes: list[str], most_bytes: int, most_pixels: int) -> dict[str, Any]:
    """The document; classes and limits are those of this server."""
    found = _read()
    found["info"]["version"] = __version__
    predict = found["paths"]["/predict"]["post"]
    limits = f"at most {most_bytes} bytes and {most_pixels} pixels"
    predict["requestBody"]["description"] = f"The image file itself: {limits}."
    predict["responses"]["413"]["description"] = f"The upload is larger than {most_bytes} bytes"
    schemas = found["components"]["schemas"]
    said, model = schemas["Prediction"], schemas["Model"]
    names = list(dict.fromkeys(classes))
    said["class"]["enum"] = names  # one schema, in all its places
    said["probabilities"] = _object(dict.fromkeys(names, said["probability"]))
    said["neighbors"]["items"] = _object(schemas.pop("Neighbor"))
    model["most_bytes"]["const"], model["most_pixels"]["const"] = most_bytes, most_pixels
    found["components"]["schemas"] = {name: _object(fields) for name, fields in schemas.items()}
    return found


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    """Exactly these fields."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
