"""Answers the retired personaliser's calls (rank, reward, activate, and their multi-slot forms) with decisions.

Each rank becomes a slate of the deployment (`RANK`) with the same event id. Each slot of a multi-slot rank becomes its
own slate with one position, in the order of the slots. An activation says that the item was shown. Ids of events and
actions that are longer than the deployment's are known there by their digests.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote

from pydantic import BaseModel

from hushstream.engine.declare.requests import ContextRules
from hushstream.engine.values import ConfigurationError
from hushstream.features.checks import type_name
from hushstream.features.schema import FeatureSchema
from hushstream.gateway.conversation.decisions import (
    DecisionAnswers,
    RankAnswered,
    RankAsked,
    RewardTold,
    ShownTold,
)
from hushstream.gateway.conversation.remembered import Event, Remembered
from hushstream.gateway.personalizer import bodies
from hushstream.gateway.problems import Problem
from hushstream.gateway.settings import PersonalizerSettings
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.rows import MAX_ID_BYTES, id_fault

PREFIX = "personalizer/"
KEY_HEADER = "Ocp-Apim-Subscription-Key"
_VERSION = re.compile(r"v1\.[01](-preview\.\d)?")
"""The versions in paths: public clients send one there, or in the query."""


class Reply(NamedTuple):
    """The answer to a call.

    Attributes:
        status: the HTTP status.
        body: JSON; None if there is no body.
        logged: for each decision in it, whether the log holds it.
        unknown: features of a slate with a value outside of their vocabulary, once for each slate.
    """

    status: int
    body: bytes | None = None
    logged: tuple[bool, ...] = ()
    unknown: tuple[str, ...] = ()


NOTHING = Reply(204)


@dataclass(slots=True)
class _Page:
    """A multi-slot event.

    Attributes:
        slots: the ids of the slots, in order.
        shows: the action of each slot that has one.
        logged: the slots whose action is in the log, and does not change any more.
        filling: a lock that is held while slots are decided, as the same request may come twice at once.
    """

    slots: tuple[str, ...]
    shows: dict[str, str] = field(default_factory=dict)
    logged: set[str] = field(default_factory=set)
    filling: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True, slots=True)
class Route:
    """A call of the protocol.

    Attributes:
        name: the name in metrics.
        body: the model of the body; None if the call has no body.
        is_feedback: whether it is feedback.
        reply: the function that answers the body.
    """

    name: str
    body: type[BaseModel] | None
    is_feedback: bool
    reply: Callable[[Any], Awaitable[Reply]]


def is_retired(path: str) -> bool:
    """Whether a path is of the protocol, however it is spelled: endpoints end in a slash, and cases did not count."""
    return path.lstrip("/").lower().startswith(PREFIX)


class PersonalizerCalls:
    """Answers the calls of the protocol by calls of decisions."""

    def __init__(
        self,
        settings: PersonalizerSettings,
        answers: Any,
        rules: Any,
        most_events: int,
        limit: Callable[[bool, str], None],
    ) -> None:
        """Answer for one deployment.

        Args:
            settings: how requests are read.
            answers: the deployment's `DecisionAnswers`.
            rules: the deployment's `ContextRules`.
            most_events: how many multi-slot events are remembered at most.
            limit: counts a request of a user, or feedback (true); it refuses what is too much.

        Raises:
            ConfigurationError: the deployment makes no decisions, or its features or items have no names; or its
                configuration and the settings contradict each other about users or items.
        """
        if not isinstance(answers, DecisionAnswers) or not isinstance(rules, ContextRules) or rules.features is None:
            raise ConfigurationError("personalizer: expected a deployment that decides, with features by name")
        if rules.catalogue is None:
            raise ConfigurationError("personalizer: expected a deployment whose items have names (`items.named`)")
        if (settings.user_feature is None) != rules.events_are_users:
            raise ConfigurationError(
                "personalizer.user_feature: expected the feature that names who asks, or none where the deployment "
                "says `users.events: true`: its guarantee is then of one event"
            )
        if settings.auto_items and not rules.catalogue.from_requests:
            raise ConfigurationError(
                "personalizer.auto_items: expected a deployment that says `items.from_requests: true`: ids and "
                "features of requests are then published"
            )
        self._settings = settings
        self._answers, self._limit = answers, limit
        self._declared = _names_of(rules.features)
        self._of_items = () if rules.catalogue.features is None else _names_of(rules.catalogue.features)
        self._slots = Remembered(answers.schema()["remembered_seconds"], most_events)

    def route(self, raw_path: str) -> Route | None:
        """The call for a path of the request line; None if there is none."""
        spelled = raw_path.partition("?")[0].strip("/").split("/")[1:]
        parts = [part.lower() for part in spelled]
        if "events" in parts[:3]:
            named = parts.index("events") + 1
            parts[named : named + 1] = spelled[named : named + 1]
        if parts and _VERSION.fullmatch(parts[0]):
            parts = parts[1:]
        many = parts[:1] == ["multislot"]
        match parts[1:] if many else parts:
            case ["rank"]:
                if many:
                    return Route("multislot_rank", bodies.MultiSlotAsked, False, self._rank_slots)
                return Route("personalizer_rank", bodies.RankAsked, False, self._rank)
            case ["events", event, "reward"]:
                if many:
                    reply: Any = partial(self._reward_slots, unquote(event))
                    return Route("multislot_reward", bodies.MultiSlotRewardTold, True, reply)
                return Route("personalizer_reward", bodies.RewardTold, True, partial(self._reward, unquote(event)))
            case ["events", event, "activate"]:
                if many:
                    return Route("multislot_activate", None, True, partial(self._activate_slots, unquote(event)))
                return Route("personalizer_activate", None, True, partial(self._activate, unquote(event)))
        return None

    # Calls with one action.

    async def _rank(self, asked: bodies.RankAsked) -> Reply:
        event_id = asked.event_id or str(uuid.uuid4())
        features = RequestFeatures(asked.context_features or ())
        event = _event(event_id)
        user = self._user(event, features)
        await self._offer(asked)
        found = await self._ranked(event, user, features, asked.eligible, asked.eligible, self._settings.positions)
        slate = [_action(one.item, asked.ids) for one in found.ranked]
        first = found.ranked[0]
        if first.logged and not asked.defer_activation:
            await self._answers.shown(ShownTold(event_id=event))
        ranking = [
            {"id": action, **_probability(action == slate[0], action in asked.eligible, first.propensity)}
            for action in _in_order(asked.ids, frozenset(asked.eligible), slate)
        ]
        answer = {"ranking": ranking, "eventId": event_id, "rewardActionId": slate[0]}
        return Reply(201, json.dumps(answer).encode(), tuple(one.logged for one in found.ranked), found.unknown)

    async def _reward(self, event_id: str, feedback: bodies.RewardTold) -> Reply:
        await self._log_feedback(_known(event_id), feedback.value)
        return NOTHING

    async def _activate(self, event_id: str, _: None) -> Reply:
        self._limit(True, event_id)
        await self._answers.shown(ShownTold(event_id=_known(event_id)))
        return NOTHING

    # Multi-slot calls: an action for each slot.

    async def _rank_slots(self, asked: bodies.MultiSlotAsked) -> Reply:
        event_id = asked.event_id or str(uuid.uuid4())
        user = self._user(_event(event_id), RequestFeatures(asked.context_features or ()))
        event = self._slots.event(event_id, user, hash(asked.model_dump_json(exclude={"event_id", "defer_activation"})))
        if event.answer is None:
            event.answer = _Page(tuple(slot.id for slot in asked.slots))
        try:
            await self._offer(asked)
            async with event.answer.filling:
                unknown = await self._fill(event_id, user, asked, event.answer)
        except (Problem, HushstreamError):
            if not event.answer.logged:
                self._slots.forget(event_id, event)
            raise
        page: _Page = event.answer
        answer = {
            "slots": [{"id": slot, "rewardActionId": page.shows[slot]} for slot in page.slots],
            "eventId": event_id,
        }
        return Reply(201, json.dumps(answer).encode(), tuple(slot in page.logged for slot in page.slots), unknown)

    async def _fill(self, event_id: str, user: str, asked: bodies.MultiSlotAsked, page: _Page) -> tuple[str, ...]:
        """Decide the action of each slot; a slot whose action is in the log keeps it. Returns `Reply.unknown`."""
        context, unknown = asked.context_features or (), list[str]()
        eligible = {slot.id: asked.eligible(slot) for slot in asked.slots}
        page.shows = {slot: action for slot, action in page.shows.items() if slot in page.logged}
        for slot in asked.slots:
            if slot.id in page.shows:
                continue
            taken = page.shows.values()
            rest = [eligible[other] for other in page.slots if other != slot.id and other not in page.shows]
            fit = [one for one in eligible[slot.id] if one not in taken and still_fits(one, rest, taken)]
            baseline = slot.baseline_action if slot.baseline_action in fit else fit[0]
            features = RequestFeatures((*context, *(slot.features or ())))
            slate = await self._ranked(_slot_event(event_id, slot.id), user, features, fit, [baseline], 1)
            found, unknown = slate.ranked[0], [*unknown, *slate.unknown]
            page.shows[slot.id] = _action(found.item, fit)
            if found.logged:
                page.logged.add(slot.id)
        if not asked.defer_activation:
            await _all(self._answers.shown(ShownTold(event_id=_slot_event(event_id, slot))) for slot in page.logged)
        return tuple(unknown)

    async def _reward_slots(self, event_id: str, feedback: bodies.MultiSlotRewardTold) -> Reply:
        slots = self._slots_of(event_id)
        if not {one.slot_id for one in feedback.reward} <= set(slots):
            raise Problem("unknown-event")
        await _all(self._log_feedback(_slot_event(event_id, one.slot_id), one.value) for one in feedback.reward)
        return NOTHING

    async def _activate_slots(self, event_id: str, _: None) -> Reply:
        slots = self._slots_of(event_id)
        await _all(self._answers.shown(ShownTold(event_id=_slot_event(event_id, slot))) for slot in slots)
        return NOTHING

    def _slots_of(self, event_id: str) -> tuple[str, ...]:
        event: Event | None = self._slots.of(event_id)
        if event is None:
            raise Problem("unknown-event")
        page: _Page = event.answer
        return page.slots

    # For both forms.

    async def _offer(self, asked: bodies.Ranked) -> None:
        """If the settings allow it, make each unknown action an item, with those of its features that are declared.

        Raises:
            Problem: the item is refused.
        """
        if not self._settings.auto_items:
            return
        for action in asked.actions:
            features = RequestFeatures(action.features or ())
            values = {name: value for name in self._of_items if (value := features.value(name)) is not None}
            await self._answers.offer(_item(action.id), values)

    async def _ranked(
        self,
        event: str,
        user: str,
        features: RequestFeatures,
        eligible: Sequence[str],
        baseline: Sequence[str],
        positions: int,
    ) -> RankAnswered:
        """Decide the slate of an event.

        Raises:
            Problem: an action is not an item, or the event was decided before for other actions.
        """
        values = {name: value for name in self._declared if (value := features.value(name)) is not None}
        asked = RankAsked(
            event_id=event,
            user=user,
            context=values,
            positions=positions,
            items=[_item(one) for one in eligible],
            baseline=[_item(one) for one in baseline],
        )
        return await self._answers.rank(asked)

    async def _log_feedback(self, event: str, value: float) -> None:
        self._limit(True, event)
        lowest = self._settings.lowest_reward
        if value < lowest:
            raise Problem("bad-reward", f"value: expected a number from {lowest} to 1, got another")
        reward = (value - lowest) / (1.0 - lowest)
        await self._answers.reward(RewardTold(event_id=event, reward=reward))

    def _user(self, event: str, features: RequestFeatures) -> str:
        """The user of a request, which counts from now on.

        Raises:
            Problem: the user asks too often; or the feature that names the user is missing, comes more than once, or
                is neither text of one line nor a whole number.
        """
        name = self._settings.user_feature
        if name is not None and features.places_of(name) > 1:
            raise Problem("bad-context", "contextFeatures: expected one user at user_feature, got several")
        value = event if name is None else features.value(name)
        user = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
        if id_fault(user) is not None:
            raise Problem(
                "bad-context",
                f"contextFeatures: expected a name of 1 to {MAX_ID_BYTES} bytes in one line, or a whole number, at "
                f"{name or 'eventId'} (`personalizer.user_feature`), got {_came(value)}",
            )
        self._limit(False, user)
        return user


def _came(value: Any) -> str:
    return "another text" if isinstance(value, str) else type_name(value)


async def _all(sending: Iterable[Awaitable[Any]]) -> None:
    """Send all feedback, then raise the first error: the rest is sent anyway, and all of it may be sent again."""
    for outcome in await asyncio.gather(*sending, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


def _known(event_id: str) -> str:
    """The deployment's id of an event of a path.

    Raises:
        Problem: no event can have this id.
    """
    if not bodies.is_id(event_id):
        raise Problem("unknown-event")
    return _event(event_id)


_POSITION_BYTES = len("#64")
"""What the deployment adds to an event's id for a further position."""


