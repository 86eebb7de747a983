"""Serves a quickstart's page on loopback: a file that loads nothing from elsewhere, the state as JSON, and a button."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any, Protocol

from aiohttp import web

from hushstream.replay.report.frame import framed
from hushstream.schemas.errors import HushstreamError

HOST = "127.0.0.1"
MARK = "X-Hushstream"
"""A header that our own page sends with the button; another site's page could send it only after a preflight."""


_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"


class Shown(Protocol):
    """The state that a page draws, and the action of its button."""

    def state(self) -> dict[str, Any]:
        """The state as plain values."""

    async def kill(self) -> None:
        """Kill the learner, as the button asks; raises `HushstreamError` where this is not possible now."""


def page_html() -> str:
    """The page before anything runs; its script fetches the state again and again, and draws it."""
    body, style = (_text(name) for name in ("page.html", "page.css"))
    return framed("hushstream quickstart", body, _POLICY, style)


def _text(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


class Page:
    """Answers the browser; until a quickstart runs, the state says that it is starting."""

    def __init__(self) -> None:
        """Start with nothing to show."""
        self._shown: Shown | None = None
        self._html = page_html()
        self.address = ""

    def shows(self, shown: Shown) -> None:
        """Show this from now on."""
        self._shown = shown

    def application(self) -> web.Application:
        """The web application with all addresses of the page."""
        made = web.Application(middlewares=[_from_here])
        made.add_routes([web.get("/", self._index), web.get("/state.json", self._state), web.post("/kill", self._kill)])
        made.add_routes([web.get("/favicon.ico", self._icon)])
        return made

    async def _index(self, request: web.Request) -> web.Response:
        return web.Response(text=self._html, content_type="text/html", headers={"Content-Security-Policy": _POLICY})

    async def _icon(self, request: web.Request) -> web.Response:
        """Answer that there is no icon, as browsers request one."""
        return web.Response(status=204)

    async def _state(self, request: web.Request) -> web.Response:
        if self._shown is None:
            return web.json_response({"starting": True})
        return web.json_response(self._shown.state(), headers={"Cache-Control": "no-store"})

    async def _kill(self, request: web.Request) -> web.Response:
        if request.headers.get(MARK) != "quickstart":
            return web.json_response({"error": f"expected the header {MARK}: quickstart"}, status=403)
        if self._shown is None:
            return web.json_response({"error": "the workers are still starting"}, status=409)
        try:
            await self._shown.kill()
        except HushstreamError as error:
            return web.json_response({"error": str(error)}, status=409)
        return web.json_response({}, status=202)


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
async def serve(port: int) -> AsyncIterator[Page]:
    """Serve a page on loopback; ``port`` 0 takes any free one.

    Raises:
        HushstreamError: the port is in use.
    """
    page = Page()
    runner = web.AppRunner(page.application(), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, HOST, port)
        try:
            await site.start()
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            raise HushstreamError(
                f"--port: expected a free port on {HOST}, got {port}, which is not available "
                f"({error.strerror}); name another one, or 0 for any"
            ) from None
        page.address = f"http://{HOST}:{runner.addresses[0][1]}"
        yield page
    finally:
        await runner.cleanup()
