"""What a gateway for devices knows of a system: where its slots go, in which record, and which of them are stale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from hushstream.engine.declare.declaration import System
from hushstream.engine.declare.role import DeclarationError
from hushstream.engine.declare.topics import STATEMENTS
from hushstream.engine.devices.envelope import STATEMENT_RECORD
from hushstream.engine.devices.recipients import Recipients
from hushstream.engine.devices.signing import SigningKeys
from hushstream.engine.devices.travelling import body_bytes, period_of
from hushstream.schemas import codec
from hushstream.systems.bgt import artefacts as ratings
from hushstream.systems.bgt.deployment import BgtSystem
from hushstream.systems.bgt.rounds import Round, first_round
from hushstream.systems.bgt.slots import slot_bytes
from hushstream.systems.bgt.stated import signed_round
from hushstream.systems.p2b.contribution.feature_slots import SLOT_RECORD
from hushstream.systems.p2b.device.stated import Statement as VisitStatement
from hushstream.systems.p2b.guarantee.deployment import P2BSystem
from hushstream.systems.p2b.prepared.device_agreement import agreement_of

_BEHIND = 1
"""A slot may name the current period or the one before it."""


class Desk(Protocol):
    """One system's side of a gateway.

    Attributes:
        topic, partitions: where slots go.
        digest: of the deployment.
        sealing, signing: its public keys.
        body_bytes: of every slot.
        agreement: what devices agree to.
        opening: a record that has to lie in the topic before a slot does; None for none.
    """

    topic: str
    partitions: int
    digest: bytes
    sealing: Recipients
    signing: SigningKeys
    body_bytes: int
    agreement: bytes
    opening: bytes | None

    def is_stale(self, fields: Mapping[str, Any], now_ms: int) -> bool:
        """Whether a slot comes too late, or too early, to count."""

    def record(self, fields: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """The record that a slot becomes: its name and fields."""

    def follow(self, fields: Mapping[str, Any]) -> None:
        """Take note of the model in a `STATEMENT_RECORD`, which may be anybody's.

        Raises:
            BadModel: the aggregator of this deployment has not signed it.
        """


class VisitDesk:
    """Of P2B with declared features."""

    opening: bytes | None = None

    def __init__(self, system: P2BSystem) -> None:
        """Bind to a deployment whose learners are devices."""
        assert system.sealing is not None
        assert system.signing is not None
        self.topic, self.partitions = "reports", system.config.partitions.shuffler
        self.digest, self.sealing, self.signing = system.digest, system.sealing, system.signing
        self.body_bytes, self.agreement = body_bytes(system.form.content_bytes), agreement_of(system)
        self._period_ms = system.window_rules().period_ms

    def is_stale(self, fields: Mapping[str, Any], now_ms: int) -> bool:
        return not 0 <= now_ms // self._period_ms - period_of(fields) <= _BEHIND

    def record(self, fields: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        return SLOT_RECORD, fields

    def follow(self, fields: Mapping[str, Any]) -> None:
        """See `Desk.follow`; nothing that a slot depends on is in a model."""
        VisitStatement.signed_in(fields, self.signing, self.digest)


class RatingDesk:
    """Of BGTplanner: a slot counts in the round that is open, which has to be told to the collector before it."""

    topic, partitions = "updates", 1

    def __init__(self, system: BgtSystem, schema_generation: int) -> None:
        """Bind to a deployment whose slots devices make; rounds are written in a schema generation."""
        assert system.sealing is not None
        assert system.signing is not None
        self.digest, self.sealing, self.signing = system.digest, system.sealing, system.signing
        self.body_bytes, self.agreement = body_bytes(slot_bytes(system.config)), ratings.agreement_of(system)
        self.opening: bytes | None = None
        self._config, self._generation = system.config, schema_generation
        self.asked: Round | None = first_round(system.config)
        """The round that is open."""

    def is_stale(self, fields: Mapping[str, Any], now_ms: int) -> bool:
        return self.asked is None or period_of(fields) != self.asked.number

    def record(self, fields: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        named = {"slot_id": fields["report_id"], "config_digest": fields["config_digest"], "round": period_of(fields)}
        return "SealedRatingSlot", {**named, "sealed": fields["sealed"]}

    def follow(self, fields: Mapping[str, Any]) -> None:
        self.asked, _ = signed_round(fields, self._config, self.digest, self.signing)
        self.opening = None if self.asked is None else codec.encode(STATEMENT_RECORD, fields, self._generation)


def desk_of(system: System, schema_generation: int) -> Desk:
    """A deployment as its gateway for devices knows it.

    Raises:
        DeclarationError: no devices take part in it.
    """
    if STATEMENTS not in system.devices:
        raise DeclarationError(
            f"deployment {system.config.deployment}: expected one whose learners are devices (kind edge; p2b with "
            f"declared features, or bgt), got another"
        )
    if RatingDesk.topic in system.devices:
        return RatingDesk(system.core, schema_generation)
    return VisitDesk(system.core)
