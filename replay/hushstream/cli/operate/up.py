"""One command from a configuration to a service on this machine, and those that stop it and show it."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hushstream.cli.options import AsJson, OwnKafka, SecurityFile, config_file, show
from hushstream.schemas.errors import HushstreamError

if TYPE_CHECKING:
    from hushstream.replay.runners.up import UpOptions

Config = Annotated[Path, typer.Argument(help="A deployment.yaml.")]
Data = Annotated[Path | None, typer.Option(help="Folder of all that is made (default: CONFIG.data).")]
_NOT_READY = 3


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (up, down, status):
        app.command()(command)


def _address(text: str) -> str:
    try:
        return str(ipaddress.IPv4Address(text))
    except ValueError:
        raise typer.BadParameter(f"expected an IPv4 address such as 127.0.0.1 or 0.0.0.0, got {text}") from None


def up(
    config: Config,
    data: Data = None,
    marks: Annotated[
        Path | None, typer.Option(help="Folder of release marks, outside of --data (default: the user's state folder).")
    ] = None,
    bootstrap: OwnKafka = None,
    security: SecurityFile = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the gateway and its page.")] = 8080,
    broker_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the embedded broker.")] = 9092,
    listen: Annotated[
        str,
        typer.Option(
            parser=_address,
            metavar="ADDRESS",
            help="IPv4 address of the gateway; beyond loopback it asks applications for the token in DATA/tokens, and "
            "answers unencrypted: put a proxy with HTTPS in front of it.",
        ),
    ] = "127.0.0.1",
    next_: Annotated[
        bool,
        typer.Option("--next", help="The file was changed for good: what was learned and charged goes on."),
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return once it is ready; `hushstream down` stops it.")
    ] = False,
) -> None:
    """Run a deployment on this machine: broker, keys, workers, gateway, page.

    Ctrl-C stops it, and it goes on from there when it is started again.
    """
    began = time.monotonic()
    from hushstream.replay.runners.up import UpOptions, data_beside, require_ports
    from hushstream.replay.runners.up import up as run

    path = config_file(config)
    options = UpOptions(
        config=path,
        data=(data or data_beside(path)).resolve(),
        marks=marks,
        bootstrap=bootstrap,
        security=security,
        port=port,
        broker_port=broker_port,
        listen=listen,
        agreed=lambda told: next_ or (sys.stdin.isatty() and sys.stdout.isatty() and typer.confirm(f"{told}. Begin?")),
        began=began,
    )
    if not options.data.exists():
        require_ports(options)
    if detach:
        _detach(options)
        return
    asyncio.run(run(options, lambda line: print(line, flush=True)))


def _detach(options: UpOptions) -> None:
    """Start the same command as a process of its own, and wait until it is ready."""
    log = options.data / "logs" / "up.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    arguments = [word for word in sys.argv[1:] if word != "--detach"]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "hushstream.cli", *arguments], stdout=file, stderr=file, start_new_session=True
        )
    while process.poll() is None:
        text = log.read_text(encoding="utf-8")
        if "ready after" in text:
            took = f"ready after {time.monotonic() - options.began:.1f} s"
            typer.echo(re.sub(r"ready after [\d.]+ s", took, text.rstrip()))
            return
        time.sleep(0.2)
    last = (log.read_text(encoding="utf-8").strip().splitlines() or ["it said nothing"])[-1]
    raise HushstreamError(last.removeprefix("hushstream: "))


def down(config: Config, data: Data = None) -> None:
    """Stop what `hushstream up` started; `up` goes on from there.

    Nothing is lost.
    """
    from hushstream.replay.runners.up import data_beside
    from hushstream.replay.runners.up import down as stop

    command = stop((data or data_beside(config_file(config))).resolve())
    typer.echo(f"stopped; `{command}` goes on from here")


def status(config: Config, data: Data = None, json: AsJson = False) -> None:
    """Show what `hushstream up` runs, what was released and spent.

    It exits with 3 where no deployment answers.
    """
    from hushstream.replay.runners.up import data_beside, running_at, screen, why_not_ready

    place = (data or data_beside(config_file(config))).resolve()
    found, why_not = running_at(place), why_not_ready(place)
    if why_not:
        show({**found, "ready": False, "why_not": why_not}, json, f"not ready: {why_not}")
        raise typer.Exit(_NOT_READY)
    show({**found, "ready": True}, json, f"ready\n{asyncio.run(screen(place))}")
