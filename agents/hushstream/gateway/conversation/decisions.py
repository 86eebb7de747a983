"""Calls of a deployment that decides for its users: decide, shown, reward."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Annotated, Any, Self, TypeAlias, TypeVar

from pydantic import Field, model_validator

from hushstream.client import Client
from hushstream.client.decisions import LEARNED, Decision, PolicyName, position_event
from hushstream.client.items import Items as Catalogue
from hushstream.client.logs import EventLog
from hushstream.engine.catalogue import BadItem, CatalogueFull, RepeatedItem, StaleCatalogue
from hushstream.engine.declare.declaration import System
from hushstream.engine.declare.requests import ContextRules, RequestRefused
from hushstream.features.checks import FeatureError
from hushstream.features.kinds import Outcome
from hushstream.gateway.conversation.calls import Answered, Answers, Asked, Call, EventId, Taken, User
from hushstream.gateway.conversation.catalogue import CATALOGUE, CatalogueAnswered, CatalogueAsked, put, whole
from hushstream.gateway.conversation.overview import OVERVIEW, Overview, OverviewAnswered
from hushstream.gateway.conversation.remembered import Event, Remembered, in_time, log_once, logged_event
from hushstream.gateway.conversation.similar import SIMILAR, Similar, SimilarAnswered, SimilarAsked
from hushstream.gateway.conversation.translation import Context, Item, Items, Translation
from hushstream.gateway.problems import Problem
from hushstream.gateway.settings import GatewaySettings
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.rows import MAX_ID_BYTES, id_fault

_log = logging.getLogger(__name__)


class _Visit(Asked):
    event_id: EventId
    user: User
    context: Context
    items: Items | None = None
    track: Annotated[str | None, Field(max_length=128, description="The shared model that a new user starts from.")] = (
        None
    )


class DecisionAsked(_Visit):
    """Which item to show a user."""

    baseline: Annotated[
        Item | None, Field(description="The item to show when no learner answers, and the one to compare with.")
    ] = None


class DecisionAnswered(Answered):
    """The item to show."""

    event_id: str
    item: Item
    propensity: Annotated[
        float | None, Field(ge=0, le=1, description="Probability that the learner chose it; null if none chose.")
    ]
    policy: Annotated[
        PolicyName,
        Field(
            description="`model`; `baseline`: what everybody gets; `repeated`: this event had been decided; "
            "`no_learner`, `timeout`: the request's own baseline, as no learner answered; `shadow`: the request's own "
            "baseline, as the deployment is in shadow mode and its learner's answer is only in the log."
        ),
    ]
    model_version: int
    logged: Annotated[
        bool,
        Field(description="Whether the log holds this answer. Feedback on one with false is refused: `not-logged`."),
    ]
    retired: Annotated[
        tuple[Item, ...], Field(description="Items that the request named and that are retired: they were left out.")
    ] = ()
    unknown: Annotated[
        tuple[str, ...],
        Field(description="Features with a value outside of their vocabulary, which counted as unknown."),
    ] = ()


MOST_POSITIONS = 32
"""The most positions of a slate. Each needs an answer of the learner, one after the other, so a slate takes as long."""


class RankAsked(_Visit):
    """Which items to show a user, in which order."""

    positions: Annotated[
        int, Field(ge=1, le=MOST_POSITIONS, description="How many to rank; fewer come if there are fewer items.")
    ] = MOST_POSITIONS
    baseline: Annotated[
        Items | None,
        Field(description="The items to show, in this order, from the first position that no learner answers."),
    ] = None

    @model_validator(mode="after")
    def _events_of_positions(self) -> Self:
        longest = position_event(self.event_id, self.positions)
        if id_fault(longest) is not None:
            room = MAX_ID_BYTES - len(longest) + len(self.event_id)
            raise ValueError(f"event_id: expected at most {room} bytes, as positions add their number, got more")
        return self


class RankAnswered(Answered):
    """The items to show, the first one first."""

    event_id: str
    ranked: Annotated[
        list[DecisionAnswered],
        Field(
            description="One for each position, with the event that its feedback must name: the request's own for the "
            "first one, then `ID#2`, `ID#3`. A propensity is the probability of the item given those before it."
        ),
    ]
    logged: Annotated[bool, Field(description="Whether the log holds the answers of all positions.")]
    retired: Annotated[tuple[Item, ...], Field(description="As of `decide`, of the whole slate.")] = ()
    unknown: Annotated[tuple[str, ...], Field(description="As of `decide`.")] = ()


class _Told(Asked):
    event_id: EventId
    user: Annotated[
        User | None, Field(description="The user of the event; may be left out for events that this gateway remembers.")
    ] = None


class _OnEvent(_Told):
    item: Annotated[Item | None, Field(description="The item that was on screen; by default the decided one.")] = None


class ShownTold(_OnEvent):
    """An item was on screen."""


class RewardTold(_OnEvent):
    """The reward of an item that was on screen."""

    reward: Annotated[float, Field(ge=0, le=1, examples=[1.0])]


class HarmTold(_Told):
    """How much of the measurement's harm an event did."""

    harm: Annotated[float, Field(ge=0, le=1, examples=[1.0])]


