"""The page of a quickstart, on loopback: a file without outside parts, the state as JSON, and one button."""

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
"""Sent with the button by our own page alone: a browser asks before it lets another site's page send a header."""


_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"


class Shown(Protocol):
    """What a page draws and does."""

    def state(self) -> dict[str, Any]:
        """Plain values."""

    async def kill(self) -> None:
        """The button; raises `HushstreamError` where it cannot be done now."""


def page_html() -> str:
    """The page, in the frame of all pages, before anything runs; its script draws each state that it asks for."""
    body, style = (_text(name) for name in ("page.html", "page.css"))
    return framed("hushstream quickstart", body, _POLICY, style)


def _text(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


class Page:
    """Answers the browser; until something is shown it says that it is starting."""

    def __init__(self) -> None:
        """Nothing is shown yet."""
        self._shown: Shown | None = None
        self._html = page_html()
        self.address = ""

    def shows(self, shown: Shown) -> None:
        """From now on."""
        self._shown = shown

    def application(self) -> web.Application:
        """Its addresses."""
        made = web.Application(middlewares=[_from_here])
        made.add_routes([web.get("/", self._index), web.get("/state.json", self._state), web.post("/kill", self._kill)])
        made.add_routes([web.get("/favicon.ico", self._icon)])
        return made

    async def _index(self, request: web.Request) -> web.Response:
        return web.Response(text=self._html, content_type="text/html", headers={"Content-Security-Policy": _POLICY})

    async def _icon(self, request: web.Request) -> web.Response:
        """There is none, which a browser asks for all the same."""
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
    """Refuse other names than this machine's: a page elsewhere could have its name point here."""
    if request.host.rpartition(":")[0] not in (HOST, "localhost"):
        return web.json_response({"error": f"expected {HOST} or localhost as the host"}, status=403)
    response: web.StreamResponse = await handler(request)
    return response


@asynccontextmanager
async def serve(port: int) -> AsyncIterator[Page]:
    """Serve a page on loopback; ``port`` 0 takes any.

    Raises:
        HushstreamError: the port is taken.
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
                f"--port: expected a free port on {HOST}, got {port}, which cannot be had ({error.strerror}); name "
                f"another one, or 0 for any"
            ) from None
        page.address = f"http://{HOST}:{runner.addresses[0][1]}"
        yield page
    finally:
        await runner.cleanup()
