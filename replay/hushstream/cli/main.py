"""The ``hushstream`` command: one typer application, and what every command shares.

Exit codes: 0 done; 1 a clear refusal or a failed check (the reason is on standard error); 2 wrong usage; 3 (of
`budget`) a budget is exhausted; 130 interrupted.
"""

from __future__ import annotations

import gc
import io
import logging
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from hushstream.cli.commands import Commands
from hushstream.schemas.errors import HushstreamError

app = typer.Typer(
    name="hushstream",
    help="Private online recommendation as a stream job.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Without rich: it would cost each call half a second for the frames and colours of help.
    rich_markup_mode=None,
    # Let help be as wide as the terminal: click would limit it to 80 columns.
    context_settings={"max_content_width": 200},
    cls=Commands,
)


_INTERRUPTED = 130
_YOUNG_OBJECTS = 200_000
"""Python collects garbage only after this many new objects; the imports of a worker make 150,000."""


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"hushstream {version('hushstream')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Private online recommendation as a stream job."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; a user's mistake ends with one line, never with a traceback.

    Args:
        arguments: without the program's name; None takes those of the process.

    Raises:
        SystemExit: always; see the module for the codes.
    """
    # Imports make hundreds of thousands of objects and no garbage: garbage collection took a sixth of a worker's start.
    gc.set_threshold(_YOUNG_OBJECTS)
    # Pydantic would look through all installed packages for plugins. None is needed, and one would see secrets.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    _quiet_libraries()
    _print_what_a_terminal_lacks()
    try:
        app(None if arguments is None else list(arguments), prog_name="hushstream")
    except HushstreamError as error:
        _refuse("; ".join(str(error).splitlines()))
    except BrokenPipeError:
        # The reader has closed the pipe: drop what is still buffered, or Python would fail again when it flushes.
        sys.stdout = None
        raise SystemExit(1) from None
    except OSError as error:
        # A file or folder could not be created, read or written.
        _refuse(f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error))
    except SystemExit as ended:
        # Typer makes this of an interrupt while a command runs.
        if ended.code == _INTERRUPTED:
            _say_interrupted()
        raise
    except KeyboardInterrupt:
        _say_interrupted()
        raise SystemExit(_INTERRUPTED) from None


def _say_interrupted() -> None:
    print("hushstream: interrupted", file=sys.stderr)


def _refuse(reason: str) -> None:
    print(f"hushstream: {reason}", file=sys.stderr)
    raise SystemExit(1) from None


def _print_what_a_terminal_lacks() -> None:
    """Print characters that the locale lacks as escapes; otherwise half a table and a traceback would be printed."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _quiet_libraries() -> None:
    """Suppress warnings of libraries, because our one-line error says the same; a worker sets up its own log."""
    if logging.lastResort is not None:
        logging.lastResort.setLevel(logging.CRITICAL)


if __name__ == "__main__":
    main()
