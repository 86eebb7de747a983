"""Serves the demo's page on loopback: a visitor's page, the owner's figures as JSON, and a button.

*Figures.* The owner's figures of a deployment: what was released and spent, read from its published topics alone.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web

from hushstream.engine.declare.declaration import System
from hushstream.ops import budget
from hushstream.ops.connection import Connection
from hushstream.ops.ending import catalogues_in, rules_of
from hushstream.ops.log_copy import LogCopy, Pause, copy_async
from hushstream.privacy.amounts import epsilon_value
from hushstream.replay.report.frame import framed
from hushstream.replay.runners.stream import HOST, not_free
from hushstream.replay.worlds.shop import ITEMS
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError

_SUMS = "window-sums"
_MODELS = frozenset({"ItemModel"})
_COUNTS = frozenset({"Lift"})
_NO_PAUSE = Pause(0.05, 0.05)


async def read_figures(system: System, connection: Connection) -> dict[str, Any]:
    """Read them from the deployment's logs, as plain values.

    Returns:
        ``windows``: number of windows of reports whose noised sums were released; ``version`` of the newest model, and
        its ``segments``: the item with the highest expected reward for each value of each feature; ``lift``: rates by
        what visitors get, None until one was released; ``spent``: see `_spent`.

    Raises:
        HushstreamError: the broker does not answer, or a topic is not there.
    """
    models, measured = system.models, system.measurement
    assert models is not None, "p2b's models can be shown"
    topics = {_SUMS, *models.topics, *budget.budget_topics(system), *(one.topic for one in rules_of(system))}
    topics |= set() if measured is None else set(measured.topics)
    logs = await copy_async(connection, system.partitions, frozenset(topics), _NO_PAUSE)
    model = _read(models, _MODELS, logs, None, catalogues_in(logs, system)) or {}
    return {
        "windows": sum(len(part.records) for _, part in logs.of_topic(_SUMS)),
        "version": model.get("version", 0),
        "segments": [{**one, "item": _title(one["item"])} for one in model.get("segments", [])],
        "lift": None if measured is None else _read(measured, _COUNTS, logs),
        "spent": _spent(budget.read(logs, system)),
    }


def _read(view: Any, names: frozenset[str], logs: LogCopy, *more: Any) -> dict[str, Any] | None:
    """What a view shows of its topics, as a table; None before one of these records was released.

    Topics begin with records that say who began them.
    """
    values = [record.value for record in logs.records(view.topics)]
    if not any(True for _ in codec.readable(values, names)):
        return None
    found: dict[str, Any] = view.read(values, *more).as_json()
    return found


def _title(item: str) -> str:
    """An item's title, from its name, which is a number on devices."""
    return ITEMS[int(item)] if item.isdecimal() else item.replace("-", " ")


def _spent(found: budget.Budget) -> dict[str, Any]:
    """The largest charge of one person by mechanism, the limits for one person, and the number of releases."""
    charged: dict[str, int] = {}
    for account in found.charges:
        charged[account.mechanism] = max(charged.get(account.mechanism, 0), account.spent.epsilon_micro)
    return {
        "ok": found.ok,
        "releases": sum(found.by_mechanism.values()),
        "charged": [{"mechanism": name, "epsilon": float(epsilon_value(micro))} for name, micro in charged.items()],
        "limits": [
            {"unit": fact.unit, "epsilon": float(epsilon_value(fact.limit.epsilon_micro))} for fact in found.facts
        ],
    }


MARK = "X-Hushstream"
"""A header that our own page sends with the button; another site's page could send it only after a preflight."""

MARKED = "demo"
_BUNDLE = Path("dist") / "edge.min.js"
_SCRIPTS = ("figures.js", "visit.js")


class Shown(Protocol):
    """The state that a page draws, and the action of its button."""

    def state(self) -> dict[str, Any]:
        """The state as plain values."""

    def agreement(self) -> bytes:
        """What a device must know; empty as long as there is none."""

    async def kill(self) -> None:
        """Kill the learner, as the button asks; raises `HushstreamError` where this is not possible now."""


