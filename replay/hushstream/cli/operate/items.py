"""The command by which a vendor changes its catalogue."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import Annotated

import typer

from hushstream.cli.options import AsJson, Bootstrap, DeploymentFolder, Prefix, SecurityFile, show


class Change(StrEnum):
    """What becomes of an item."""

    WITHDRAW = "withdraw"
    OFFER = "offer"


_FOLLOWS = {
    Change.WITHDRAW: "no vendor shows it from the next version of the model on; what was shown before counts",
    Change.OFFER: "it may be shown from the next version of the model on",
}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(item)


def item(
    change: Annotated[Change, typer.Argument(help="What becomes of it.")],
    arm: Annotated[int, typer.Argument(min=0, help="Its number, as decisions have it.")],
    deployment: DeploymentFolder,
    party: Annotated[str, typer.Option(help="The vendor whose item it is.")],
    bootstrap: Bootstrap = "127.0.0.1:9092",
    prefix: Prefix = None,
    security: SecurityFile = None,
    json: AsJson = False,
) -> None:
    """Withdraw an item of a vendor, or offer one, by a public record; needs the rights of the vendor's client."""
    from hushstream.agents.security import read_security
    from hushstream.client import connect

    client = connect(bootstrap, deployment, prefix=prefix, security=read_security(security), party=party)

    async def send() -> None:
        async with client:
            await (client.withdraw(arm) if change is Change.WITHDRAW else client.offer(arm))

    asyncio.run(send())
    show(
        {"party": party, "arm": arm, "change": change}, json, f"{party}: {change} {arm}: in the log; {_FOLLOWS[change]}"
    )
