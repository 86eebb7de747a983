"""What devices agree to in any system: the keys that they trust, the privacy promise, and the models they accept."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from hushstream.engine.devices.envelope import ModelBody, Statement
from hushstream.engine.devices.errors import BadModel, OlderModel, WeakerAgreement
from hushstream.engine.devices.recipients import Recipient, Recipients
from hushstream.engine.devices.signing import SigningKey, SigningKeys

FORMAT = 1

StatementT = TypeVar("StatementT", bound=Statement)


class Price(NamedTuple):
    """The price of all slots in a user's life, as the agreement states it; see `Agreed.promise`.

    Attributes:
        epsilon_micro, delta_units: price for the question whether the user took part.
        exchange_epsilon_micro, exchange_delta_units: price for the question which of two things the user did.
        lifetime_slots: number of slots in the user's life.
    """

    epsilon_micro: int
    delta_units: int
    exchange_epsilon_micro: int
    exchange_delta_units: int
    lifetime_slots: int

    def require_no_weaker_than(self, other: Price) -> None:
        """Refuse this price if any of its figures is larger than in the ``other`` one.

        Raises:
            WeakerAgreement: a figure is larger.
        """
        for name, mine, theirs in zip(self._fields, self, other, strict=True):
            if mine > theirs:
                raise WeakerAgreement(f"agreement: expected {name} of at most {theirs}, as was agreed, got {mine}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreed(ABC, Generic[StatementT]):
    """The agreement of a device with a deployment: the part that all systems share.

    Attributes:
        deployment: name of the deployment.
        configuration: digest of its configuration, 16 bytes.
        sealing, signing: the first sealing key and the first signing key, as key chains of length one.
        promise: the price of all slots in a user's life.
        text: the promise in words.
        delay_ms: upper end of the random delay that a device adds before it sends a slot.
    """

    deployment: str
    configuration: bytes
    sealing: Recipients
    signing: SigningKeys
    promise: Price
    text: tuple[str, ...]
    delay_ms: int

    def require_keys(self, model: ModelBody, signing: SigningKeys, sealing: Recipients) -> None:
        """Refuse a model whose key chains do not continue those that a device knows.

        Args:
            model: the model as it was received; the signatures within its key chains have been checked.
            signing, sealing: the longest key chains that the device has seen; at first those of the agreement.

        Raises:
            BadModel: a known key was replaced or is missing.
        """
        for found, known in ((model.signing.keys, signing.keys), (model.sealing.keys, sealing.keys)):
            if tuple(found[: len(known)]) != tuple(known):
                raise BadModel("model: expected key chains that continue the known ones, got others")

    @abstractmethod
    def stated(self, model: ModelBody, now_ms: int, seen: StatementT | None) -> StatementT:
        """Read a model's statement, and check that a device may accept the model. The caller checks the content.

        Raises:
            BadModel: see `require_stated`; or the statement does not fit this system's agreement.
        """

    def require_stated(
        self, model: ModelBody, statement: StatementT, now_ms: int, seen: StatementT | None
    ) -> StatementT:
        """Return a statement if a device may accept its model. Each system checks further fields of its own.

        Args:
            model: the model; its keys have been checked.
            statement: its statement, decoded.
            now_ms: time of the device's clock.
            seen: statement of the newest version that the device has seen.

        Raises:
            OlderModel: the model is older than ``seen``, or has expired.
            BadModel: the statement is not signed, or does not fit the agreement.
        """
        model.signing.verify(statement.version, model.signing_key, model.signature, model.statement)
        if (statement.deployment, statement.configuration) != (self.deployment, self.configuration.hex()):
            raise BadModel("model: expected one of the deployment and configuration that was agreed to, got another")
        price = (statement.epsilon_micro, whole_units(statement.delta_units))
        weaker = price[0] > self.promise.epsilon_micro or price[1] > self.promise.delta_units
        if weaker or not statement.private_as_stated:
            raise BadModel("model: expected one as private as was agreed, got a weaker one")
        if seen is not None and statement.version < seen.version:
            raise OlderModel(f"model: expected version {seen.version} or later, got {statement.version}")
        if seen is not None and statement.version == seen.version and statement != seen:
            raise BadModel(f"model: expected the known statement of version {seen.version}, got another")
        if statement.expires_ms <= now_ms:
            raise OlderModel("model: expected one that has not expired, got one that has")
        return statement


def configuration_of(canonical: bytes, prepared: bytes) -> bytes:
    """The digest of a configuration's canonical form and of the prepared artefacts, as `config_digest` computes it."""
    content = len(canonical).to_bytes(8, "little") + canonical + prepared
    return hashlib.blake2b(content, digest_size=16, person=b"hush-config").digest()


def keys_of(values: Mapping[str, Any]) -> tuple[Recipients, SigningKeys]:
    """The first keys of an agreement, as key chains of length one."""
    public, vouch = (bytes.fromhex(values["sealing"][name]) for name in ("public_key", "vouch_key"))
    return Recipients((Recipient(public, vouch),)), SigningKeys((SigningKey(bytes.fromhex(values["signing_key"])),))


def price_of(promise: Mapping[str, Any], lifetime_slots: int) -> Price:
    """The price that an agreement states."""
    return Price(
        int(promise["epsilon_micro"]),
        whole_units(promise["delta_units"]),
        int(promise["exchange_epsilon_micro"]),
        whole_units(promise["exchange_delta_units"]),
        lifetime_slots,
    )


def whole_units(text: str) -> int:
    """Read a number of units from decimal digits; raises `BadModel` for anything else."""
    if not (isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= 40):
        raise BadModel("expected a whole number as decimal digits, got something else")
    return int(text)
