"""The description of the JSON endpoint at /openapi.json (OpenAPI 3.1)."""

from __future__ import annotations

from typing import Any

from osp.data.folders import has_heif
from osp.version import __version__

MOST_NEIGHBORS = 24
DEFAULTS: dict[str, Any] = {"accept": 0.95, "neighbors": 6, "explain": True}
BODY_TYPES = ("image/jpeg", "image/png", "image/webp", "image/gif", "image/bmp", "image/tiff", "image/heic")


def listed_types() -> str:
    """Those of them that can be read here."""
    return ", ".join(kind for kind in BODY_TYPES if kind != "image/heic" or has_heif())


_TEXT = {"type": "string"}
_SHARE = {"type": "number", "minimum": 0, "maximum": 1}
_WHOLE = {"type": "integer", "minimum": 0}


def description(classes: list[str], most_bytes: int, most_pixels: int) -> dict[str, Any]:
    """The document; classes and limits are those of this server."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "osp serve",
            "version": __version__,
            "description": "Class, probabilities and OOD score of an image, from one trained model.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "paths": {
            "/": {"get": _operation("page", "The page", {"200": _answer("The page", "text/html", _TEXT)})},
            "/openapi.json": {
                "get": _operation(
                    "openapi", "This document", {"200": _answer("It", "application/json", {"type": "object"})}
                )
            },
            "/model": {
                "get": _operation(
                    "model", "What the model is", {"200": _answer("It", "application/json", _ref("Model"))}
                )
            },
            "/predict": {"post": _predict(most_bytes, most_pixels)},
            "/labeled/{number}": {
                "get": _operation(
                    "labeled",
                    "A labeled photo, small",
                    {
                        "200": _answer("The photo", "image/jpeg", {"type": "string", "format": "binary"}),
                        "404": _error("There is none of that number, or the photo is no longer where it was"),
                    },
                    [{"name": "number", "in": "path", "required": True, "schema": _WHOLE}],
                )
            },
        },
        "components": {"schemas": _schemas(classes, most_bytes, most_pixels)},
    }


def _predict(most_bytes: int, most_pixels: int) -> dict[str, Any]:
    parameters = [
        {
            "name": "accept",
            "in": "query",
            "description": "Share of the known classes that the threshold of the OOD score lets through.",
            "schema": {
                "type": "number",
                "exclusiveMinimum": 0,
                "exclusiveMaximum": 1,
                "default": DEFAULTS["accept"],
            },
        },
        {
            "name": "neighbors",
            "in": "query",
            "description": "How many of the nearest labeled photos to name.",
            "schema": {**_WHOLE, "maximum": MOST_NEIGHBORS, "default": DEFAULTS["neighbors"]},
        },
        {
            "name": "explain",
            "in": "query",
            "description": "Whether to show where the model looks (Grad-CAM).",
            "schema": {"type": "boolean", "default": DEFAULTS["explain"]},
        },
    ]
    busy = _error("Too many wait; come back after the seconds in Retry-After")
    busy["headers"] = {"Retry-After": {"schema": {"type": "integer", "minimum": 1}, "required": True}}
    answers = {
        "200": _answer("What the model says", "application/json", _ref("Prediction")),
        "400": _error("It cannot be read as an image, or has too many pixels"),
        "408": _error("The upload took too long"),
        "413": _error(f"The upload is larger than {most_bytes} bytes"),
        "415": _error("The content type is not that of an image"),
        "422": _error("A parameter is unknown or has a value that does not fit"),
        "503": busy,
    }
    operation = _operation("predict", "What the model says of an image", answers, parameters)
    operation["requestBody"] = {
        "required": True,
        "description": f"The image file itself: at most {most_bytes} bytes and {most_pixels} pixels.",
        "content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in BODY_TYPES},
    }
    return operation


def _operation(
    name: str, summary: str, answers: dict[str, Any], parameters: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    refused = {
        "403": _error("The request comes from another site"),
        "405": _error("Another method is meant"),
        "421": _error("The Host header names another server"),
    }
    found: dict[str, Any] = {"operationId": name, "summary": summary, "responses": {**answers, **refused}}
    if parameters:
        found["parameters"] = parameters
    return found


def _schemas(classes: list[str], most_bytes: int, most_pixels: int) -> dict[str, Any]:
    name = {"type": "string", "enum": list(dict.fromkeys(classes))}
    neighbor = {
        "number": _WHOLE,
        "class": name,
        "similarity": {"type": "number", "description": "Cosine of the features."},
        "photo": {"type": ["string", "null"], "description": "Where it can be seen; null where it cannot."},
    }
    said = {
        "class": name,
        "probability": _SHARE,
        "probabilities": _object(dict.fromkeys(dict.fromkeys(classes), _SHARE)),
        "ood_score": {"type": "number", "description": "Larger = more unknown."},
        "threshold": {"type": ["number", "null"], "description": "Above it an image is called unknown; null: never."},
        "in": {"type": "boolean", "description": "Whether it looks like one of the classes."},
        "neighbors": {"type": "array", "maxItems": MOST_NEIGHBORS, "items": _object(neighbor)},
        "heatmap": {
            "type": ["string", "null"],
            "pattern": "^data:image/jpeg;base64,",
            "description": "Grad-CAM over the part of the image that the model sees, as a data URL.",
        },
    }
    model = {
        "kind": {"type": "string", "enum": ["fit", "train"]},
        "classes": {"type": "array", "items": name},
        "labeled": {"type": ["array", "null"], "items": _WHOLE, "description": "Labeled photos per class."},
        "size": {"type": "integer", "minimum": 1},
        "network": _TEXT,
        "license": _TEXT,
        "threshold": {"type": ["number", "null"]},
        "formats": {"type": "array", "items": _TEXT, "description": "Kinds of image that it reads."},
        "most_bytes": {"type": "integer", "const": most_bytes},
        "most_pixels": {"type": "integer", "const": most_pixels},
    }
    return {
        "Prediction": _object(said),
        "Model": _object(model),
        "Error": _object({"error": {"type": "string", "minLength": 1}}),
    }


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _answer(text: str, kind: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "content": {kind: {"schema": schema}}}


def _error(text: str) -> dict[str, Any]:
    return _answer(text, "application/json", _ref("Error"))
