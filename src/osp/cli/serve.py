"""`osp serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from osp.cli.lists import check_environment
from osp.cli.text import complain, say
from osp.errors import user_path


def serve(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of an `osp fit` or `osp train`.")],
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes any free one.")] = 8000,
    host: Annotated[
        str, typer.Option(help="Address to listen on. The default is seen from this machine alone; 0.0.0.0 by all.")
    ] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None, typer.Option(help="One more name under which browsers may reach it, such as behind a proxy.")
    ] = None,
    max_mb: Annotated[int, typer.Option("--max-mb", min=1, help="Largest upload, in megabytes.")] = 20,
    max_megapixels: Annotated[int, typer.Option(min=1, max=178, help="Largest image, in millions of pixels.")] = 50,
    waiting: Annotated[int, typer.Option(min=1, help="Images that may wait; more are told to come back.")] = 8,
) -> None:
    """Try a model in the browser: drop an image, see its class, whether it belongs, where the model looks, and the
    labeled photos most like it. The same as JSON: POST an image to /predict; /openapi.json describes it.

    Images are looked at in memory and never kept.

    Example: `osp serve run`
    """
    check_environment()
    from osp.serve.server import serve as start

    start(
        user_path(run),
        host,
        port,
        allow_hosts=allow_host or (),
        most_bytes=max_mb * 1_000_000,
        most_pixels=max_megapixels * 1_000_000,
        waiting=waiting,
        say=say,
        warn=lambda text: complain(f"warning: {text}"),
    )
