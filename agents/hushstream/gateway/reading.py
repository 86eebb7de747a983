"""Reading a request's body: no longer than may be, and no slower."""

from __future__ import annotations

import asyncio

from aiohttp import web
from aiohttp.web_exceptions import HTTPRequestEntityTooLarge

from hushstream.gateway.problems import Problem


class GoneAway(ConnectionError):
    """Who called has closed the connection within the body: there is nobody to be answered."""


async def read_body(request: web.BaseRequest, most: int, seconds: float) -> bytes:
    """The body of a request.

    Raises:
        Problem: it is longer than ``most`` bytes, or takes longer than ``seconds``.
        GoneAway: see there.
    """
    if (request.content_length or 0) > most:
        raise Problem("body-too-large", close=True)
    try:
        if request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
        if request.content.is_eof():
            return await request.read()  # All of it is here: nobody is waited for.
        return await asyncio.wait_for(request.read(), seconds)
    except TimeoutError:
        raise Problem("slow-request", close=True) from None
    except ConnectionError as error:
        raise GoneAway from error
    except HTTPRequestEntityTooLarge:
        raise Problem("body-too-large", close=True) from None
    except (web.RequestPayloadError, ValueError):
        raise Problem("malformed-http", close=True) from None
