"""The command `osp`: one file per group of commands. Only light imports here: help and errors must come at once."""

from __future__ import annotations

import atexit
import os
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from osp.cli import bench, finished, label, lists, photos, predict, serve, sorting, train
from osp.cli.mistakes import explain
from osp.cli.text import complain, say
from osp.errors import UserError
from osp.version import __version__

app = typer.Typer(
    name="osp",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (train.demo, photos.fit, label.label, predict.predict, sorting.sort, train.train, finished.report):
    app.command()(command)
for command in (serve.serve, finished.export, lists.datasets, lists.methods, lists.settings, finished.verify):
    app.command()(command)
app.add_typer(bench.app, name="bench")

UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""Any mistake on the command line, in whichever click typer brings along."""


def main() -> None:
    """Run the command; a user's mistake is one message and exit code 2, never a traceback."""
    warnings.showwarning = _show_warning
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal without Unicode shows \xe9, and goes on
    code = 1
    if "RANK" in os.environ:
        atexit.register(lambda: _end(code))  # the first to be registered is the last to be called
    code = _run()
    sys.exit(code)


def _run() -> int:
    """The command's exit code."""
    try:
        code = app(prog_name="osp", standalone_mode=False)
        sys.stdout.flush()
        return int(code or 0)
    except UserError as error:
        complain(error)
    except UsageError as error:
        complain(explain(error))
    except (KeyboardInterrupt, typer.Abort):
        complain("stopped")
        return 130
    except BrokenPipeError:
        _drop(sys.stdout)
        return 1
    except OSError as error:
        if error.filename is None:
            _drop(sys.stdout)
            complain(f"The output cannot be written: {error.strerror or error}.")
            return 1
        complain(f"{error.filename}: {error.strerror or error}.")
    return 2


def _end(code: int) -> None:
    """End one of a run's processes without taking the interpreter down.

    A thread of gloo or of autograd that wants the interpreter while it goes down ends the process with SIGABRT
    ("terminate called without an active exception"), after all work is done, and the launcher would call the run
    failed.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _drop(stream: TextIO) -> None:
    """Send what a stream still holds to nowhere: the interpreter would try to write it once more at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _show_warning(message: Warning | str, category: type[Warning], filename: str, *_: Any, **__: Any) -> None:
    """Our own warnings as plain sentences; those of other packages are for programmers and stay quiet."""
    if Path(filename).is_relative_to(Path(__file__).parents[1]):
        complain(f"warning: {message}")


def _version(value: bool) -> None:
    if value:
        say(f"osp {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train an image classifier from a few labeled images and many unlabeled ones, some of which show none of your
    classes.

    Examples:

    - `osp demo` (a minute, needs no data)

    - `osp fit sorted/ pile/ --out run` (your own photos), then `osp predict run new.jpg`

    - `osp train --data mnist --method fixmatch`

    What there is to choose from: `osp datasets`, `osp methods`, `osp settings`.
    """
    if context.invoked_subcommand is None:
        print(context.get_help())
