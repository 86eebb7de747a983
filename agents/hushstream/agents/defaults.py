"""Default values of a worker's settings.

They are not in `hushstream.agents.settings`, because the help of a command shows them, and the checks of settings take
half a second to import.
"""

from __future__ import annotations

METRICS_HOST = "127.0.0.1"
"""Loopback only, since metrics say something of content and of load. An operator who wants them read from elsewhere
sets another address."""

SESSION_TIMEOUT_SECONDS = 3.0
HEARTBEAT_SECONDS = 1.0
CONNECT_TIMEOUT_SECONDS = 20.0
JOIN_TIMEOUT_SECONDS = 60.0
SNAPSHOT_INTERVAL_SECONDS = 30.0
STATE_BYTES_PER_SECOND = 512 * 1024
GATHER_MILLISECONDS = 5.0

RESIDENT_USERS = 100_000
"""Users of a learner partition in memory, about."""