DECIDE = Call(
    "decide",
    "Which item to show",
    "The same request under one event id gets the same answer. If no learner answers, `baseline` comes at once.",
    DecisionAsked,
    DecisionAnswered,
    (
        "event-conflict",
        "baseline-missing",
        "bad-context",
        "unknown-item",
        "unknown-user",
        "unknown-track",
        "refused-by-learner",
        "log-unavailable",
        "no-answer",
    ),
)
RANK = Call(
    "rank",
    "Which items to show, in which order",
    "The same request under one event id gets the same slate. A position is a decision of its own among the items that "
    "those before it left, and counts as an interaction of the user's. `shown` and `reward` name a position's event.",
    RankAsked,
    RankAnswered,
    DECIDE.problems,
)
_FEEDBACK = (
    "unknown-event",
    "event-conflict",
    "feedback-conflict",
    "not-logged",
    "unknown-item",
    "unknown-user",
    "log-unavailable",
)
SHOWN = Call(
    "shown",
    "The item was on screen",
    "The learner learns only from items that were shown; without a reward, an item counts as 0.",
    ShownTold,
    Taken,
    _FEEDBACK,
    is_feedback=True,
)
REWARD = Call(
    "reward",
    "The reward of the item",
    "The first reward of an event counts; an equal one after it changes nothing.",
    RewardTold,
    Taken,
    (*_FEEDBACK, "bad-reward"),
    is_feedback=True,
)

HARM = Call(
    "harm",
    "The harm that the measurement's guardrail counts",
    "A complaint, a return: what `measurement.guardrail` names. Nothing learns from it; without a call there was none.",
    HarmTold,
    Taken,
    (
        "unknown-event",
        "event-conflict",
        "feedback-conflict",
        "not-logged",
        "unknown-user",
        "no-guardrail",
        "log-unavailable",
    ),
    is_feedback=True,
)

_ITEMS_SECONDS = 1.0
"""How often new records of the catalogue are read. An unknown item in a request is looked up at once."""

TAKEN = Taken(logged=True)

A = TypeVar("A", Decision, list[Decision])

Send: TypeAlias = Callable[[str], Coroutine[None, None, None]]
"""Sends feedback on an event of a user."""


async def _added(items: Catalogue, item: str, features: Mapping[str, Any]) -> None:
    await items.refresh_all()
    if items.find(item) is None:
        await items.add(item, features=features)


