"""The ``hushstream`` command: one typer application, and what every command shares.

Exit codes: 0 done; 1 a clear refusal or a failed check (the reason is on standard error); 2 wrong usage; 130
interrupted.
"""

from __future__ import annotations

import sys

import typer

from hushstream.cli import deployments, evaluations, metrics_table, operations, replays, workers
from hushstream.schemas.errors import HushstreamError

app = typer.Typer(
    name="hushstream",
    help="Private online recommendation as a stream job.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
for module in (replays, evaluations, workers, deployments, operations, metrics_table):
    module.register(app)


def main() -> None:
    """Run the command line; a user's mistake ends with one line, never with a traceback."""
    try:
        app()
    except HushstreamError as error:
        print(f"hushstream: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
