"""A device: it runs one user's learner, sends the slots that it owes, and takes models.

    device.decide -> device.shown, device.reward -> device.outgoing -> (written, then sent) -> device.handed_in

It uses no network, no clock and no file. The caller of `outgoing` writes `Device.dump` first, and sends the slots
afterwards (`hushstream.edge.driving`). Otherwise a device that is killed in between could make other bytes for a slot
that has left. A device that is restored from an older copy gives the numbers of sent slots to further slots; the
shuffler of the same deployment does not count these, so they cost the user nothing (`EdgeAgent.load`). Another
deployment's shuffler counts them, so the copy must not be older where the agreement changes. A device that was cleared
has a new key, so for everybody it is another user: it sends a slot of its own, at its own price. Nobody here can know
that.

*Agreement.* What a device agreed to: the settings that it follows, the keys that it trusts, and the promise to its
user.

An application ships the agreement with its code. Its ``configuration`` is the digest of the settings and of the first
keys of shuffler and aggregator; slots name it, and models are signed for it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hushstream.engine.configuration import ExplorationConfig
from hushstream.engine.devices.agreed import (
    FORMAT,
    Agreed,
    TakesModels,
    configuration_of,
    keys_of,
    price_of,
    require_stated_price,
)
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
from hushstream.engine.values import ConfigurationError
from hushstream.features.checks import FeatureError
from hushstream.features.schema import declare
from hushstream.feedback.join import JoinOutcome
from hushstream.learners.sparse import SparseModel
from hushstream.privacy.amounts import DELTA_ONE, epsilon_micro
from hushstream.privacy.errors import BadAmount
from hushstream.privacy.keys import KEY_BYTES, Key
from hushstream.systems.p2b.edge.agent import Choice, EdgeAgent, EdgeTerms, TwoCandidates
from hushstream.systems.p2b.edge.policies import COLD, FeaturePolicy
from hushstream.systems.p2b.models import Statement, arrays_of
from hushstream.systems.p2b.slots import ContributionError, FeatureLayout, slot_bytes

TRACK = "private"
"""The track of the model that devices start from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement(Agreed[Statement]):
    """What a device agreed to; see the module.

    Attributes:
        layout: the layout of a slot.
        period_ms: length of a report period.
        after_interactions, levels, attribution_window_ms, contexts_per_period, quota_period_ms, renew_ms: see
            `EdgeTerms`.
        slot_epsilon_micro: what a slot costs, computed from the settings under the digest.
        click_chance: see `agent.click_chance`.
        exploration: how an arm is chosen.
        cold: before any model: mean and variance of a coefficient, and the variance of a reward.
    """

    layout: FeatureLayout
    period_ms: int
    after_interactions: int
    levels: int
    attribution_window_ms: int
    contexts_per_period: int | None
    quota_period_ms: int
    renew_ms: int | None
    slot_epsilon_micro: int
    click_chance: float | None
    exploration: ExplorationConfig
    cold: tuple[float, float, float]

    @classmethod
    def read(cls, content: str | bytes) -> Agreement:
        """An agreement as it is shipped.

        Raises:
            BadAgreement: it is no agreement of this format, or its parts do not fit one another.
        """
        try:
            values = json.loads(content)
            if values["format"] != FORMAT:
                raise BadAgreement(f"agreement: expected format {FORMAT}, got another")
            return _agreement(values)
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
            raise BadAgreement(f"agreement: expected what a deployment makes, got {type(error).__name__}") from None
        except (BadSeal, BadModel, ContributionError, FeatureError, ConfigurationError, BadAmount) as error:
            raise BadAgreement(f"agreement: {error}") from None

    @property
    def content_bytes(self) -> int:
        """The size of every slot's content."""
        return slot_bytes(self.layout.places)

    @property
    def body_bytes(self) -> int:
        """The size of every slot as it travels."""
        return body_bytes(self.content_bytes)

    def price_from(self, slot: int) -> int:
        """See `Agreed.price_from`: slots are equal, and each costs a pure epsilon, beside the error of noise tables."""
        return max(0, self.promise.lifetime_slots - slot) * self.slot_epsilon_micro

    def terms(self) -> EdgeTerms:
        """The terms of the device's agent, with a policy that has no model yet."""
        shape, (mean, variance, reward_variance) = (self.layout.arms, self.layout.cells), self.cold
        cold = SparseModel.of(_filled(shape, mean), _filled(shape, variance), reward_variance)
        return EdgeTerms(
            policy=FeaturePolicy(self.layout, cold, (COLD, TRACK)),
            after_interactions=self.after_interactions,
            lifetime_slots=self.promise.lifetime_slots,
            levels=self.levels,
            attribution_window_ms=self.attribution_window_ms,
            contexts_per_period=self.contexts_per_period,
            quota_period_ms=self.quota_period_ms,
            choice=TwoCandidates(self.click_chance),
            exploration=self.exploration.rule(),
            renew_ms=self.renew_ms,
        )

    def stated(self, model: ModelBody, now_ms: int, seen: Statement | None) -> Statement:
        """See `Agreed.stated`; the layout must be the one that was agreed to."""
        statement = self.require_stated(model, Statement.read(model.statement), now_ms, seen)
        layout = self.layout
        stated = (statement.layout, statement.arms, statement.cells)
        if stated != (layout.digest.hex(), layout.arms, layout.cells):
            raise BadModel(
                "model: expected a layout of the deployment and configuration that was agreed to, got another"
            )
        return statement


