"""Runs the broker as a process of its own."""

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from hushstream.broker.errors import BrokerStartError
from hushstream.broker.server import EmbeddedBroker
from hushstream.broker.store import BrokerSettings

EXIT_CANNOT_START = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run a broker until SIGTERM or SIGINT.

    Args:
        argv: arguments without the program's name; None takes those of the process.

    Returns:
        0 after a stop by signal, 2 if the broker cannot start.
    """
    arguments = _parser().parse_args(argv)
    logging.basicConfig(level=arguments.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    defaults = BrokerSettings()
    settings = BrokerSettings(
        host=arguments.host,
        port=arguments.port,
        allow_non_loopback=arguments.allow_non_loopback,
        data=arguments.data,
        max_bytes_per_partition=arguments.max_bytes_per_partition,
        max_bytes_total=max(defaults.max_bytes_total, arguments.max_bytes_per_partition),
        group_min_session_timeout_ms=arguments.group_min_session_timeout_ms,
    )
    try:
        asyncio.run(_run(settings, arguments.ready_file))
    except BrokerStartError as error:
        print(f"hushstream broker: {error}", file=sys.stderr)
        return EXIT_CANNOT_START
    return 0


def _parser() -> argparse.ArgumentParser:
    defaults = BrokerSettings()
    parser = argparse.ArgumentParser(
        prog="hushstream broker",
        description="A Kafka broker for one machine: in memory, for demos and tests, unless --data names a folder.",
    )
    parser.add_argument("--host", default=defaults.host)
    parser.add_argument("--port", type=int, default=9092, help="0 lets the system choose")
    parser.add_argument("--allow-non-loopback", action="store_true", help="listen where other machines can connect")
    parser.add_argument("--data", type=Path, metavar="DIR", help="keep all of it there, whatever ends the broker")
    parser.add_argument(
        "--max-bytes-per-partition",
        type=int,
        default=defaults.max_bytes_per_partition,
        metavar="N",
        help="in memory, produce requests past this are refused (default %(default)s)",
    )
    parser.add_argument(
        "--group-min-session-timeout-ms",
        type=int,
        default=defaults.group_min_session_timeout_ms,
        metavar="MS",
        help="shorter sessions are refused (default %(default)s)",
    )
    parser.add_argument("--ready-file", type=Path, help="written with host:port once the broker listens")
    parser.add_argument("--log-level", default="warning", choices=["debug", "info", "warning", "error"])
    return parser


async def _run(settings: BrokerSettings, ready_file: Path | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with EmbeddedBroker(settings) as broker:
        if ready_file is not None:
            _write_whole(ready_file, f"{broker.bootstrap}\n")
        print(f"hushstream broker listening on {broker.bootstrap}", flush=True)
        await stop.wait()


def _write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader sees either no file or all of it."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