def page_html(gateway: str) -> str:
    """The page before anything runs; its scripts fetch the state again and again, and call the gateway."""
    return framed("hushstream demo", _text("page.html"), policy(gateway), _text("page.css"))


def policy(gateway: str) -> str:
    """What the page may load: nothing from elsewhere, but it may call the gateway."""
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self' {gateway}"


def _text(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def bundle_of(package: Path) -> str:
    """The module of the package `@hushstream/edge`, which is built where it is not yet.

    Raises:
        HushstreamError: it is not there, Node is not installed, or it cannot be built.
    """
    if not (package / "package.json").exists():
        raise HushstreamError(f"--devices: expected the devices' package at {package} (start in a clone), got none")
    if not (package / _BUNDLE).exists():
        if shutil.which("npm") is None:
            raise HushstreamError("--devices: expected Node with npm, which builds the devices' package, got none")
        command = ("npm", "ci", "--no-audit", "--no-fund")
        made = subprocess.run(command, cwd=package, capture_output=True, encoding="utf-8", check=False)
        if made.returncode:
            last = (made.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise HushstreamError(f"--devices: expected `npm ci` in {package} to build the package, got: {last}")
    return (package / _BUNDLE).read_text(encoding="utf-8")


def application(shown: Shown, gateway: str, bundle: str = "") -> web.Application:
    """The web application with all addresses of the page.

    Args:
        shown: what it shows.
        gateway: origin of the gateway that the page calls.
        bundle: the devices' module, where visitors learn on their own devices.
    """
    headers = {
        "Content-Security-Policy": policy(gateway),
        "Cache-Control": "no-store",
        "Referrer-Policy": "no-referrer",
    }

    def gives(text: str, kind: str) -> Any:
        async def answer(_: web.Request) -> web.Response:
            return web.Response(text=text, content_type=kind, headers=headers)

        return answer

    async def state(_: web.Request) -> web.Response:
        return web.json_response(shown.state(), headers=headers)

    async def agreement(_: web.Request) -> web.Response:
        if not shown.agreement():
            raise web.HTTPServiceUnavailable(headers=headers)
        said = {"agreement": json.loads(shown.agreement()), "gateway": gateway}
        return web.json_response(said, headers=headers)

    async def kill(request: web.Request) -> web.Response:
        if request.headers.get(MARK) != MARKED:
            return web.json_response({"error": f"expected the header {MARK}: {MARKED}"}, status=403)
        try:
            await shown.kill()
        except HushstreamError as error:
            return web.json_response({"error": str(error)}, status=409)
        return web.json_response({}, status=202)

    made = web.Application(middlewares=[_from_here])
    made.add_routes([web.get("/", gives(page_html(gateway), "text/html"))])
    made.add_routes([web.get(f"/{name}", gives(_text(name), "text/javascript")) for name in _SCRIPTS])
    made.add_routes([web.get("/edge.min.js", gives(bundle, "text/javascript"))])
    made.add_routes([web.get("/state.json", state), web.get("/agreement.json", agreement), web.post("/kill", kill)])
    made.add_routes([web.get("/favicon.ico", _no_icon)])
    return made


async def _no_icon(_: web.Request) -> web.Response:
    """Answer that there is no icon, as browsers request one."""
    return web.Response(status=204)


@web.middleware
async def _from_here(request: web.Request, handler: Any) -> web.StreamResponse:
    """Refuse a host name that is not this machine's.

    Otherwise another site could let its own name point to this machine, and its page could read the answers.
    """
    if request.host.rpartition(":")[0] not in (HOST, "localhost"):
        return web.json_response({"error": f"expected {HOST} or localhost as the host"}, status=403)
    response: web.StreamResponse = await handler(request)
    return response


@asynccontextmanager
async def serving(made: web.Application, port: int) -> AsyncIterator[str]:
    """Serve on loopback; ``port`` 0 takes any free one. Yields the page's address.

    Raises:
        HushstreamError: the port is in use.
    """
    runner = web.AppRunner(made, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, HOST, port).start()
        except OSError as error:
            raise not_free("--port", port, error) from None
        yield f"http://{HOST}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
