"""Whether the worker of this container answers and runs what was assigned to it: exit 0, or 1 with the reason.

It knows nothing but the public metrics on ``HUSHSTREAM_METRICS_PORT``, and needs the standard library alone.
"""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request

TIMEOUT_SECONDS = 4.0
_STOPPED = "hushstream_partitions_stopped"


def fault(port: int) -> str | None:
    """What is wrong with the worker whose public metrics are at this port; None for nothing."""
    address = f"http://127.0.0.1:{port}/metrics"
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT_SECONDS) as answer:
            text = answer.read().decode()
    except (OSError, urllib.error.URLError) as error:
        return f"expected metrics at {address}, got {type(error).__name__}"
    stopped = sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(_STOPPED))
    return f"{stopped:.0f} partitions were stopped; the worker's log says why" if stopped else None


def main() -> int:
    """Look once."""
    found = fault(int(os.environ.get("HUSHSTREAM_METRICS_PORT", "9101")))
    if found is not None:
        print(f"unhealthy: {found}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
