"""The retired personaliser's calls: rank, reward, activate and their multi-slot forms, over the calls of decisions.

Each rank is a decision of the deployment, under the same event id; each slot of a multi-slot rank is one of its own,
decided in the order of the slots. An activation says that the item was shown.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote

from pydantic import BaseModel

from hushstream.engine.declare.requests import ContextRules
from hushstream.engine.values import ConfigurationError
from hushstream.gateway.conversation.decisions import (
    DecisionAnswered,
    DecisionAnswers,
    DecisionAsked,
    RewardTold,
    ShownTold,
)
from hushstream.gateway.conversation.remembered import Remembered
from hushstream.gateway.personalizer import bodies
from hushstream.gateway.personalizer.features import RequestFeatures
from hushstream.gateway.personalizer.names import ActionNames
from hushstream.gateway.personalizer.slots import still_fits
from hushstream.gateway.problems import Problem
from hushstream.gateway.settings import PersonalizerSettings
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
            ConfigurationError: the deployment decides nothing, declares no features, or has fewer items than actions.
        """
        if not isinstance(answers, DecisionAnswers) or not isinstance(rules, ContextRules) or rules.features is None:
            raise ConfigurationError("personalizer: expected a deployment that decides, with features by name")
        self._settings = settings
        self._answers = answers
        self._declared: Sequence[str] = rules.features.layout.names or ()
        self._names = ActionNames(settings.actions, rules.arms)
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
        found, chosen = await self._decide(event_id, user, features, asked.eligible, asked.eligible[0])
        if found.logged and not asked.defer_activation:
            await self._answers.shown(ShownTold(event_id=event_id))
        ranking = [
            {"id": action, **_probability(action == chosen, action in asked.eligible, found.propensity)}
            for action in _in_order(asked.ids, frozenset(asked.eligible), chosen)
        ]
        answer = {"ranking": ranking, "eventId": event_id, "rewardActionId": chosen}
        return Reply(201, json.dumps(answer).encode(), (found.logged,))

    async def _reward(self, event_id: str, told: bodies.RewardTold) -> Reply:
        await self._tell(event_id, told.value)
        return NOTHING

    async def _activate(self, event_id: str, _: None) -> Reply:
        await self._answers.shown(ShownTold(event_id=_known_form(event_id)))
        return NOTHING

    # An action for each slot.

    async def _rank_slots(self, asked: bodies.MultiSlotAsked) -> Reply:
        event_id = asked.event_id or str(uuid.uuid4())
        eligible = [asked.eligible(slot) for slot in asked.slots]
        context = asked.context_features or ()
        user = self._user(event_id, RequestFeatures(context))
        chosen: list[str] = []
        logged: list[bool] = []
        for number, slot in enumerate(asked.slots):
            fit = [
                action
                for action in eligible[number]
                if action not in chosen and still_fits(action, eligible[number + 1 :], chosen)
            ]
            baseline = slot.baseline_action if slot.baseline_action in fit else fit[0]
            features = RequestFeatures((*context, *(slot.features or ())))
            slot_event = _slot_event(event_id, slot.id)
            found, action = await self._decide(slot_event, user, features, fit, baseline)
            chosen.append(action)
            logged.append(found.logged)
            if found.logged and not asked.defer_activation:
                await self._answers.shown(ShownTold(event_id=slot_event))
        slots = tuple(slot.id for slot in asked.slots)
        event = self._slots.of(event_id)
        if event is None:
            event = self._slots.begin(event_id, user, slots)
        event.answer = slots
        answer = {
            "slots": [{"id": slot, "rewardActionId": action} for slot, action in zip(slots, chosen, strict=True)],
            "eventId": event_id,
        }
        return Reply(201, json.dumps(answer).encode(), tuple(logged))

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
        event = self._slots.of(event_id)
        if event is None:
            raise Problem("unknown-event")
        slots: tuple[str, ...] = event.answer
        return slots

    # Both.

    async def _decide(
        self, event_id: str, user: str, features: RequestFeatures, eligible: Sequence[str], baseline: str
    ) -> tuple[DecisionAnswered, str]:
        """What is decided, and the action that it shows.

        Raises:
            Problem: the event was decided before, for other actions.
        """
        values = {name: value for name in self._declared if (value := features.value(name)) is not None}
        items = {self._names.item(action): action for action in eligible}
        found = await self._answers.decide(
            DecisionAsked(
                event_id=event_id, user=user, context=values, items=list(items), baseline=self._names.item(baseline)
            )
        )
        if found.item not in items:
            raise Problem("event-conflict")
        return found, items[found.item]

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


def _in_order(actions: Sequence[str], eligible: frozenset[str], chosen: str) -> list[str]:
    """The chosen action before all others that may be shown; those that are excluded stay where they stood."""
    others = iter([chosen, *(action for action in actions if action in eligible and action != chosen)])
    return [next(others) if action in eligible else action for action in actions]


def _probability(is_chosen: bool, is_eligible: bool, propensity: float | None) -> Mapping[str, float]:
    """What is known of an action's probability: that of the chosen one, and 0 of what could not be shown instead."""
    if not is_eligible:
        return {"probability": 0.0}
    if propensity is None:
        return {}
    if is_chosen:
        return {"probability": propensity}
    return {"probability": 0.0} if propensity == 1.0 else {}
