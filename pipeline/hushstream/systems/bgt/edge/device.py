"""A device: it holds one user's ratings, makes a slot for each round, and takes models.

    device.rate -> device.take -> device.outgoing -> (written, then sent) -> device.handed_in
    device.predict

It uses no network, no clock and no file. The caller of `outgoing` writes `RatingDevice.dump` first, and sends the slots
afterwards (`hushstream.edge.ratings`). Otherwise a device that is killed in between could make other bytes for a slot
that has left. A device that is restored from an older copy may answer a round again, under the same id: the collector
counts an id once. A device that was cleared has a new key, so for everybody it is another user.

*Agreement.* What a device agreed to: all settings, public features of items, keys, and what its user is promised.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hushstream.engine.configuration import PartitionConfig, PrivacyConfig
from hushstream.engine.devices.agreed import FORMAT, Agreed, TakesModels, keys_of, price_of, require_stated_price
from hushstream.engine.devices.envelope import ModelBody, read_model
from hushstream.engine.devices.kept import (
    BadAgreement,
    BadModel,
    BadSeal,
    DeviceError,
    Drawn,
    Outgoing,
    delay_ms,
    packed,
    unpacked,
)
from hushstream.engine.devices.sealing import body_bytes, body_of, place_of, seal_content
from hushstream.engine.noise.budget import BudgetConfig
from hushstream.engine.values import ConfigurationError
from hushstream.privacy.amounts import MICRO, delta_units, delta_value
from hushstream.privacy.keys import KEY_BYTES, Key
from hushstream.systems.bgt.configuration import BgtConfig, ModelConfig, ReleaseConfig, ScaleConfig, bgt_digest
from hushstream.systems.bgt.edge.agent import RatingAgent
from hushstream.systems.bgt.records import (
    ROUNDS,
    Float64,
    Model,
    Round,
    Statement,
    features_bytes,
    first_round,
    null_slots,
    packed_slots,
    slot_bytes,
    version_of,
)

_PARTS: Mapping[str, type] = {
    "scale": ScaleConfig,
    "release": ReleaseConfig,
    "model": ModelConfig,
    "partitions": PartitionConfig,
    "privacy": PrivacyConfig,
}


_ORDERS = range(2, 4096)
"""Orders of Renyi's divergence. A device has no exact arithmetic, so prices are computed in floats."""