class DecisionAnswers(Answers):
    """See `Answers`."""

    calls = (DECIDE, RANK, SHOWN, REWARD, HARM, SIMILAR, CATALOGUE, OVERVIEW)
    _client: Client

    def __init__(self, log: EventLog, system: System, settings: GatewaySettings) -> None:
        """Answer over a log of the deployment, for the party of the settings if each party has its own applications."""
        rules: ContextRules = system.requests
        self._rules = rules
        self._settings = settings
        self._client = Client(log, rules=rules, party=settings.party)
        self._translation = Translation(rules, self._client.items)
        self._following: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[Any] | None = None
        self._remembered = Remembered(settings.wait_for(system), settings.remembered_events)
        self._seconds = settings.answer_seconds
        self._stated: Any = None if settings.baseline is None else self._translation.arm(settings.baseline)
        self._overview, self._similar = Overview(log, system), Similar(log, system)

    def items(self) -> list[dict[str, Any]]:
        """See `Answers`."""
        return self._translation.items()

    def looks(self) -> Mapping[str, Callable[[], Any]]:
        """See `Answers`."""
        return {**super().looks(), CATALOGUE.path: self._catalogue}

    def _catalogue(self) -> Mapping[str, Any]:
        if not self._client.items.named:
            return {"version": 0, "items": self.items(), "left_out": []}
        return whole(self._client.items)

    async def catalogue(self, asked: CatalogueAsked) -> CatalogueAnswered:
        """Answer `CATALOGUE`."""
        return await put(self._client.items, asked, self._seconds)

    async def overview(self, _: object) -> OverviewAnswered:
        """Answer `OVERVIEW`."""
        return await in_time(self._overview.show(), self._seconds)

    async def similar(self, asked: SimilarAsked) -> SimilarAnswered:
        """Answer `SIMILAR`."""
        return await in_time(self._similar.find(asked, self._client.items), self._seconds)

    def schema(self) -> Mapping[str, Any]:
        """See `Answers`."""
        return {
            **self._translation.schema(),
            "tracks": sorted(self._rules.tracks),
            "reward": {"expected": self._rules.expected_reward},
            "harm": self._rules.harm,
            "remembered_seconds": self._remembered.wait_seconds,
        }

    async def offer(self, item: str, features: Mapping[str, Any]) -> None:
        """Put an item into the catalogue, unless it is there already, offered or retired.

        A feature with a value outside of its vocabulary is left out, so that no item is refused that comes by itself.

        Raises:
            Problem: there is no room, the item is not valid, or the log does not acknowledge it in time.
        """
        items = self._client.items
        while items.find(item) is None:
            try:
                outcomes = {} if items.features is None else items.features.encode(features).outcomes
                known = {name: one for name, one in features.items() if outcomes.get(name) is not Outcome.UNKNOWN}
                await in_time(_added(items, item, known), self._seconds)
            except (RepeatedItem, StaleCatalogue):
                continue  # another gateway has added an item at the same time: this item or another
            except CatalogueFull:
                raise Problem("catalogue-full") from None
            except (BadItem, FeatureError) as error:
                raise Problem("bad-item", str(error)) from None

    async def __aenter__(self) -> Self:
        """See `Answers`."""
        await super().__aenter__()
        if self._client.items.named:
            try:
                await self._client.items.refresh_all()
            except BaseException:
                await super().__aexit__(None, None, None)
                raise
            self._following = asyncio.create_task(self._follow_items())
        if self._default is None and self._stated is not None:
            _log.warning("baseline: expected the id of an item; requests have no default baseline until there is one")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """See `Answers`."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        await super().__aexit__(kind, error, trace)

    @property
    def _default(self) -> Any:
        """The baseline of the settings; None while no item has this id, because that is not the request's fault."""
        known = self._stated is None or not self._client.items.named or self._client.items.holds(self._stated)
        return self._stated if known else None

    async def _follow_items(self) -> None:
        """Read new records of the catalogue for ever; while no broker answers, try again."""
        while True:
            await asyncio.sleep(_ITEMS_SECONDS)
            with suppress(HushstreamError):
                await self._client.items.refresh_all()

    async def _know(self, items: Iterable[Any], seconds: float, asked: Asked) -> None:
        """Read new records of the catalogue if one of a request's items is unknown: it may have been added just now.

        All requests share one read at a time, so that unknown ids cost the brokers no more than known ones.

        Raises:
            Problem: an id is not in the catalogue, or the log does not answer within ``seconds``.
        """
        catalogue = self._client.items
        if not catalogue.named:
            return
        missing = {one for one in items if one is not None and not catalogue.holds(one)}
        ends = time.monotonic() + seconds
        # A read in progress may have begun before the item was added; the next read begins after it.
        for _ in range(2):
            if not missing:
                return
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(catalogue.refresh_all())
            await in_time(self._reading, ends - time.monotonic())
            missing = {one for one in missing if not catalogue.holds(one)}
        if missing:
            raise Problem("unknown-item", errors=_places_of(missing, asked))

    async def decide(self, asked: DecisionAsked) -> DecisionAnswered:
        """Answer `DECIDE`."""
        ends = time.monotonic() + self._seconds
        context, stands_for, unknown = self._translation.situation(asked.context)
        eligible = self._translation.eligible(asked.items, asked.context)
        baseline = self._default if asked.baseline is None else self._translation.arm(asked.baseline)
        if asked.baseline is None and eligible is not None and baseline not in eligible:
            baseline = None
        await self._know((*(eligible or ()), baseline), self._seconds, asked)
        if eligible is not None and baseline not in (None, *eligible):
            raise Problem("unknown-item", "baseline: expected one of the items that may be shown, got another")
        notes = {"retired": self._retired(asked.items), "unknown": unknown}
        request = (asked.user, stands_for, tuple(eligible or ()), asked.baseline, asked.track)
        event = self._remembered.event(asked.event_id, asked.user, hash(request))
        if event.logged:
            return self._answered(event.answer, **notes)
        given, rest = (asked.event_id, asked.user, context), ends - time.monotonic()
        asking = self._client.decide(*given, eligible, baseline, rest, asked.track)
        found = await self._answer(asked.event_id, event, eligible, asking)
        event.answer, event.logged = found, found.policy in LEARNED
        return self._answered(found, **notes)

    async def rank(self, asked: RankAsked) -> RankAnswered:
        """Answer `RANK`."""
        ends = time.monotonic() + self._seconds
        context, stands_for, unknown = self._translation.situation(asked.context)
        eligible = self._translation.eligible(asked.items, asked.context)
        default: Sequence[Any] = [one for one in (self._default,) if one is not None]
        baseline = default if asked.baseline is None else self._translation.arms(asked.baseline) or default
        await self._know((*(eligible or ()), *baseline), self._seconds, asked)
        own = tuple(asked.baseline or ())
        notes = {"retired": self._retired(asked.items), "unknown": unknown}
        request = hash(("rank", asked.user, stands_for, asked.positions, tuple(eligible or ()), own, asked.track))
        first = self._remembered.event(asked.event_id, asked.user, request)
        if first.slate is not None:
            return self._ranked(asked.event_id, first.slate, **notes)
        given, rest = (asked.event_id, asked.user, context, asked.positions), ends - time.monotonic()
        asking = self._client.rank(*given, eligible, baseline, rest, asked.track)
        found = await self._answer(asked.event_id, first, eligible, asking)
        for position, decided in enumerate(found, 1):
            name = position_event(asked.event_id, position)
            event = self._remembered.event(name, asked.user, request)
            event.answer, event.logged = decided, decided.policy in LEARNED
        answered = self._ranked(asked.event_id, found, **notes)
        if answered.logged:
            first.slate = tuple(found)
        return answered

    async def _answer(self, event_id: str, event: Event, eligible: Sequence[Any] | None, asking: Awaitable[A]) -> A:
        """As `Remembered.answer`; a learner's refusal says if all items of the request are retired."""
        items = self._client.items
        try:
            return await self._remembered.answer(event_id, event, _not_refused(asking))
        except RequestRefused as error:
            learners = type(error) is RequestRefused and eligible is not None and items.named
            if learners and not any(map(items.offers, eligible or ())):
                raise Problem("unknown-item", "items: expected one that is offered, got only retired ones") from None
            raise

    def _ranked(self, event_id: str, found: Sequence[Decision], retired: Sequence[Item], **notes: Any) -> RankAnswered:
        ranked = [self._answered(one) for one in found]
        logged = all(one.logged for one in ranked)
        named = _others(retired, *(one.item for one in ranked))
        return RankAnswered(event_id=event_id, ranked=ranked, logged=logged, retired=named, **notes)

    def _retired(self, named: Items | None) -> tuple[Item, ...]:
        """Those of the items that a request names which are retired; learners choose from the others."""
        items = self._client.items
        return tuple(one for one in named or () if items.named and not items.offers(str(one)))

    def _answered(self, found: Decision, retired: Sequence[Item] = (), **notes: Any) -> DecisionAnswered:
        item = self._translation.item(found)
        return DecisionAnswered(
            event_id=found.event_id,
            item=item,
            retired=_others(retired, item),
            propensity=found.propensity,
            policy=found.policy,
            model_version=found.model_version,
            logged=found.policy in LEARNED,
            **notes,
        )

    async def shown(self, told: ShownTold) -> Taken:
        """Answer `SHOWN`."""
        return await self._tell_of_item("shown", told, None)

    async def reward(self, told: RewardTold) -> Taken:
        """Answer `REWARD`."""
        return await self._tell_of_item("reward", told, told.reward)

    async def harm(self, told: HarmTold) -> Taken:
        """Answer `HARM`."""
        said = "Its wait for a reward is over, or another gateway answered it: name `user`."
        return await self._tell(
            "harm", told, told.harm, lambda one: self._client.harm(told.event_id, one, told.harm), said
        )

    async def _tell_of_item(self, kind: str, told: ShownTold | RewardTold, reward: float | None) -> Taken:
        event = self._remembered.of(told.event_id)
        if event is None and None in (told.user, told.item):
            raise Problem("unknown-event")
        decided = None if event is None else self._translation.item(logged_event(event, told.user).answer)
        arm: Any = decided if told.item is None else self._translation.arm(told.item)
        if arm != decided:
            await self._know((arm,), self._seconds, told)

        def send(user: str) -> Coroutine[None, None, None]:
            if reward is None:
                return self._client.shown(told.event_id, user, arm)
            return self._client.reward(told.event_id, user, arm, reward)

        return await self._tell(kind, told, (arm, reward), send)

    async def _tell(self, kind: str, told: _Told, content: Hashable, send: Send, unknown: str | None = None) -> Taken:
        """Log feedback on an event: once, if it is remembered; else for the user that the feedback names.

        Another gateway may have answered the event, or this one before a restart: learners know it all the same.
        """
        event = self._remembered.of(told.event_id)
        if event is not None:
            user = logged_event(event, told.user).user
            await log_once(event, kind, content, partial(send, user), self._seconds)
        elif told.user is None:
            raise Problem("unknown-event", unknown)
        else:
            await in_time(send(told.user), self._seconds)
        return TAKEN


async def _not_refused(asking: Awaitable[A]) -> A:
    """Refuse a request that its learner refused, although it has a baseline."""
    found = await asking
    if (found[0] if isinstance(found, list) else found).policy == "refused":
        raise RequestRefused("decide: the learner refused the request")
    return found


def _places_of(missing: Collection[Any], asked: Asked) -> list[dict[str, str]]:
    """The places of a request that name an item which is in no catalogue."""
    detail = "expected the id of an item in the catalogue, got another"
    given = {key: value for key, value in dict(asked).items() if key in ("items", "item", "baseline")}
    single = [f"/{key}" for key, value in given.items() if isinstance(value, str) and value in missing]
    lists = {key: value for key, value in given.items() if isinstance(value, list)}
    many = [f"/{key}/{place}" for key, value in lists.items() for place, one in enumerate(value) if one in missing]
    return [{"pointer": pointer, "detail": detail} for pointer in (*single, *many)]


def _others(retired: Sequence[Item], *answered: Item) -> tuple[Item, ...]:
    """What was named and is retired, without what is answered: learners may know earlier that it is offered again."""
    return tuple(one for one in retired if one not in answered)
