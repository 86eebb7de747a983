"""A headless Chromium that takes pictures of pages and answers questions about their layout."""

from __future__ import annotations

import asyncio
import base64
import itertools
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from matplotlib import get_data_path

from patience import patience

_STARTS_WITHIN_SECONDS = 60
_ANSWERS_WITHIN_SECONDS = 60

_FLAGS = (
    "--headless=new",
    # It shows our own files alone; in a container there is no sandbox to be had.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-lcd-text",
    "--font-render-hinting=none",
    "--force-color-profile=srgb",
    "--remote-debugging-port=0",
)


def chromium() -> str | None:
    """The path of an installed Chromium."""
    found = (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))
    return next((path for path in found if path), None)


def with_known_fonts(page: str) -> str:
    """A page in the fonts that matplotlib brings, which are the same on every machine."""
    folder = Path(get_data_path()) / "fonts" / "ttf"
    faces = "".join(
        f"@font-face {{ font-family: {family}; font-weight: {weight}; src: url(data:font/ttf;base64,"
        f"{base64.b64encode((folder / f'{file}.ttf').read_bytes()).decode()}); }}\n"
        for family, weight, file in (
            ("Known", 400, "DejaVuSans"),
            ("Known", 700, "DejaVuSans-Bold"),
            ("KnownMono", 400, "DejaVuSansMono"),
        )
    )
    return page.replace("</style>", faces + ":root { --font: Known; --mono: KnownMono; }\n</style>", 1)


class Browser:
    """One tab, driven by the Chrome DevTools Protocol."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Over an open connection."""
        self._socket = socket
        self._numbers = itertools.count(1)

    async def open(self, path: Path, width: int, scheme: str) -> None:
        """Show a file at a width, in a colour scheme, and wait until its fonts are there."""
        await self._ask("Page.setBypassCSP", enabled=True)
        await self.look_as(width, scheme)
        await self.visit(path.as_uri())

    async def look_as(self, width: int, scheme: str) -> None:
        """Show pages at a width, in a colour scheme."""
        await self._ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        await self._ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    async def visit(self, url: str) -> None:
        """Show a page, and wait until its fonts are there."""
        await self._ask("Page.navigate", url=url)
        await self.evaluate(_LOADED)

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression, which may be a promise."""
        found = await self._ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise AssertionError(f"the page raised: {found['exceptionDetails']}")
        return found["result"].get("value")

    async def picture(self, scale: float) -> bytes:
        """The whole page as PNG bytes."""
        width, height = await self.evaluate(_SIZE)
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": scale}
        found = await self._ask("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        return base64.b64decode(found["data"])

    async def _ask(self, method: str, **values: Any) -> dict[str, Any]:
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": values})
        async with asyncio.timeout(patience(_ANSWERS_WITHIN_SECONDS)):
            while True:
                answer = await self._socket.receive_json()
                if answer.get("id") == number:
                    assert "error" not in answer, f"{method}: {answer.get('error')}"
                    return dict(answer["result"])


_SIZE = "[innerWidth, Math.ceil(document.documentElement.getBoundingClientRect().height)]"
_LOADED = """new Promise(done => {
  const ready = () => document.fonts.ready.then(() => done(true));
  document.readyState === "complete" ? ready() : addEventListener("load", ready);
})"""


@asynccontextmanager
async def browser(profile: Path, *flags: str) -> AsyncIterator[Browser]:
    """Start Chromium with an empty profile and further flags, and end it."""
    found = chromium()
    assert found is not None
    process = await asyncio.create_subprocess_exec(
        found,
        *_FLAGS,
        *flags,
        f"--user-data-dir={profile}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        port = await _port(process.stderr)
        # What else it says is of no interest, but must go somewhere.
        said = asyncio.ensure_future(process.stderr.read())
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                tabs = [tab for tab in await answer.json() if tab["type"] == "page"]
            async with session.ws_connect(tabs[0]["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                yield Browser(socket)
    finally:
        process.terminate()
        await process.wait()
        await said


async def _port(said: asyncio.StreamReader) -> int:
    """The port that it names when it is ready."""
    async with asyncio.timeout(patience(_STARTS_WITHIN_SECONDS)):
        async for line in said:
            if found := re.search(rb"DevTools listening on ws://127\.0\.0\.1:(\d+)/", line):
                return int(found[1])
    raise AssertionError("Chromium ended before it was ready")