_DIGEST_NAME = re.compile("(action|event|slot)-[0-9a-f]{32}")
"""The form of digests as ids: an id that comes in it would be taken for another's, so it gets a digest of its own."""


def _event(event_id: str) -> str:
    """The deployment's id of an event: the same, or a digest of one that is too long with a position."""
    fits = id_fault(event_id + _POSITION_BYTES * "#") is None and not _DIGEST_NAME.match(event_id)
    return event_id if fits else f"event-{_digest(event_id)}"


def _item(action: str) -> str:
    """The deployment's id of an action: the same, or a digest of one that is too long."""
    fits = id_fault(action) is None and not _DIGEST_NAME.fullmatch(action)
    return action if fits else f"action-{_digest(action)}"


def _action(item: str | int, actions: Iterable[str]) -> str:
    """The action of an item; an event that was decided before, for other actions, has one that is not among these."""
    return next((action for action in actions if _item(action) == item), str(item))


def _slot_event(event_id: str, slot: str) -> str:
    """The event id of one slot: a digest, because both names together may be too long for an event id."""
    return f"slot-{_digest(event_id, slot)}"


def _digest(*names: str) -> str:
    digest = hashlib.blake2b(digest_size=16, person=b"hushstream slot")
    for name in names:
        text = name.encode()
        digest.update(len(text).to_bytes(8, "little") + text)
    return digest.hexdigest()


