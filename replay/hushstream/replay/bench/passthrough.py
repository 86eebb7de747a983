"""The baseline of stream benchmarks: a bare Faust agent that forwards every record, in a process of its own.

python -m hushstream.replay.bench.passthrough BOOTSTRAP SOURCE TARGET DATADIR

It has the settings that make Faust fast (uvloop, a linger, no web server, no sensor), and does nothing else.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterable

import faust
import uvloop


def make_app(bootstrap: str, source: str, target: str, datadir: str) -> faust.App:
    """Make an app that copies partition 0 of one topic to another."""
    app = faust.App(
        f"passthrough-{source}",
        broker=f"kafka://{bootstrap}",
        datadir=datadir,
        store="memory://",
        consumer_auto_offset_reset="earliest",
        broker_commit_interval=0.5,
        producer_linger=0.02,
        stream_wait_empty=False,
        topic_allow_declare=False,
        topic_disable_leader=True,
        web_enabled=False,
    )
    topic = app.topic(source, key_serializer="raw", value_serializer="raw", value_type=bytes)

    async def forward(stream: AsyncIterable[bytes]) -> None:
        send = app.producer.send
        async for value in stream:
            await send(target, None, value, 0, None, None)

    app.agent(topic)(forward)
    return app


def main() -> None:
    """Run until killed."""
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    app = make_app(*sys.argv[1:])
    app.finalize()
    faust.Worker(app, loglevel="info", override_logging=False).execute_from_commandline()


if __name__ == "__main__":
    main()