def _agreement(values: Mapping[str, Any]) -> Agreement:
    sealing, signing = keys_of(values)
    configuration = bytes.fromhex(values["configuration"])
    if configuration != configuration_of(values["canonical"].encode(), sealing.pinned + signing.pinned):
        raise BadAgreement("agreement: expected the digest of its settings and keys, got another")
    settings = json.loads(values["canonical"])
    _require_settings(values, settings)
    terms, slot, layout, cold = (values[name] for name in ("terms", "slot", "layout", "cold"))
    made = Agreement(
        deployment=settings["deployment"],
        configuration=configuration,
        sealing=sealing,
        signing=signing,
        promise=price_of(values["promise"]),
        text=tuple(map(str, values["promise"]["text"])),
        layout=FeatureLayout(
            declare(layout["features"]), int(layout["arms"]), int(terms["levels"]), tuple(map(int, layout["budgets"]))
        ),
        period_ms=int(slot["period_ms"]),
        delay_ms=int(slot["delay_ms"]),
        after_interactions=int(terms["after_interactions"]),
        levels=int(terms["levels"]),
        attribution_window_ms=int(terms["attribution_window_ms"]),
        contexts_per_period=terms["contexts_per_period"],
        quota_period_ms=int(terms["quota_period_ms"]),
        renew_ms=terms["renew_ms"],
        slot_epsilon_micro=epsilon_micro(settings["release"]["epsilon"]),
        click_chance=terms["click_chance"],
        exploration=ExplorationConfig(**terms["exploration"]),
        cold=(float(cold["mean"]), float(cold["variance"]), float(cold["reward_variance"])),
    )
    # With secret sampling the price of a slot is below the one that was asked for, by the rounding of its noise.
    epsilon, slots = made.price_from(0), made.promise.lifetime_slots
    slack = min(4 * slots, epsilon // 1000) if settings["release"]["sampling"] < 1 else 0
    noised = 2 * made.layout.places * slots
    deltas = (_table_error(noised, epsilon), _table_error(2 * noised, 2 * epsilon))
    require_stated_price(made.promise, (epsilon, 2 * epsilon), deltas, slack)
    sizes = {"content_bytes": made.content_bytes, "body_bytes": made.body_bytes}
    shape = {"cells": made.layout.cells, "places": made.layout.places, "digest": made.layout.digest.hex()}
    for part, found in (("slot", sizes), ("layout", shape)):
        if any(values[part][name] != expected for name, expected in found.items()):
            raise BadAgreement(f"agreement: expected {part} sizes and digest of its features, {found}, got others")
    return made


LEAST_ERROR = 3_000_000
"""Every noise table of a slot's sums is off by more, in units of 2^-80 (`privacy.mechanisms.noise.truncation`)."""


def _table_error(noised: int, micro: int) -> int:
    """The least delta, in units of 2^-80, that the tables of ``noised`` draws add at an epsilon in millionths.

    A device has no exact arithmetic, so this is a lower bound in floats, and the same as in other languages.
    """
    most = float(DELTA_ONE)
    return int(min(0.999 * noised * LEAST_ERROR * (1 + math.exp(min(micro / 1e6, 700.0))), most))


def _require_settings(values: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Refuse figures that do not follow from the settings under the digest: nothing else is believed.

    Raises:
        BadAgreement: names the first one. A life may have fewer slots than the settings plan if there is a budget.
    """
    names = ("system", "kind", "public_dataset", "named_items")
    release, told = settings["release"], [settings[name] for name in names]
    if [*told, release["mode"], release["form"]] != ["p2b", "edge", False, False, "slot-sums", "features"]:
        raise BadAgreement(
            "agreement: expected settings of devices that send slots for noised sums of items without names (and "
            "without caps and pins), got others"
        )
    slot, users, planned = settings["slot"], settings["users"], settings["slot"]["lifetime_slots"]
    renewed = slot["renew_every_seconds"]
    expected = {
        "layout": {"arms": settings["arms"], "features": settings["context"]["declared"]["features"]},
        "slot": {"period_ms": _ms(slot["period_seconds"]), "delay_ms": _ms(slot["settle_seconds"])},
        "terms": {
            "after_interactions": slot["after_interactions"],
            "levels": release["levels"],
            "attribution_window_ms": _ms(settings["feedback"]["attribution_window_seconds"]),
            "contexts_per_period": users["contexts_per_period"],
            "quota_period_ms": _ms(users["period_seconds"]),
            "renew_ms": None if renewed is None else _ms(renewed),
            "exploration": settings["exploration"],
        },
    }
    for part, figures in expected.items():
        for name, figure in figures.items():
            if values[part][name] != figure:
                raise BadAgreement(f"agreement: expected {part}.{name} of its settings, got another")
    stated = values["promise"]["lifetime_slots"]
    fits = stated == planned or (settings["budget"] is not None and 1 <= stated < planned)
    if values["deployment"] != settings["deployment"] or values["terms"]["lifetime_slots"] != stated or not fits:
        raise BadAgreement(f"agreement: expected the deployment and {planned} slots of its settings, got others")


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _filled(shape: tuple[int, int], value: float) -> Any:
    return np.full(shape, value)


_STATE_FORMAT = 1


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
        agent.decisions.forget(now_ms)
        known = agent.known(event_id, now_ms)
        if known is not None:
            return known
        # The newest period that the clock ever showed stays in force: otherwise a clock set back would give new quota.
        if not agent.within_quota(max(now_ms, agent.period * self.agreement.quota_period_ms)):
            return agent.decide_publicly(row, eligible)
        choice = agent.decide_new(event_id, row, now_ms, eligible)
        if choice.slot_due:
            self._pay(agent.due - 1)
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
            "format": _STATE_FORMAT,
            "configuration": self.agreement.configuration,
            **self._spent(),
            "key": self._key,
            "agent": self._agent.dump(),
            "decisions": self._agent.decisions.dump(),
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
            state = unpacked(dumped, _STATE_FORMAT)
            if state["configuration"] != agreement.configuration:
                raise BadAgreement("state: expected the configuration that this device agreed to, got another")
            device = cls(agreement, state["key"], draw)
            terms = device._agent.terms
            terms.policy.restore_models(state["models"])
            device._agent.decisions.load(state["decisions"])
            device._agent = EdgeAgent.load(terms, Key(state["key"]), state["agent"], None, device._agent.decisions)
            device._spent_before(state, device._agent.due)
            device._owed = [_Owed(*one) for one in state["owed"]]
            if state["model"] is not None:
                model = read_model(state["model"])
                device._remember(model, Statement.read(model.statement))
        except (KeyError, TypeError, ValueError) as error:
            raise DeviceError(f"state: expected what a device wrote, got {type(error).__name__}") from None
        return device

    @classmethod
    def agreed_anew(cls, agreement: Agreement, dumped: bytes, draw: Drawn) -> Device:
        """A device that changes to another agreement. The spent allowance stays spent, and what was paid stays paid.

        What it had learned is dropped, and slots that it owed under the old agreement. Its quota begins anew, because
        periods of the new agreement may have another length.

        Raises:
            WeakerAgreement: the slots that are left would cost more than what is left of the first agreement's life.
            DeviceError: these are not the bytes of a device.
        """
        try:
            state = unpacked(dumped, _STATE_FORMAT)
            device = cls(agreement, state["key"], draw)
            spent = state["agent"]
            agent = device._agent
            agent.sent = agent.due = max(spent["sent"], spent["due"])
            agent.decided = agent.due * agreement.after_interactions
            agent.renews_ms = spent["renews_ms"]
            device._spent_before(state, agent.due)
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
