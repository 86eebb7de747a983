"""An auditor as a process: until SIGTERM, or once."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys

from hushstream.agents.observe.collection import collect_in_steps
from hushstream.agents.settings import WorkerSettings
from hushstream.agents.worker.deployment import KeySource
from hushstream.agents.worker.worker import quiet_libraries
from hushstream.engine.declare.declaration import System
from hushstream.ops.audit.auditor import Auditor
from hushstream.ops.audit.sample import Stretches
from hushstream.schemas.errors import HushstreamError


def run_auditor(
    settings: WorkerSettings, system: System, role: str, keys: KeySource, share: float = 1.0, once: bool = False
) -> int:
    """Check a role in this process until SIGTERM or SIGINT; the arguments are those of `Auditor`.

    Returns:
        The exit code: 0 where nothing differs; 1 where something does, or with a one-line reason on standard error.
    """
    quiet_libraries()
    with contextlib.suppress(ImportError):
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    try:
        return asyncio.run(_until_signal(Auditor(settings, system, role, keys, Stretches(share)), once))
    except HushstreamError as error:
        print(f"hushstream worker auditor: {error}", file=sys.stderr)
        return 1


async def _until_signal(auditor: Auditor, once: bool) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    collecting = asyncio.create_task(collect_in_steps())
    try:
        code = await auditor.run(stop, once)
    finally:
        collecting.cancel()
    found, unchecked = auditor.differences, auditor.uncheckable
    print(f"auditor: {found} records differ, {unchecked} could not be checked", flush=True)
    return code
