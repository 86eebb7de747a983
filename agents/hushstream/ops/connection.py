"""Connects the operator's tools to a broker, and turns the broker's refusals into one-line errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from hushstream.agents.errors import DENIED, AccessDenied, BrokerUnreachable
from hushstream.agents.kafka.administration import AT_THE_DOOR, check_version, why_unreachable
from hushstream.agents.security import Cluster, Security
from hushstream.agents.settings import WorkerSettings
from hushstream.schemas.errors import HushstreamError

_ROLE = "operator"


class BrokerRefused(HushstreamError):
    """The broker answered with an error other than a missing access right."""


@dataclass(frozen=True, slots=True)
class Connection:
    """A cluster, and the prefix of one deployment's topics on it.

    Attributes:
        bootstrap: ``host:port`` of one or more brokers, separated by commas.
        prefix: the prefix of the deployment's topic names.
        security: SASL and TLS.
        timeout_seconds: how long a broker may take to answer at first, and for one request.
    """

    bootstrap: str
    prefix: str
    security: Security = field(default_factory=Security)
    timeout_seconds: float = 20.0

    def __post_init__(self) -> None:
        """Refuse an unencrypted connection to another machine; see `Cluster.require_encryption`."""
        self.cluster.require_encryption()

    @property
    def cluster(self) -> Cluster:
        """The cluster, without the prefix."""
        return Cluster(self.bootstrap, self.security)

    def settings(self) -> WorkerSettings:
        """Settings as for a worker, with which code can read logs without a group; it writes no files."""
        return WorkerSettings(
            bootstrap=self.bootstrap, role=_ROLE, group=_ROLE, topic_prefix=self.prefix, datadir=Path(),
            security=self.security, connect_timeout_seconds=self.timeout_seconds,
        )  # fmt: skip

    @asynccontextmanager
    async def admin(self, doing: str) -> AsyncIterator[AIOKafkaAdminClient]:
        """Open an admin client; errors in the block become one-line errors that name the purpose ``doing``.

        Raises:
            BrokerUnreachable, AccessDenied, BrokerRefused: see `client_errors`.
        """
        async with client_errors(self, doing):
            client = AIOKafkaAdminClient(
                **self.settings().client_options(), request_timeout_ms=round(self.timeout_seconds * 1000)
            )
            try:
                async with asyncio.timeout(self.timeout_seconds):
                    await check_version(self.cluster, self.timeout_seconds)
                    await client.start()
                yield client
            finally:
                await client.close()


@asynccontextmanager
async def client_errors(connection: Connection, doing: str) -> AsyncIterator[None]:
    """Turn the Kafka client's errors into ours.

    Raises:
        AccessDenied: an access rule forbids it.
        BrokerUnreachable: no broker answers in time.
        BrokerRefused: the broker answered with another error.
    """
    try:
        yield
    except DENIED as error:
        raise AccessDenied(f"{doing}: the broker's access rules forbid it ({_name(error)})") from None
    except KafkaError as error:
        if not error.retriable and not isinstance(error, AT_THE_DOOR):
            raise BrokerRefused(f"{doing}: {connection.bootstrap} answered {_name(error)}") from None
        raise await _absent(connection, doing, error) from None
    except (OSError, TimeoutError) as error:
        raise await _absent(connection, doing, error) from None


def guard_code(doing: str, code: int, message: str | None, make: Callable[[int], Any]) -> None:
    """Raise the error for an error code in a response; 0 means success.

    Raises:
        AccessDenied, BrokerRefused: as in `client_errors`.
    """
    if not code:
        return
    kind = make(code)
    if issubclass(kind, DENIED):
        raise AccessDenied(f"{doing}: the broker's access rules forbid it ({kind.__name__})")
    raise BrokerRefused(f"{doing}: {kind.__name__}{f', {message}' if message else ''}")


async def _absent(connection: Connection, doing: str, error: Exception) -> BrokerUnreachable:
    why = await why_unreachable(connection.cluster, connection.timeout_seconds)
    # Where nobody listens the client does not wait.
    waited = f" within {connection.timeout_seconds:g} s" if isinstance(error, TimeoutError) else ""
    return BrokerUnreachable(f"{doing}: no broker at {connection.bootstrap} answered{waited} ({_name(error)}){why}")


def _name(error: Exception) -> str:
    return type(error).__name__