_SLACK = 20
"""By how many millionths of epsilon floats and whole numbers may differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement(Agreed[Statement]):
    """What a device agreed to; see the module.

    Attributes:
        config: the whole configuration.
        features: (I, f) public features of items.
    """

    config: BgtConfig
    features: Float64

    @classmethod
    def read(cls, content: str | bytes) -> Agreement:
        """An agreement as it is shipped.

        Raises:
            BadAgreement: it is no agreement of this format and system, or its parts do not fit one another.
        """
        try:
            values = json.loads(content)
            if (values["format"], values.get("system")) != (FORMAT, "bgt"):
                raise BadAgreement(f"agreement: expected format {FORMAT} of bgt, got another")
            return _agreement(values)
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
            raise BadAgreement(f"agreement: expected what a deployment makes, got {type(error).__name__}") from None
        except (BadSeal, BadModel, ConfigurationError) as error:
            raise BadAgreement(f"agreement: {error}") from None

    @property
    def body_bytes(self) -> int:
        """The size of every slot as it travels."""
        return body_bytes(slot_bytes(self.config))

    def price_from(self, slot: int) -> int:
        """See `Agreed.price_from`: the rhos of the rounds that the promise pays for, once for each epoch of noise.

        Rhos of different agreements add up, and any (epsilon, delta) that a rho has, a smaller one has too. What the
        noise tables add to delta is not counted: a promise states it, and for three slots it is below 1e-12.
        """
        return self.config.release.epochs * sum(_rhos(self.config)[slot : self.rounds])

    @property
    def rounds(self) -> int:
        """How many rounds the stated promise pays for: all, or the first ones if a budget has no room for more.

        In further rounds the device sends null. So a promise that states too few is kept.

        Raises:
            BadAgreement: the promise is not the price of any number of rounds; or there are several epochs of noise and
                a budget, whose filter a device does not have.
        """
        release, rhos = self.config.release, _rhos(self.config)
        if self.config.budget is not None and release.epochs > 1:
            raise BadAgreement("agreement: expected no budget beside several epochs of noise, got one")
        half = delta_units(release.delta) // 2
        least = ROUNDS if self.config.budget is None else 1
        for rounds in range(ROUNDS, least - 1, -1):
            zero_out, which = (release.epochs * _epsilon_micro(times * sum(rhos[:rounds]), half) for times in (1, 4))
            if rounds == least or abs(self.promise.epsilon_micro - zero_out) <= _SLACK * release.epochs:
                break
        deltas = (release.epochs * half, release.epochs * half)
        require_stated_price(self.promise, (zero_out, which), deltas, _SLACK * release.epochs)
        return rounds

    def stated(self, model: ModelBody, now_ms: int, seen: Statement | None) -> Statement:
        """See `Agreed.stated`."""
        return self.require_stated(model, Statement.read(model.statement), now_ms, seen)


def _agreement(values: Mapping[str, Any]) -> Agreement:
    config, features = _config(values["settings"]), np.array(values["features"], dtype=np.float64)
    features = features.reshape(config.items, config.features)
    sealing, signing = keys_of(values)
    configuration = bytes.fromhex(values["configuration"])
    pinned = sealing.pinned + signing.pinned
    if configuration != bgt_digest(config, features_bytes(features), False, pinned) or not config.devices:
        raise BadAgreement("agreement: expected the digest of its settings and keys, got another")
    made = Agreement(
        deployment=values["deployment"],
        configuration=configuration,
        sealing=sealing,
        signing=signing,
        promise=price_of(values["promise"]),
        text=tuple(map(str, values["promise"]["text"])),
        delay_ms=int(values["slot"]["delay_ms"]),
        config=config,
        features=features,
    )
    stated = (made.deployment, made.delay_ms, values["slot"]["content_bytes"], values["slot"]["body_bytes"])
    expected = (config.deployment, round(config.settle_seconds * 1000), slot_bytes(config), made.body_bytes)
    if stated != expected or made.promise.lifetime_slots != ROUNDS or not made.rounds:
        raise BadAgreement("agreement: expected figures of its settings, got others")
    return made


def _rhos(config: BgtConfig) -> list[int]:
    """The price of each round's slot in one epoch, in millionths of rho; see `price.sensitivity.rho_micro`."""
    release = config.release
    if release.noise == "exact":
        raise BadAgreement("agreement: expected releases with noise, got exact ones")
    epsilon, logarithm = release.epsilon, -math.log(delta_value(delta_units(release.delta) // 2))
    most = max((epsilon - _beside(order, logarithm)) / order for order in _ORDERS)
    return [max(1, int(int(most * MICRO) * share)) for share in release.shares]


def _epsilon_micro(rho: int, delta: int) -> int:
    """The epsilon that a rho in millionths has at a delta in units; see `privacy.conversions.rho_to_epsilon_micro`."""
    logarithm = -math.log(delta_value(delta))
    return math.ceil(MICRO * min(order * rho / MICRO + _beside(order, logarithm) for order in _ORDERS))


def _beside(order: int, logarithm: float) -> float:
    return (logarithm - math.log(order)) / (order - 1) + math.log1p(-1 / order)


def _config(settings: Mapping[str, Any]) -> BgtConfig:
    parts: dict[str, Any] = {name: part(**settings[name]) for name, part in _PARTS.items()}
    if settings["budget"] is not None:
        parts["budget"] = BudgetConfig(**settings["budget"])
    return BgtConfig(**{**settings, **parts})


STATE_FORMAT = 1


@dataclass(frozen=True, slots=True)
class _Owed:
    """The slot that the device owes in a round.

    Attributes:
        round: number of the round.
        send_ms: the slot may leave from this time on.
        slot_id, body: of the slot, as soon as it was made; empty before.
    """

    round: int
    send_ms: int
    slot_id: bytes = b""
    body: bytes = b""


class RatingDevice(TakesModels[Statement]):
    """One user's device. Not thread-safe."""

    agreement: Agreement

    def __init__(self, agreement: Agreement, key: bytes, draw: Drawn, answered: int = 0) -> None:
        """Begin a user's life on this device.

        Args:
            agreement: what the application shipped.
            key: 32 random bytes, the user's key; they are in the state, and leave it nowhere.
            draw: draws random bytes, from which it follows when a slot leaves.
            answered: how many rounds were answered before.
        """
        super().__init__(agreement)
        self._key, self._draw = key, draw
        # How many rounds were answered is in `dump`, which is written before a slot leaves.
        config, features, digest = agreement.config, agreement.features, agreement.configuration
        self._agent = RatingAgent(config, Key(key), lambda answered: None, answered, features, digest)
        self._owed: _Owed | None = None
        first = first_round(config)
        self._asked: Round | None = first
        self._model: Model = first.model

    @classmethod
    def begun(cls, agreement: Agreement, draw: Drawn) -> RatingDevice:
        """A device with a key of its own."""
        return cls(agreement, draw(KEY_BYTES), draw)

    # What the application calls.

    def rate(self, items: Sequence[int], ratings: Sequence[float]) -> None:
        """See `RatingAgent.rate`, and what that raises."""
        self._agent.rate(items, ratings)

    def forget(self, items: Iterable[int] | None = None) -> None:
        """See `RatingAgent.forget`."""
        self._agent.forget(items)

    def predict(self, items: Iterable[int]) -> Float64:
        """What the user is expected to rate items, by the newest model; nothing leaves the device.

        Raises:
            BadRatings: an unknown item.
        """
        return self._agent.predict(items, self._model)

    # What leaves.

    def outgoing(self, now_ms: int) -> list[Outgoing]:
        """The sealed slot that may leave by now, if there is one; see the module: the state is written before."""
        asked = self._asked
        if asked is None or (self._owed is not None and self._owed.round != asked.number):
            self._owed = None  # its round is over, so the slot would not count
        if asked is not None and asked.number >= self._agent.answered:
            if self._owed is None:
                self._owed = _Owed(asked.number, now_ms + delay_ms(self.agreement.delay_ms, self._draw))
            if self._owed.send_ms <= now_ms:
                self._owed = self._made(self._owed, asked)
        owed = self._owed
        return [Outgoing(owed.slot_id, owed.body)] if owed is not None and owed.body else []

    def handed_in(self, slot_id: bytes) -> None:
        """Drop a slot that the log now holds."""
        if self._owed is not None and self._owed.slot_id == slot_id:
            self._owed = None

    def next_ms(self) -> int | None:
        """When the next slot may leave; None while the device owes none."""
        return None if self._owed is None else self._owed.send_ms

    def _made(self, owed: _Owed, asked: Round) -> _Owed:
        configuration = self.agreement.configuration
        self._pay(asked.number)
        sent = self._agent.answer(asked, configuration)
        slot = sent.slot if asked.number < self.agreement.rounds else null_slots(1, self.agreement.config)
        place = place_of(sent.slot_id, owed.round, configuration)
        sealed = seal_content(packed_slots(slot)[0], place, self._sealing.at(owed.round))
        return _Owed(owed.round, owed.send_ms, sent.slot_id, body_of(place, sealed))

    def _adopt(self, statement: Statement, content: bytes) -> None:
        """Take the model of a version, and the round that the version asks for."""
        self._model, self._asked, _ = version_of(statement, content, self.agreement.config)

    # Its state.

    def dump(self) -> bytes:
        """The whole state, with the key: whoever has these bytes has all ratings of the user on this device."""
        owed = self._owed
        return packed(
            {
                "format": STATE_FORMAT,
                "configuration": self.agreement.configuration,
                **self._spent(),
                "key": self._key,
                "answered": self._agent.answered,
                "ratings": self._agent.ratings,
                "owed": None if owed is None else [owed.round, owed.send_ms, owed.slot_id, owed.body],
                "model": None if self._taken is None else self._taken.as_bytes(),
            }
        )

    @classmethod
    def load(cls, agreement: Agreement, dumped: bytes, draw: Drawn) -> RatingDevice:
        """The device that `dump` wrote.

        Raises:
            BadAgreement: the device agreed to another configuration (`agreed_anew` changes to this one).
            DeviceError: these are not the bytes of a device.
        """
        state = unpacked(dumped, STATE_FORMAT)
        try:
            if state["configuration"] != agreement.configuration:
                raise BadAgreement("state: expected the configuration that this device agreed to, got another")
            device = cls(agreement, state["key"], draw, state["answered"])
            device._spent_before(state, state["answered"])
            device.rate(*state["ratings"])
            device._owed = None if state["owed"] is None else _Owed(*state["owed"])
            if state["model"] is not None:
                model = read_model(state["model"])
                statement = Statement.read(model.statement)
                device._adopt(statement, model.content)
                device._remember(model, statement)
        except (KeyError, TypeError, ValueError) as error:
            raise DeviceError(f"state: expected what a device wrote, got {type(error).__name__}") from None
        return device

    @classmethod
    def agreed_anew(cls, agreement: Agreement, dumped: bytes, draw: Drawn) -> RatingDevice:
        """A device that changes to another agreement. Answered rounds stay answered, and what was paid stays paid.

        Its ratings are dropped, and a slot that it owed under the old agreement, because items may have other numbers.

        Raises:
            WeakerAgreement: the rounds that are left would cost more than what is left of the first agreement's life.
            DeviceError: these are not the bytes of a device.
        """
        state: dict[str, Any] = unpacked(dumped, STATE_FORMAT)
        try:
            device = cls(agreement, state["key"], draw, state["answered"])
            device._spent_before(state, state["answered"])
            return device
        except (KeyError, TypeError, ValueError) as error:
            raise DeviceError(f"state: expected what a device wrote, got {type(error).__name__}") from None