def _in_order(actions: Sequence[str], eligible: frozenset[str], slate: Sequence[str]) -> list[str]:
    """The slate first, then the other eligible actions; excluded actions keep their positions."""
    others = iter([*slate, *(action for action in actions if action in eligible and action not in slate)])
    return [next(others) if action in eligible else action for action in actions]


def _names_of(schema: FeatureSchema) -> Sequence[str]:
    """The names of the features whose values an application sends."""
    return schema.layout.names or ()


def _probability(is_chosen: bool, is_eligible: bool, propensity: float | None) -> Mapping[str, float]:
    """The known probability of an action: that of the chosen one, and 0 for one that could not be shown."""
    if not is_eligible or (propensity == 1.0 and not is_chosen):
        return {"probability": 0.0}
    return {"probability": propensity} if is_chosen and propensity is not None else {}


def still_fits(action: str, rest: Sequence[Collection[str]], taken: Collection[str]) -> bool:
    """Whether each of the remaining slots can still get a different action if this one is taken.

    Args:
        action: the action that the current slot would show.
        rest: the actions that each later slot may show.
        taken: the actions that earlier slots show.
    """
    gone = {action, *taken}
    holds: dict[str, int] = {}
    return all(_place(slot, rest, gone, holds, set()) for slot in range(len(rest)))


