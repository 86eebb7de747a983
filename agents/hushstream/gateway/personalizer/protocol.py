"""The retired personaliser's calls: rank, reward, activate and their multi-slot forms, over the calls of decisions.

Each rank is a slate of the deployment (`RANK`), under the same event id; each slot of a multi-slot rank is one of its
own, of one position, decided in the order of the slots. An activation says that the item was shown.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote

from pydantic import BaseModel

from hushstream.engine.declare.requests import ContextRules
from hushstream.engine.values import ConfigurationError
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

PREFIX = "/personalizer/"
KEY_HEADER = "Ocp-Apim-Subscription-Key"
_VERSION = "v1.0"
"""Stands in the paths of one public client, and not in those of the other, which says its version in the query."""


class Reply(NamedTuple):
    """What a call is answered with.

    Attributes:
        status: of HTTP.
        body: JSON; None where there is none.
        logged: of each decision in it, whether the log holds it.
    """

    status: int
    body: bytes | None = None
    logged: tuple[bool, ...] = ()


NOTHING = Reply(204)


@dataclass(slots=True)
class _Page:
    """A multi-slot event.

    Attributes:
        slots: their ids, in order.
        shows: the action of each slot that has one.
        logged: slots whose action is in the log, and so stays.
        filling: held while slots are decided: the same request may come twice at once.
    """

    slots: tuple[str, ...]
    shows: dict[str, str] = field(default_factory=dict)
    logged: set[str] = field(default_factory=set)
    filling: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True, slots=True)
class Route:
    """A call of the protocol.

    Attributes:
        name: in metrics.
        body: what is POSTed; None where a body means nothing.
        tells: whether it is feedback.
        reply: answers the body.
    """

    name: str
    body: type[BaseModel] | None
    tells: bool
    reply: Callable[[Any], Awaitable[Reply]]


class PersonalizerCalls:
    """Answers the calls over those of decisions."""

    def __init__(self, settings: PersonalizerSettings, answers: Any, rules: Any, most_events: int) -> None:
        """Over the decisions of one deployment.

        Args:
            settings: how requests are read.
            answers: `DecisionAnswers`.
            rules: `ContextRules`.
            most_events: the most multi-slot events that are remembered.

        Raises:
            ConfigurationError: the deployment decides nothing, has no features and items by name, or says of users and
                items something else than the settings.
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
        self._answers = answers
        self._declared = _names_of(rules.features)
        self._of_items = () if rules.catalogue.features is None else _names_of(rules.catalogue.features)
        self._slots = Remembered(answers.schema()["remembered_seconds"], most_events)

    def route(self, raw_path: str) -> Route | None:
        """The call at a path as it stands in the request line; None where there is none."""
        parts = raw_path.partition("?")[0].removeprefix(PREFIX).split("/")
        if parts[0] == _VERSION:
            parts = parts[1:]
        many = parts[0] == "multislot"
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

    # One action.

    async def _rank(self, asked: bodies.RankAsked) -> Reply:
        event_id = asked.event_id or str(uuid.uuid4())
        features = RequestFeatures(asked.context_features or ())
        user = self._user(event_id, features)
        await self._offer(asked)
        found = await self._ranked(event_id, user, features, asked.eligible, asked.eligible, self._settings.positions)
        slate = {str(one.item): one for one in found.ranked}
        first = found.ranked[0]
        if first.logged and not asked.defer_activation:
            await self._answers.shown(ShownTold(event_id=event_id))
        ranking = [
            {"id": action, **_probability(action == first.item, action in asked.eligible, first.propensity)}
            for action in _in_order(asked.ids, frozenset(asked.eligible), list(slate))
        ]
        answer = {"ranking": ranking, "eventId": event_id, "rewardActionId": first.item}
        return Reply(201, json.dumps(answer).encode(), tuple(one.logged for one in found.ranked))

    async def _reward(self, event_id: str, told: bodies.RewardTold) -> Reply:
        await self._tell(event_id, told.value)
        return NOTHING

    async def _activate(self, event_id: str, _: None) -> Reply:
        await self._answers.shown(ShownTold(event_id=_known_form(event_id)))
        return NOTHING

    # An action for each slot.

    async def _rank_slots(self, asked: bodies.MultiSlotAsked) -> Reply:
        event_id = asked.event_id or str(uuid.uuid4())
        user = self._user(event_id, RequestFeatures(asked.context_features or ()))
        event = self._slots.asked(event_id, user, hash(asked.model_dump_json(exclude={"event_id", "defer_activation"})))
        if event.answer is None:
            event.answer = _Page(tuple(slot.id for slot in asked.slots))
        try:
            await self._offer(asked)
            async with event.answer.filling:
                await self._fill(event_id, user, asked, event.answer)
        except (Problem, HushstreamError):
            if not event.answer.logged:
                self._slots.forget(event_id, event)
            raise
        page: _Page = event.answer
        answer = {
            "slots": [{"id": slot, "rewardActionId": page.shows[slot]} for slot in page.slots],
            "eventId": event_id,
        }
        return Reply(201, json.dumps(answer).encode(), tuple(slot in page.logged for slot in page.slots))

    async def _fill(self, event_id: str, user: str, asked: bodies.MultiSlotAsked, page: _Page) -> None:
        """Decide what each slot shows; what is in the log already stays."""
        context = asked.context_features or ()
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
            found = (await self._ranked(_slot_event(event_id, slot.id), user, features, fit, [baseline], 1)).ranked[0]
            page.shows[slot.id] = str(found.item)
            if found.logged:
                page.logged.add(slot.id)
        if not asked.defer_activation:
            await _all(self._answers.shown(ShownTold(event_id=_slot_event(event_id, slot))) for slot in page.logged)

    async def _reward_slots(self, event_id: str, told: bodies.MultiSlotRewardTold) -> Reply:
        slots = self._slots_of(event_id)
        if not {one.slot_id for one in told.reward} <= set(slots):
            raise Problem("unknown-event")
        await _all(self._tell(_slot_event(event_id, one.slot_id), one.value) for one in told.reward)
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

    # Both.

    async def _offer(self, asked: bodies.Ranked) -> None:
        """Where actions become items: make an item of each that is none, with the declared ones of its features."""
        if not self._settings.auto_items:
            return
        for action in asked.actions:
            features = RequestFeatures(action.features or ())
            values = {name: value for name in self._of_items if (value := features.value(name)) is not None}
            await self._answers.offer(action.id, values)

    async def _ranked(
        self,
        event_id: str,
        user: str,
        features: RequestFeatures,
        eligible: Sequence[str],
        baseline: Sequence[str],
        positions: int,
    ) -> RankAnswered:
        """The slate of an event.

        Raises:
            Problem: an action is no item, or the event was decided before, for other actions.
        """
        values = {name: value for name in self._declared if (value := features.value(name)) is not None}
        asked = RankAsked(
            event_id=event_id,
            user=user,
            context=values,
            positions=positions,
            items=list(eligible),
            baseline=list(baseline),
        )
        return await self._answers.rank(asked)

    async def _tell(self, event_id: str, value: float) -> None:
        lowest = self._settings.lowest_reward
        if value < lowest:
            raise Problem("bad-reward", f"value: expected a number from {lowest} to 1, got another")
        reward = (value - lowest) / (1.0 - lowest)
        await self._answers.reward(RewardTold(event_id=_known_form(event_id), reward=reward))

    def _user(self, event_id: str, features: RequestFeatures) -> str:
        """Who asks.

        Raises:
            Problem: the feature that says it is absent, or no text or whole number.
        """
        name = self._settings.user_feature
        if name is None:
            return event_id
        value = features.value(name)
        user = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
        if id_fault(user) is not None:
            raise Problem(
                "bad-context", f"contextFeatures: expected a name of 1 to {MAX_ID_BYTES} bytes at user_feature"
            )
        return user


