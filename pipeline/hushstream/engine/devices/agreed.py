"""What devices agree to in any system: the keys that they trust, the privacy promise, and the models they accept.

*Taking.* What every device remembers: versions and keys, so that it accepts no older model and no loss of a key; and
what its user has paid, so that no change of the agreement begins another life.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from hushstream.engine.devices.envelope import ModelBody, Statement, read_model
from hushstream.engine.devices.kept import BadAgreement, BadModel, OlderModel, WeakerAgreement
from hushstream.engine.devices.sealing import Recipient, Recipients
from hushstream.engine.devices.signing import SigningKey, SigningKeys

FORMAT = 1

StatementT = TypeVar("StatementT", bound=Statement)


class Price(NamedTuple):
    """The price of all slots in a user's life, as the agreement states it; see `Agreed.promise`.

    Attributes:
        epsilon_micro, delta_units: price for the question whether what the user gave held anything.
        exchange_epsilon_micro, exchange_delta_units: cost under replace-one.
        lifetime_slots: number of slots in the user's life.
    """

    epsilon_micro: int
    delta_units: int
    exchange_epsilon_micro: int
    exchange_delta_units: int
    lifetime_slots: int


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

    @abstractmethod
    def price_from(self, slot: int) -> int:
        """What the slots of a life cost from number ``slot`` on, computed from the settings: the stated price is not
        believed.

        It is in millionths of what adds up over slots, whatever the agreement: of epsilon, or of rho if the noise is
        Gaussian. So prices of different agreements of one system add up, too.
        """

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


def price_of(promise: Mapping[str, Any]) -> Price:
    """The price that an agreement states."""
    return Price(
        int(promise["epsilon_micro"]),
        whole_units(promise["delta_units"]),
        int(promise["exchange_epsilon_micro"]),
        whole_units(promise["exchange_delta_units"]),
        int(promise["lifetime_slots"]),
    )


def require_stated_price(stated: Price, epsilons: tuple[int, int], deltas: tuple[int, int], slack: int) -> None:
    """Refuse an agreement that states another price than its settings have.

    Args:
        stated: what it states.
        epsilons: those of its settings, in millionths: zero-out, and replace-one.
        deltas: the least deltas of both, in units of 2^-80; the error of noise tables may come on top.
        slack: by how many millionths an epsilon may differ, as a device computes it in floats.

    Raises:
        BadAgreement: they differ, or the settings give no price, so that slots under them would count as nothing.
    """
    if epsilons[0] < 1:
        raise BadAgreement(f"agreement: expected settings by which slots cost something, got epsilon {epsilons[0]}")
    told = (stated.epsilon_micro, stated.exchange_epsilon_micro)
    near = all(abs(one - computed) <= slack for one, computed in zip(told, epsilons, strict=True))
    if not near or stated.delta_units < deltas[0] or stated.exchange_delta_units < deltas[1]:
        raise BadAgreement(
            f"agreement: expected the privacy cost of its settings, {epsilons[0]} and {epsilons[1]}, got {told}"
        )


def whole_units(text: str) -> int:
    """Read a number of units from decimal digits; raises `BadModel` for anything else."""
    if not (isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= 40):
        raise BadModel("expected a whole number as decimal digits, got something else")
    return int(text)


class TakesModels(ABC, Generic[StatementT]):
    """The part of a device that accepts models and counts what was paid, in any system. Not thread-safe."""

    def __init__(self, agreement: Agreed[StatementT]) -> None:
        """Begin with the agreement's own keys."""
        self.agreement = agreement
        self._taken: ModelBody | None = None
        self._seen: StatementT | None = None
        self._signing, self._sealing = agreement.signing, agreement.sealing
        self._life, self._paid = agreement.price_from(0), 0

    @property
    def tag(self) -> str | None:
        """The entity tag of the newest model that was accepted; None if there is none."""
        return None if self._taken is None else self._taken.tag

    @property
    def version(self) -> int:
        """Version of the newest model that was accepted; 0 if there is none."""
        return 0 if self._seen is None else self._seen.version

    def take(self, body: bytes, now_ms: int) -> StatementT:
        """Check a model, and use it from now on.

        Args:
            body: the body of the answer, as it was received.
            now_ms: time of the device's clock.

        Raises:
            BadModel: the device must not accept it (the page on the transport lists the reasons). Nothing has changed.
        """
        model = read_model(body)
        self.agreement.require_keys(model, self._signing, self._sealing)
        statement = self.agreement.stated(model, now_ms, self._seen)
        self._adopt(statement, model.content)
        self._remember(model, statement)
        return statement

    @abstractmethod
    def _adopt(self, statement: StatementT, content: bytes) -> None:
        """Use the content of an accepted model from now on; raises `BadModel` before anything has changed."""

    def _pay(self, slot: int) -> None:
        """Charge a slot of this agreement, before it leaves.

        Deltas of agreements are not added up: rho has none, and what noise tables add to a slot (below 10^-15) is paid
        at most once for each millionth of the life, as no slot costs less: 10^-9 for each unit of epsilon.
        """
        self._paid += self.agreement.price_from(slot) - self.agreement.price_from(slot + 1)

    def _spent(self) -> Mapping[str, int]:
        """The part of the state that says what was paid, and what the first agreement's whole life costs."""
        return {"life": self._life, "paid": self._paid}

    def _spent_before(self, state: Mapping[str, Any], slot: int) -> None:
        """Continue with what a state says was paid; ``slot`` is the next one.

        Raises:
            WeakerAgreement: this and the further slots would cost more than the first agreement's life.
        """
        self._life, self._paid = int(state["life"]), int(state["paid"])
        most = self._paid + self.agreement.price_from(slot)
        if most > self._life:
            raise WeakerAgreement(
                f"agreement: expected further slots that cost at most {self._life - self._paid} millionths, the rest "
                f"of the life first agreed to, got {most - self._paid}"
            )

    def _remember(self, model: ModelBody, statement: StatementT) -> None:
        self._taken, self._seen = model, statement
        self._signing, self._sealing = model.signing, model.sealing
