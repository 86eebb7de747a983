"""Chooses how long the group waits for a silent worker: the configured session, or Kafka's default minimum if longer.

Kafka refuses sessions below ``group.min.session.timeout.ms`` (6 s unless set), and Faust would then idle for ever. So a
worker asks the broker before it joins the group: it sends a join under a member id that nobody has. The broker checks
the session length before it looks for the member, so the answer shows whether it accepts the length. It refuses the
join in any case, so the group is not disturbed.
"""

from __future__ import annotations

import logging

from aiokafka.errors import InvalidSessionTimeoutError, KafkaError, for_code
from aiokafka.protocol.group import JoinGroupRequest

from hushstream.agents.errors import DENIED, SessionRefused
from hushstream.agents.kafka.administration import administering
from hushstream.agents.settings import WorkerSettings

logger = logging.getLogger(__name__)

KAFKA_LEAST_SECONDS = 6.0
_NOBODY = "nobody"
_PROTOCOLS = [("range", b"")]


async def with_session(settings: WorkerSettings) -> WorkerSettings:
    """The settings with a session length that the broker accepts: the configured one, or Kafka's default minimum.

    Raises:
        SessionRefused: the broker accepts neither.
        KafkaError, OSError, TimeoutError: the broker does not answer yet.
    """
    asked = settings.session_timeout_seconds
    if await _accepts(settings, asked):
        return settings
    if asked < KAFKA_LEAST_SECONDS and await _accepts(settings, KAFKA_LEAST_SECONDS):
        logger.info(
            "the broker refuses a session of %g s (group.min.session.timeout.ms): a dead worker is noticed after %g s",
            asked,
            KAFKA_LEAST_SECONDS,
        )
        return settings.model_copy(update={"session_timeout_seconds": KAFKA_LEAST_SECONDS})
    raise SessionRefused(
        f"expected the broker to accept a session of {asked:g} s, it does not (group.min.session.timeout.ms and "
        f"group.max.session.timeout.ms of the broker); set another with --session-timeout"
    )


async def _accepts(settings: WorkerSettings, seconds: float) -> bool:
    async with administering(settings.cluster) as admin:
        coordinator = await admin.find_coordinator(settings.group)
        milliseconds = round(seconds * 1000)
        request = JoinGroupRequest(settings.group, milliseconds, milliseconds, _NOBODY, None, "consumer", _PROTOCOLS)
        answer = await admin._send_request_to_node(coordinator, request)
    error: type[KafkaError] = for_code(answer.error_code)
    if error in DENIED or error.retriable:
        raise error(settings.group)
    return error is not InvalidSessionTimeoutError
