"""A device: it runs one user's learner, sends the slots that it owes, and takes models.

    device.decide -> device.shown, device.reward -> device.outgoing -> (written, then sent) -> device.handed_in

It uses no network, no clock and no file. The caller of `outgoing` writes `Device.dump` first, and sends the slots
afterwards (`hushstream.edge.driver`). Otherwise a device that is killed in between could make other bytes for a slot
that has left. A device that is restored from an older copy gives the numbers of sent slots to further slots; the
shuffler does not count these, so they cost the user nothing (`EdgeAgent.load`). A device that was cleared has a new
key, so for everybody it is another user: it sends a slot of its own, at its own price. Nobody here can know that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hushstream.engine.devices.agreed import Price
from hushstream.engine.devices.envelope import read_model
from hushstream.engine.devices.errors import BadAgreement, DeviceError
from hushstream.engine.devices.kept import Drawn, Outgoing, delay_ms, packed, unpacked
from hushstream.engine.devices.sealing import seal_content
from hushstream.engine.devices.taking import TakesModels
from hushstream.engine.devices.travelling import body_of, place_of
from hushstream.feedback.join import JoinOutcome
from hushstream.privacy.keys import KEY_BYTES, Key
from hushstream.systems.p2b.device.agreement import TRACK, Agreement
from hushstream.systems.p2b.device.stated import Statement, arrays_of
from hushstream.systems.p2b.edge.agent import EdgeAgent
from hushstream.systems.p2b.edge.terms import Choice

FORMAT = 1


@dataclass(frozen=True, slots=True)
class _Owed:
    """A slot that fell due.

    Attributes:
        send_ms: the slot may leave from this time on.
        report_id, content: of the slot, as soon as it is taken; empty before.
        period: the report period that it was sealed for.
        body: the sealed slot; empty before.
    """

    send_ms: int
    report_id: bytes = b""
    content: bytes = b""
    period: int = 0
    body: bytes = b""


class Device(TakesModels[Statement]):
    """One user's device. Not thread-safe."""

    agreement: Agreement

    def __init__(self, agreement: Agreement, key: bytes, draw: Drawn) -> None:
        """Begin a user's life on this device.

        Args:
            agreement: what the application shipped.
            key: 32 random bytes, the user's key; they are in the state, and leave it nowhere.
            draw: draws random bytes, from which it follows when a slot leaves.
        """
        super().__init__(agreement)
        self._key, self._draw = key, draw
        self._agent = EdgeAgent(agreement.terms(), Key(key), TRACK)
        self._owed: list[_Owed] = []

    @classmethod
    def begun(cls, agreement: Agreement, draw: Drawn) -> Device:
        """A device with a key of its own."""
        return cls(agreement, draw(KEY_BYTES), draw)

    # What the application calls.

    def decide(
        self, event_id: str, values: Mapping[str, Any], now_ms: int, eligible: np.ndarray[Any, Any] | None = None
    ) -> Choice:
        """Choose an item for a visit.

        Args:
            event_id: the application's name for the visit; until its deadline, the same id gets the same answer again.
            values: the values of declared features by name; a feature that is left out is missing.
            now_ms: time of the device's clock.
            eligible: bool (K,), or None for all items.

        Raises:
            HushstreamError: a feature that is not declared, or a value of another type; or no item is eligible.
        """
        agent, schema = self._agent, self.agreement.layout.schema
        row: Any = np.frombuffer(schema.encode(values).row, np.uint8)
        self._expire(now_ms)
        known = agent.known(event_id, now_ms)
        if known is not None:
            return known
        # The newest period that the clock ever showed stays in force: otherwise a clock set back would give new quota.
        if not agent.within_quota(max(now_ms, agent.period * self.agreement.quota_period_ms)):
            return agent.decide_publicly(row, eligible)
        choice = agent.decide_new(event_id, row, now_ms, eligible)
        if choice.slot_due:
            self._owed.append(
                _Owed(now_ms + self.agreement.attribution_window_ms + delay_ms(self.agreement.delay_ms, self._draw))
            )
        return choice

    def shown(self, event_id: str, item: int, now_ms: int) -> JoinOutcome:
        """Note the item that was on screen.

        Raises:
            HushstreamError: no such event waits, or there is no such item.
        """
        self._expire(now_ms)
        return self._agent.shown(event_id, item)

    def reward(self, event_id: str, item: int, reward: float, now_ms: int) -> JoinOutcome:
        """Learn from a reward in [0, 1].

        Raises:
            HushstreamError: no such event waits, there is no such item, or the reward is outside.
        """
        self._expire(now_ms)
        return self._agent.rewarded(event_id, item, reward)

    # What leaves.

    def outgoing(self, now_ms: int) -> list[Outgoing]:
        """The sealed slots that may leave by now. From now on their content is fixed; see the module on writing."""
        self._expire(now_ms)
        for number, owed in enumerate(self._owed):
            if owed.send_ms <= now_ms and not owed.body:
                slot = self._agent.take_slot(now_ms)
                taken = replace(owed, report_id=slot.report_id, content=slot.content)
                self._owed[number] = self._sealed(taken, now_ms // self.agreement.period_ms)
        return [Outgoing(owed.report_id, owed.body) for owed in self._owed if owed.body]

    def handed_in(self, report_id: bytes) -> None:
        """Drop a slot that the log now holds."""
        self._owed = [owed for owed in self._owed if owed.report_id != report_id]

    def seal_again(self, report_id: bytes, time_ms: int) -> None:
        """Seal a slot again for the period of the gateway's time, because this device's clock is wrong.

        Content and id stay the same.
        """
        period = time_ms // self.agreement.period_ms
        self._owed = [
            self._sealed(owed, period) if owed.report_id == report_id and owed.period != period else owed
            for owed in self._owed
        ]

    def next_ms(self) -> int | None:
        """When the next slot may leave; None while the device owes none."""
        return min((owed.send_ms for owed in self._owed), default=None)

    def _adopt(self, statement: Statement, content: bytes) -> None:
        """Make a version the newest model: a user who has learned nothing yet starts from it."""
        self._agent.terms.policy.adopt(TRACK, statement.version, *arrays_of(statement, content))

    # Its state.

    def dump(self) -> bytes:
        """The whole state, with the key: whoever has these bytes has all that the user did on this device."""
        state = {
            "format": FORMAT,
            "configuration": self.agreement.configuration,
            "promise": list(self.agreement.promise),
            "key": self._key,
            "agent": self._agent.dump(),
            "models": self._agent.terms.policy.dump_models(),
            "owed": [[one.send_ms, one.report_id, one.content, one.period, one.body] for one in self._owed],
            "model": None if self._taken is None else self._taken.as_bytes(),
        }
        return packed(state)

    @classmethod
    def load(cls, agreement: Agreement, dumped: bytes, draw: Drawn) -> Device:
        """The device that `dump` wrote.

        Raises:
            BadAgreement: the device agreed to another configuration (`agreed_anew` changes to this one).
            DeviceError: these are not the bytes of a device.
        """
        try:
            state = unpacked(dumped, FORMAT)
            if state["configuration"] != agreement.configuration:
                raise BadAgreement("state: expected the configuration that this device agreed to, got another")
            device = cls(agreement, state["key"], draw)
            terms = device._agent.terms
            terms.policy.restore_models(state["models"])
            device._agent = EdgeAgent.load(terms, Key(state["key"]), state["agent"])
            device._owed = [_Owed(*one) for one in state["owed"]]
            if state["model"] is not None:
                model = read_model(state["model"])
                device._remember(model, Statement.read(model.statement))
        except (KeyError, TypeError, ValueError) as error:
            raise DeviceError(f"state: expected what a device wrote, got {type(error).__name__}") from None
        return device

    @classmethod
    def agreed_anew(cls, agreement: Agreement, dumped: bytes, draw: Drawn) -> Device:
        """A device that changes to another agreement, which must promise no less. The spent allowance stays spent.

        What it had learned is dropped, and slots that it owed under the old agreement. Its quota begins anew, because
        periods of the new agreement may have another length.

        Raises:
            WeakerAgreement: the new agreement promises less.
            DeviceError: these are not the bytes of a device.
        """
        try:
            state = unpacked(dumped, FORMAT)
            agreement.promise.require_no_weaker_than(Price(*state["promise"]))
            device = cls(agreement, state["key"], draw)
            spent = state["agent"]
            agent = device._agent
            agent.sent = agent.due = max(spent["sent"], spent["due"])
            agent.decided = agent.due * agreement.after_interactions
            agent.renews_ms = spent["renews_ms"]
        except (KeyError, TypeError, ValueError) as error:
            raise DeviceError(f"state: expected what a device wrote, got {type(error).__name__}") from None
        return device

    def _sealed(self, owed: _Owed, period: int) -> _Owed:
        place = place_of(owed.report_id, period, self.agreement.configuration)
        # A gateway's time must not lead back to a key that was replaced: somebody else may have that key by now.
        sealed = seal_content(owed.content, place, self._sealing.at(max(period, owed.period)))
        return replace(owed, period=period, body=body_of(place, sealed))

    def _expire(self, now_ms: int) -> None:
        """Close the decisions whose wait for a reward is over."""
        ended = [event for event, one in self._agent.open.items() if one.deadline_ms <= now_ms]
        for event in ended:
            self._agent.expire(event)
