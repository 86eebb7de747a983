"""A secured Apache Kafka that `deploy/kafka/local.py up --secured` started, and who may knock at it."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from aiokafka.errors import GroupCoordinatorNotAvailableError
from modules import module_at

from hushstream.agents.security import Security, read_security
from hushstream.ops.connection import Connection

FOLDER = os.environ.get("HUSHSTREAM_TEST_SECURED")
CERTIFICATES = Path(__file__).parents[3] / "deploy" / "kafka" / "certificates.py"


@dataclass(frozen=True)
class SecuredKafka:
    """Where the broker is, and everybody's credentials."""

    folder: Path

    @property
    def passwords(self) -> str:
        """The listener for passwords."""
        return (self.folder / "bootstrap").read_text(encoding="utf-8")

    @property
    def certificates(self) -> str:
        """The listener for certificates."""
        return (self.folder / "bootstrap-certificate").read_text(encoding="utf-8")

    def file(self, name: str) -> Path:
        """A client's settings file."""
        return self.folder / "security" / f"{name}.yaml"

    def security(self, name: str, **changes: Any) -> Security:
        """A client's settings, with changes."""
        values = read_security(self.file(name), {}).model_dump()
        return Security(**{**values, **changes})

    def connection(self, name: str, prefix: str, **changes: Any) -> Connection:
        """As the user of a password, or of a certificate (``NAME-certificate``)."""
        address = self.certificates if name.endswith("-certificate") else self.passwords
        return Connection(address, prefix, self.security(name, **changes), timeout_seconds=10)

    def certificate(self, folder: Path, name: str, ends: datetime | None = None, trusted: bool = True) -> Path:
        """A new certificate in a folder, signed by the broker's authority or by one that nobody knows."""
        module = module_at(CERTIFICATES, "hushstream_test_certificates")
        authority = module.Authority.read(self.folder / "security") if trusted else module.Authority.new()
        found: Path = authority.issue(folder, name, ends)
        return found


async def _groups_are_served(kafka: SecuredKafka) -> None:
    """The first question about a group makes the broker create the topic of offsets, which takes a moment."""
    async with kafka.connection("admin", "").admin("ask") as admin:
        for _ in range(100):
            try:
                await admin.find_coordinator("first")
                return
            except GroupCoordinatorNotAvailableError:
                await asyncio.sleep(0.1)


@pytest.fixture(scope="session")
def kafka() -> SecuredKafka:
    if not FOLDER:
        pytest.skip(
            "needs a secured Apache Kafka (Java, Maven): start one with `python deploy/kafka/local.py up --secured` "
            "and set HUSHSTREAM_TEST_SECURED to its folder"
        )
    found = SecuredKafka(Path(FOLDER).resolve())
    asyncio.run(_groups_are_served(found))
    return found


@pytest.fixture(scope="session")
def fresh_name() -> Callable[[], str]:
    """Names of deployments that nobody has used on this broker."""
    return lambda: f"s{uuid.uuid4().hex[:10]}"
