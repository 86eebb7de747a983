"""A device: it holds one user's ratings, makes a slot for each round, and takes models.

    device.rate -> device.take -> device.outgoing -> (written, then sent) -> device.handed_in
    device.predict

It uses no network, no clock and no file. The caller of `outgoing` writes `RatingDevice.dump` first, and sends the slots
afterwards (`hushstream.edge.ratings`). Otherwise a device that is killed in between could make other bytes for a slot
that has left. A device that is restored from an older copy may answer a round again, under the same id: the collector
counts an id once. A device that was cleared has a new key, so for everybody it is another user.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hushstream.engine.devices.agreed import Price
from hushstream.engine.devices.envelope import read_model
from hushstream.engine.devices.errors import BadAgreement, DeviceError
from hushstream.engine.devices.kept import Drawn, Outgoing, delay_ms, packed, unpacked
from hushstream.engine.devices.sealing import seal_content
from hushstream.engine.devices.taking import TakesModels
from hushstream.engine.devices.travelling import body_of, place_of
from hushstream.privacy.keys import KEY_BYTES, Key
from hushstream.systems.bgt.edge.agent import RatingAgent
from hushstream.systems.bgt.edge.agreement import Agreement
from hushstream.systems.bgt.rounds import Model, Round, first_round
from hushstream.systems.bgt.slots import Float64, packed_slots
from hushstream.systems.bgt.stated import Statement, version_of

FORMAT = 1


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
        sent = self._agent.answer(asked, configuration)
        place = place_of(sent.slot_id, owed.round, configuration)
        sealed = seal_content(packed_slots(sent.slot)[0], place, self._sealing.at(owed.round))
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
                "format": FORMAT,
                "configuration": self.agreement.configuration,
                "promise": list(self.agreement.promise),
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
        state = unpacked(dumped, FORMAT)
        try:
            if state["configuration"] != agreement.configuration:
                raise BadAgreement("state: expected the configuration that this device agreed to, got another")
            device = cls(agreement, state["key"], draw, state["answered"])
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
        """A device that changes to another agreement, which must promise no less. Answered rounds stay answered.

        Its ratings are dropped, and a slot that it owed under the old agreement, because items may have other numbers.

        Raises:
            WeakerAgreement: the new agreement promises less.
            DeviceError: these are not the bytes of a device.
        """
        state: dict[str, Any] = unpacked(dumped, FORMAT)
        try:
            agreement.promise.require_no_weaker_than(Price(*state["promise"]))
            return cls(agreement, state["key"], draw, state["answered"])
        except (KeyError, TypeError, ValueError) as error:
            raise DeviceError(f"state: expected what a device wrote, got {type(error).__name__}") from None