def _place(slot: int, rest: Sequence[Collection[str]], gone: set[str], holds: dict[str, int], tried: set[str]) -> bool:
    """Give a slot an action, moving others along an augmenting path (Kuhn's algorithm)."""
    for action in rest[slot]:
        if action in gone or action in tried:
            continue
        tried.add(action)
        if action not in holds or _place(holds[action], rest, gone, holds, tried):
            holds[action] = slot
            return True
    return False


MOST_VALUES = 4096
DEEPEST = 8


class RequestFeatures:
    """Values of a request by path: `age` in `{"User": {"age": 31}}` is at `User.age`.

    A name is a path, or the last part of exactly one path. A later value replaces an earlier one at the same path, so a
    slot's features override the context's.
    """

    def __init__(self, features: Iterable[Mapping[str, Any]]) -> None:
        """Read dictionaries, one after another.

        Raises:
            Problem: they have too many values, or are nested too deeply.
        """
        self._by_path: dict[tuple[str, ...], Any] = {}
        self._came: Counter[tuple[str, ...]] = Counter()
        for one in features:
            self._read(one, ())
        self._by_last: dict[str, list[tuple[str, ...]]] = {}
        for path in self._by_path:
            self._by_last.setdefault(path[-1], []).append(path)

    def value(self, name: str) -> Any:
        """The value of a name; None if there is none.

        Raises:
            Problem: the name is no path itself, but the last part of several paths.
        """
        path = tuple(name.split("."))
        for exact in (path, (name,)):
            if exact in self._by_path:
                return self._by_path[exact]
        paths = self._by_last.get(name, ())
        if len(paths) > 1:
            raise Problem("bad-context", f"contextFeatures: expected {name} in one place, got it in {len(paths)}")
        return self._by_path[paths[0]] if paths else None

    def places_of(self, name: str) -> int:
        """How many values a name has, of which `value` gives one."""
        found = {tuple(name.split(".")), (name,), *self._by_last.get(name, ())}
        return sum(self._came[path] for path in found)

    def _read(self, features: Mapping[str, Any], above: tuple[str, ...]) -> None:
        if len(above) > DEEPEST:
            raise Problem("bad-context", f"contextFeatures: expected at most {DEEPEST} dictionaries in one another")
        for name, value in features.items():
            if isinstance(value, dict):
                self._read(value, (*above, name))
                continue
            if len(self._by_path) >= MOST_VALUES:
                raise Problem("bad-context", f"contextFeatures: expected at most {MOST_VALUES} values")
            self._by_path[(*above, name)] = value
            self._came[(*above, name)] += 1