async def _all(telling: Iterable[Awaitable[Any]]) -> None:
    """Tell all of it, then say what failed first: the rest is told all the same, and may be told again."""
    for outcome in await asyncio.gather(*telling, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


def _known_form(event_id: str) -> str:
    """An event id of a path; one that no event can have is unknown.

    Raises:
        Problem: it is none.
    """
    if id_fault(event_id) is not None:
        raise Problem("unknown-event")
    return event_id


def _slot_event(event_id: str, slot: str) -> str:
    """The event of one slot: a digest, as both names together may be longer than an event id."""
    digest = hashlib.blake2b(digest_size=16, person=b"hushstream slot")
    for name in (event_id, slot):
        text = name.encode()
        digest.update(len(text).to_bytes(8, "little") + text)
    return f"slot-{digest.hexdigest()}"


def _in_order(actions: Sequence[str], eligible: frozenset[str], slate: Sequence[str]) -> list[str]:
    """The slate before all others that may be shown; those that are excluded stay where they stood."""
    others = iter([*slate, *(action for action in actions if action in eligible and action not in slate)])
    return [next(others) if action in eligible else action for action in actions]


def _names_of(schema: FeatureSchema) -> Sequence[str]:
    """Of what an application gives the values of."""
    return schema.layout.names or ()


def _probability(is_chosen: bool, is_eligible: bool, propensity: float | None) -> Mapping[str, float]:
    """What is known of an action's probability: that of the chosen one, and 0 of what could not be shown instead."""
    if not is_eligible:
        return {"probability": 0.0}
    if propensity is None:
        return {}
    if is_chosen:
        return {"probability": propensity}
    return {"probability": 0.0} if propensity == 1.0 else {}


def still_fits(action: str, rest: Sequence[Collection[str]], taken: Collection[str]) -> bool:
    """Whether each of the remaining slots can have an action of its own once this one is taken.

    Args:
        action: what the current slot would show.
        rest: the actions that each later slot may show.
        taken: actions that earlier slots show.
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

    A name is a path, or the last part of just one. A value that is said later stands in place of an earlier one at the
    same path: a slot's features stand in place of the context's.
    """

    def __init__(self, features: Iterable[Mapping[str, Any]]) -> None:
        """Read dictionaries, one after another.

        Raises:
            Problem: they hold too many values, or lie too deep in one another.
        """
        self._by_path: dict[tuple[str, ...], Any] = {}
        for one in features:
            self._read(one, ())
        self._by_last: dict[str, list[tuple[str, ...]]] = {}
        for path in self._by_path:
            self._by_last.setdefault(path[-1], []).append(path)

    def value(self, name: str) -> Any:
        """What stands under a name; None where nothing does.

        Raises:
            Problem: the name is the last part of several paths, and is none.
        """
        path = tuple(name.split("."))
        for exact in (path, (name,)):
            if exact in self._by_path:
                return self._by_path[exact]
        paths = self._by_last.get(name, ())
        if len(paths) > 1:
            raise Problem("bad-context", f"contextFeatures: expected {name} in one place, got it in {len(paths)}")
        return self._by_path[paths[0]] if paths else None

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
