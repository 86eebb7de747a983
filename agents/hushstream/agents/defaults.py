"""Default values of a worker's settings.

They are not in `hushstream.agents.settings`, because the help of a command shows them, and the checks of settings take
half a second to import.
"""

from __future__ import annotations

METRICS_HOST_VARIABLE, ZONE_METRICS_HOST_VARIABLE = "HUSHSTREAM_METRICS_HOST", "HUSHSTREAM_ZONE_METRICS_HOST"
METRICS_HOST = "127.0.0.1"
"""The default is loopback, because metrics show something about content and load. An operator who reads them from
another machine sets another address."""

SESSION_TIMEOUT_SECONDS = 6.0
"""The shortest that Kafka takes unless ``group.min.session.timeout.ms`` says otherwise."""

HEARTBEAT_SECONDS = 1.0
CONNECT_TIMEOUT_SECONDS = 20.0
JOIN_TIMEOUT_SECONDS = 60.0
SNAPSHOT_INTERVAL_SECONDS = 30.0
STATE_BYTES_PER_SECOND = 512 * 1024
JOURNAL_LINGER_MILLISECONDS = 5.0

RESIDENT_USERS = 100_000
"""About how many users of a learner partition are kept in memory."""
