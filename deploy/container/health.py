"""Check whether this container's worker does its work: exit 0, or 1 with the reason.

    python health.py          # ready: it runs every partition that it was given, at least one, and brokers answer
    python health.py --live   # alive: its event loop runs; if it does not, only a restart helps

It reads only the public metrics on ``HUSHSTREAM_METRICS_PORT``, and needs only the standard library. A thread of its
own serves metrics, so an answer does not show that the event loop runs; the heartbeat does.
"""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping

TIMEOUT_SECONDS = 4.0
HUNG_SECONDS = 60.0
"""After this many seconds without a heartbeat the event loop counts as hung; a batch takes far less."""
_BEAT = "hushstream_heartbeat_age_seconds"
CUT_OFF_SECONDS = 30.0
"""Three times the group's session: by then other workers have its partitions, if they can be reached."""
_CONTACT = ("hushstream_fetch_age_seconds", "hushstream_group_commit_age_seconds")
_ASSIGNED, _HELD, _STOPPED = (f"hushstream_partitions_{name}" for name in ("assigned", "held", "stopped"))


def fault(port: int, live: bool = False) -> str | None:
    """The fault of the worker with public metrics at this port; None if it has none."""
    address = f"http://127.0.0.1:{port}/metrics"
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT_SECONDS) as answer:
            text = answer.read().decode()
    except (OSError, urllib.error.URLError) as error:
        return f"expected metrics at {address}, got {type(error).__name__}"
    found = _values(text)
    if _BEAT not in found:
        return f"expected {_BEAT} at {address}, got none: it is no worker of this release"
    if found[_BEAT] >= HUNG_SECONDS:
        return f"the event loop has not turned for {found[_BEAT]:.0f} s"
    return None if live else _unready(found)


def _unready(found: Mapping[str, float]) -> str | None:
    assigned, held, stopped = (found.get(name, 0.0) for name in (_ASSIGNED, _HELD, _STOPPED))
    silent = max(found.get(name, 0.0) for name in _CONTACT)
    if silent >= CUT_OFF_SECONDS:
        return f"no broker has answered for {silent:.0f} s"
    if stopped:
        return f"{stopped:.0f} partitions were stopped; the worker's log says why"
    if not assigned:
        return "no partition was given to it; it joins its group, or others hold them all"
    if held < assigned:
        return f"{assigned - held:.0f} of {assigned:.0f} partitions are being recovered"
    return None


def _values(text: str) -> dict[str, float]:
    """The value of each series by its metric's name; the metrics used here have one series each."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines}


def main() -> int:
    """Check once."""
    found = fault(int(os.environ.get("HUSHSTREAM_METRICS_PORT", "9101")), live="--live" in sys.argv[1:])
    if found is not None:
        print(f"unhealthy: {found}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
