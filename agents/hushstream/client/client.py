"""The client's logic, over any log: it sends a context, receives the decision, and sends shown and reward.

The client applies the chain rule of the decisions journal, so it never accepts a record as an answer that a worker
wrote after it had lost its partition. It remembers the offset of each user's last acknowledged click and sends it with
the next context: the learner then decides only after it has learned from that click.

No caller waits for an answer that will not come. The client does not send requests that break the deployment's rules.
It knows that a learner has refused a request when the learner's journal has passed it without an answer. While no
learner answers, the caller gets the baseline at once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeGuard

from numpy.typing import ArrayLike

from hushstream.client.decisions import (
    LEARNED,
    Answer,
    Decision,
    DecisionReader,
    PolicyName,
    items_read,
    mask_of,
    packed_of,
    position_event,
    require_id,
)
from hushstream.client.items import Items
from hushstream.client.logs import EventLog
from hushstream.client.waiting import Awaited, Circuit, UnansweredQuestions
from hushstream.engine.catalogue import UnknownItem
from hushstream.engine.declare.declaration import DECISIONS
from hushstream.engine.declare.requests import (
    BadContext,
    BadReward,
    ContextRules,
    RequestRefused,
    UnknownArm,
    UnknownEvent,
)
from hushstream.features.checks import is_number, type_name
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import partition_of

REMEMBERED_ANSWERS = 10_000
"""Number of answers that a client keeps, so that a repeated event id gets the same answer without a request. As many
questions are kept after their timeout."""

REMEMBERED_USERS = 200_000
"""Number of users for whom the client keeps the offset of their last click."""


class BaselineMissing(HushstreamError):
    """The deployment is in shadow mode (mode: shadow), and the caller did not pass the application's own choice as
    baseline."""


class DecisionTimeout(HushstreamError):
    """No decision came in time, and the caller gave no baseline arm: no learner runs, or it lags."""


class _Home:
    """A home partition, and the state of its journal.

    Attributes:
        partition: its number.
        reader: applies the chain rule to its journal.
        circuit: whether a learner answers there.
        unanswered: which questions the journal has answered, and which it has passed without an answer.
        learner_knows: next offset that its learner reads of the catalogue's changes.
        ask_again: events that its learner refused before it had read the catalogue as far as this client.
    """

    __slots__ = ("ask_again", "circuit", "learner_knows", "partition", "reader", "unanswered")

    def __init__(self, partition: int, asked: str) -> None:
        self.partition = partition
        self.reader = DecisionReader()
        self.circuit = Circuit()
        self.unanswered: UnansweredQuestions[tuple[Answer, int]] = UnansweredQuestions(asked)
        self.learner_knows = 0
        self.ask_again: list[str] = []


class _Question(NamedTuple):
    """A context that was sent and has no answer yet.

    Attributes:
        user: its user.
        home: its home partition.
        answer: future of its answer.
        value: its encoded record.
        known: next offset that this client was to read of the catalogue's changes when it asked.
        learner_knew: the same of the learner, as its journal said.
    """

    user: str
    home: _Home
    answer: Awaited[Decision]
    value: bytes
    known: int
    learner_knew: int


class Client:
    """Ask for decisions and report feedback on them. One instance serves many users concurrently.

    Use as an async context manager; `hushstream.client.connect` makes one on a Kafka.
    """

    def __init__(
        self,
        log: EventLog,
        *,
        track: str | None = None,
        rules: ContextRules | None = None,
        party: str = "",
    ) -> None:
        """Make a client that is not started yet; `__aenter__` connects it.

        Args:
            log: the log to write to and to read decisions from.
            track: the shared model that new users start from; by default "private", or the party's.
            rules: rules of requests (`System.requests`), to refuse invalid ones before they are sent; without them only
                the learner refuses.
            party: the party of the users, if each party has its own; the log uses its topics.
        """
        self._log = log
        self._asked, (self._told,), _ = DECISIONS.of(party)
        self._rules = rules
        self._track = track or party or "private"
        self.items = Items(log, rules, party)
        """The catalogue of items, if items have names."""
        self._homes: dict[int, _Home] = {}
        self._unsent: OrderedDict[str, None] = OrderedDict()
        self._waiting: dict[str, _Question] = {}
        self._overdue: OrderedDict[str, None] = OrderedDict()
        self._sending: set[asyncio.Future[Any]] = set()
        self._answers: OrderedDict[str, Decision] = OrderedDict()
        self._last_click: OrderedDict[str, int] = OrderedDict()
        self._last_click_of_partition: dict[int, int] = {}

    async def __aenter__(self) -> Self:
        """Start reading decisions."""
        await self._log.start(self._on_decisions)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Flush and close; decisions that are still awaited are cancelled."""
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)
        for question in self._waiting.values():
            question.answer.fail(asyncio.CancelledError())
        self._waiting.clear()
        await self._log.stop()

    async def decide(
        self,
        event_id: str,
        user: str,
        context: ArrayLike | Mapping[str, Any],
        eligible: Sequence[int] | Sequence[str] | None = None,
        baseline: int | str | None = None,
        timeout: float | None = 5.0,  # noqa: ASYNC109 - the timeout has a meaning of its own: the baseline
        track: str | None = None,
    ) -> Decision:
        """Ask which arm to show.

        Args:
            event_id: names this decision (1 to 128 bytes of UTF-8). It must be unique over all users: answers name
                events, not users, so if two users have the same id in one batch of the learner, one may get the answer
                to the other. The same id always gets the same answer. A timeout is not an answer: a later call with the
                same id may get the learner's.
            user: the account, as the application authenticates it; if users are the nodes of a public graph, one of
                these.
            context: finite numbers, as many as the configuration says; the learner refuses any other length. One
                context for all arms: (d,), a histogram that sums to 1, d being ``features.dimension``. Features of each
                arm: (arms * d,), d being ``features.dimension``: row a of the (arms, d) matrix is the features of arm
                a, row after row; where fewer arms are shown, the other rows are there too (as zeros) and ``eligible``
                names those shown; where items have names, (d,) of each item that may be shown, by its id. Where
                features are declared by name: their values by name; a value that is absent or None counts as missing.
            eligible: arms that may be shown, numbered from 0, or ids of items if items have names; None for all that
                are offered.
            baseline: what to show when no answer comes within ``timeout``. While no learner answers, the caller gets it
                at once and the question is not sent, except one each second, which probes whether a learner answers
                again. In shadow mode (mode: shadow) it is the application's own choice, which the caller gets back.
            timeout: seconds; None waits for ever.
            track: the shared model this user starts from, when not the client's default.

        Raises:
            BadContext, UnknownArm, UnknownUser, UnknownTrack: the deployment's rules refuse the request; it was not
                sent.
            UnknownEvent: the event id is another user's.
            RequestRefused: the learner refused the request, and there is no baseline.
            BaselineMissing: the deployment is in shadow mode, and there is no baseline.
            DecisionTimeout: no answer in time and no baseline.
            HushstreamError: an argument is impossible, or the log refused the record.
        """
        fallback = None if baseline is None else await self._fallback(event_id, user, baseline)
        if fallback is None and self._in_shadow:
            raise BaselineMissing(
                "baseline: expected the application's own choice, which is shown as long as this deployment is in the "
                "shadow (mode: shadow), got none"
            )
        known = self._answers.get(event_id)
        if known is not None:
            _require_user(known.user, user)
            return self._to_show(known, fallback)
        if self._of_items(context):
            eligible = list(context) if eligible is None else _of_context(eligible, context)
            context = await self.items.matrix_of(context, self._rules)
        rows = None if eligible is None else [await self.items.arm_of(one) for one in eligible]
        require_id("event_id", event_id)
        require_id("user", user)
        question = self._waiting.get(event_id)
        home = self._home(user) if question is None else question.home
        now = asyncio.get_running_loop().time()
        silent = baseline is not None and home.circuit.is_open(now)
        if question is None:
            value = self._context(event_id, user, context, rows, None if fallback is None else fallback.arm, track)
            if fallback is not None and silent and not home.circuit.probes(now):
                return self._unasked(fallback)
            question = self._ask(event_id, user, home, value)
        _require_user(question.user, user)
        try:
            # The caller gets the baseline and does not wait for the answer to a probe.
            answer = question.answer.result() if silent else await question.answer.within(timeout)
            return self._to_show(answer, fallback)
        except RequestRefused:
            if fallback is None:
                raise
            return replace(fallback, policy="refused")
        except TimeoutError:
            if fallback is None:
                raise DecisionTimeout(
                    f"decide: expected an answer within {timeout} s, got none and no baseline arm was given; no "
                    f"learner runs, or it is behind"
                ) from None
            return replace(fallback, policy="no_learner" if silent else "timeout")
        finally:
            if not question.answer.done:
                self._note_overdue(event_id)

    async def rank(
        self,
        event_id: str,
        user: str,
        context: ArrayLike | Mapping[str, Any],
        positions: int,
        eligible: Sequence[int] | Sequence[str] | None = None,
        baseline: Sequence[int] | Sequence[str] = (),
        timeout: float | None = 5.0,  # noqa: ASYNC109 - as in `decide`
        track: str | None = None,
    ) -> list[Decision]:
        """Ask for an ordered slate: one arm for each of several positions, no arm twice.

        Each position is a decision with its own event (`position_event`), among the arms that the positions before it
        have left. So each has its exact propensity given those before it, their product is the slate's propensity, and
        `shown` and `reward` report on each. The positions are asked one after another; each counts as an interaction of
        the user.

        Args:
            event_id: names the slate, and its first position; the same id gets the same slate.
            user, context, track: as in `decide`.
            positions: length of the slate; it is shorter if fewer arms are eligible.
            eligible: arms that may be shown; None for all (then the client needs the deployment's rules).
            baseline: arms to show, in this order, from the first position that no learner answers in time; the slate
                ends where the baseline ends. In shadow mode it is the application's own slate.
            timeout: seconds for the whole slate; None waits for ever.

        Raises:
            HushstreamError: an error of `decide` for any position; or ``positions`` is below 1.
        """
        if positions < 1:
            raise HushstreamError(f"positions: expected at least one, got {positions}")
        if eligible is None:
            eligible = list(context) if self._of_items(context) else None
        if self.items.named and not self.items.position:
            await self.items.refresh_all()
        left = list(dict.fromkeys(self._all_items() if eligible is None else eligible))
        ends = None if timeout is None else asyncio.get_running_loop().time() + timeout
        found: list[Decision] = []
        unanswered: PolicyName | None = None
        for position in range(1, positions + 1):
            if not left:
                break
            event, own = position_event(event_id, position), next((item for item in baseline if item in left), None)
            if own is None and (unanswered is not None or (found and self._in_shadow)):
                break
            if unanswered is not None and own is not None:
                # After one position without an answer the learner is not asked for later ones: their propensity would
                # be unknown.
                decided = self._unasked(replace(await self._fallback(event, user, own), policy=unanswered))
            else:
                rest = None if ends is None else max(0.0, ends - asyncio.get_running_loop().time())
                among: Any = eligible if position == 1 else left
                try:
                    decided = await self.decide(event, user, context, among, own, rest, track)
                except RequestRefused:
                    # The same context was taken for the first position: what is left of its items was retired since.
                    if not found:
                        raise
                    break
            if decided.policy not in LEARNED:
                unanswered = decided.policy
            found.append(decided)
            item = decided.arm if decided.item is None else decided.item
            if eligible is None:
                # All that are offered now: an item that was decided before may have been retired since.
                shown = {one.arm if one.item is None else one.item for one in found}
                left = [one for one in self._all_items() if one not in shown]
            elif item in left:
                left.remove(item)
            else:
                raise UnknownEvent("rank: expected an event of its own, got one that was decided among other arms")
        return found

    def _of_items(self, context: ArrayLike | Mapping[str, Any]) -> TypeGuard[Mapping[str, Any]]:
        """Whether a context gives the features of each item under the item's id.

        Raises:
            BadContext: it is a matrix although items have names; applications do not know rows of the catalogue.
        """
        by_item = self._rules is not None and self._rules.item_numbers is not None
        if by_item and self.items.named and not isinstance(context, Mapping):
            raise BadContext("context: expected the features of each item that may be shown, by its id, got others")
        return by_item and isinstance(context, Mapping)

    def _all_items(self) -> Sequence[int | str]:
        """Every item that may be shown: known ids if items have names, else numbers of arms.

        Raises:
            HushstreamError: this client does not know the deployment's rules.
        """
        if self.items.named:
            return [one.item for one in self.items.offered()]
        if self._rules is None:
            raise HushstreamError(
                "eligible: expected arms, as this client does not know the deployment's rules, got none"
            )
        return range(self._rules.arms)

    @property
    def _in_shadow(self) -> bool:
        """Whether the application's own choice is shown, and the learner's answer is only logged."""
        return self._rules is not None and self._rules.shadow

    def _to_show(self, answer: Decision, fallback: Decision | None) -> Decision:
        """The answer for the application; in shadow mode this is its own choice, marked as such."""
        if fallback is None or not self._in_shadow:
            return answer
        return replace(fallback, policy="shadow", model_version=answer.model_version)

    async def _fallback(self, event_id: str, user: str, baseline: int | str) -> Decision:
        """Make an answer of the caller's own baseline."""
        arm = await self.items.arm_of(baseline)
        found = Decision(event_id, user, arm, None, "no_learner", 0)
        return replace(found, item=baseline, catalogue=self.items.version) if isinstance(baseline, str) else found

    async def shown(self, event_id: str, user: str, arm: int | str) -> None:
        """Report that ``arm``, or the item with this id, was on screen for this event; returns when the log holds it.

        If the event was never sent, because no learner answered, nothing is written.

        Raises:
            UnknownUser, UnknownArm, UnknownEvent: every learner would refuse the report; it was not sent.
        """
        await self._feedback("shown", event_id, user, arm, 0.0)

    async def reward(self, event_id: str, user: str, arm: int | str, reward: float) -> None:
        """Report the reward in [0, 1] of what was on screen; returns when the log holds it. See `shown`.

        Raises:
            BadReward: the reward is not a number in [0, 1], or on none of the deployment's levels.
            UnknownUser, UnknownArm, UnknownEvent: every learner would refuse the report; it was not sent.
        """
        await self._feedback("reward", event_id, user, arm, _share("reward", reward))

    async def harm(self, event_id: str, user: str, harm: float) -> None:
        """Report how much of the guardrail's harm, in [0, 1], an event did; returns when the log holds it.

        Nothing learns from it: it is counted in the measurement alone. Without a report there was no harm.

        Raises:
            BadReward: the harm is not a number in [0, 1].
            UnknownUser, UnknownEvent, NoGuardrail: every learner would refuse the report; it was not sent.
        """
        value = _share("harm", harm)
        require_id("event_id", event_id)
        require_id("user", user)
        if self._rules is not None:
            self._rules.check_harm(user)
        asked = self._answers.get(event_id)
        if asked is not None:
            _require_user(asked.user, user)
        fields = {"kind": "harm", "event_id": event_id, "user": user, "arm": 0, "reward": value}
        await self._log.append(self._told, self._partition(user), codec.encode("Feedback", fields))

    async def end_phase(self, phase: int) -> None:
        """End a phase (a public event): every due slot is sent and every open window closes.

        It ends all attribution windows: slots are made of the interactions whose reward is known by then. So report
        every reward before, also each reward of 0: otherwise slots would hold clicked interactions more often than they
        should.

        The phase end goes to all partitions, behind every record of this client that the log has acknowledged.
        """
        for partition in range(self._log.partitions()):
            after = self._last_click_of_partition.get(partition, -1)
            fields = {"phase": phase, "origin": -1, "config_digest": bytes(16), "after_click": after}
            await self._log.append(self._asked, partition, codec.encode("Seal", fields))

    def _ask(self, event_id: str, user: str, home: _Home, value: bytes) -> _Question:
        """Send a context. The caller's timeout does not include the sending."""
        position = self.items.position
        question = self._waiting[event_id] = _Question(user, home, Awaited(), value, position, home.learner_knows)
        home.circuit.on_request(asyncio.get_running_loop().time())
        self._unsent.pop(event_id, None)
        self._start_sending(event_id, question)
        return question

    def _start_sending(self, event_id: str, question: _Question) -> None:
        try:
            sending = asyncio.ensure_future(self._log.append(self._asked, question.home.partition, question.value))
        except HushstreamError as error:
            self._on_unsent(event_id, question, error)
            return
        self._sending.add(sending)
        sending.add_done_callback(partial(self._on_sent, event_id, question))

    def _on_unsent(self, event_id: str, question: _Question, error: BaseException) -> None:
        """Fail a question that did not reach the log. It may be asked again; this says nothing about learners."""
        question.home.circuit.on_answer()
        self._fail(event_id, error)

    def _on_sent(self, event_id: str, question: _Question, sending: asyncio.Future[int]) -> None:
        self._sending.discard(sending)
        if sending.cancelled():
            return
        error = sending.exception()
        if error is not None:
            self._on_unsent(event_id, question, error)
            return
        if self._waiting.get(event_id) is not question:
            return
        unanswered, offset = question.home.unanswered, sending.result()
        early = unanswered.early_answer(event_id, offset)
        if early is not None:
            self._settle(question, *early)
        elif unanswered.sent(event_id, offset):
            self._on_refusal(event_id)

    def _on_refusal(self, event_id: str) -> None:
        """Handle a question that the journal has passed without an answer: its learner refused it.

        A learner that has not read the catalogue as far as this client (after a start, or for a new item) may refuse a
        question that it would accept later. Such a question is asked once more when the learner has read so far.
        """
        question = self._waiting.get(event_id)
        if question is None or question.learner_knew >= question.known:
            self._fail(event_id, _refused())
            return
        question.home.ask_again.append(event_id)
        self._ask_who_waits(question.home)

    def _ask_who_waits(self, home: _Home) -> None:
        """Repeat refused questions, after the learner has read the catalogue."""
        refused, home.ask_again = home.ask_again, []
        for event_id in refused:
            question = self._waiting.get(event_id)
            if question is not None and home.learner_knows < question.known:
                home.ask_again.append(event_id)
            elif question is not None:
                again = self._waiting[event_id] = question._replace(learner_knew=home.learner_knows)
                self._start_sending(event_id, again)

    def _fail(self, event_id: str, error: BaseException) -> None:
        """End a question that has no answer."""
        question = self._waiting.get(event_id)
        self._drop(event_id)
        if question is not None:
            question.answer.fail(error)

    def _partition(self, user: str) -> int:
        return partition_of(user, self._log.partitions())

    def _home(self, user: str) -> _Home:
        return self._home_at(self._partition(user))

    def _home_at(self, partition: int) -> _Home:
        found = self._homes.get(partition)
        if found is None:
            found = self._homes[partition] = _Home(partition, self._asked)
        return found

    def _unasked(self, fallback: Decision) -> Decision:
        """The baseline for a question that is not sent; nothing is learned from it."""
        self._unsent[fallback.event_id] = None
        if len(self._unsent) > REMEMBERED_ANSWERS:
            self._unsent.popitem(last=False)
        return fallback

    def _note_overdue(self, event_id: str) -> None:
        """Keep a question after its timeout, because its answer may come late; only so many, as none may come."""
        self._overdue[event_id] = None
        self._overdue.move_to_end(event_id)
        if len(self._overdue) > REMEMBERED_ANSWERS:
            self._drop(next(iter(self._overdue)))

    def _drop(self, event_id: str) -> None:
        self._overdue.pop(event_id, None)
        question = self._waiting.pop(event_id, None)
        if question is not None:
            question.home.unanswered.forget(event_id)

    def _context(
        self,
        event_id: str,
        user: str,
        context: ArrayLike | Mapping[str, Any],
        eligible: Sequence[int] | None,
        baseline: int | None,
        track: str | None,
    ) -> bytes:
        mask, track = mask_of(eligible), self._track if track is None else track
        schema, situation = self._situation(user, track, context, eligible, baseline)
        if baseline is not None and (baseline < 0 or (eligible is not None and baseline not in eligible)):
            raise UnknownArm("baseline: expected one of the eligible arms, numbered from 0")
        return codec.encode(
            schema,
            {
                "event_id": event_id,
                "user": user,
                "line": track,
                **situation,
                "eligible": mask,
                "baseline": -1 if baseline is None else baseline,
                "after_click": self._last_click.get(user, -1),
            },
        )

    def _situation(
        self,
        user: str,
        track: str,
        context: ArrayLike | Mapping[str, Any],
        eligible: Sequence[int] | None,
        baseline: int | None,
    ) -> tuple[str, dict[str, bytes]]:
        """The schema of the record that carries a context, and the fields that hold the context."""
        rules = self._rules
        if isinstance(context, Mapping):
            if rules is None or rules.features is None:
                raise BadContext(
                    "context: expected numbers, got names with values (a client reads what features are "
                    "declared from the deployment's folder)"
                )
            row = rules.row_of(context)
            rules.check_context(user, track, None, eligible, baseline)
            return "FeatureContext", {"row": row, "features_digest": rules.features.digest}
        packed = packed_of(context)
        if rules is not None:
            rules.check_context(user, track, packed, eligible, baseline)
        return "Context", {"context": packed}

    async def _feedback(self, kind: str, event_id: str, user: str, on_screen: int | str, reward: float) -> None:
        require_id("event_id", event_id)
        require_id("user", user)
        decided = self._answers.get(event_id)
        # The row that the decision named, even if the item has been retired since.
        own = decided is not None and decided.item == on_screen
        arm = decided.arm if decided is not None and own else await self.items.arm_of(on_screen)
        self._check_feedback(event_id, user, arm, reward)
        if event_id in self._unsent:
            return
        partition = self._partition(user)
        fields = {"kind": kind, "event_id": event_id, "user": user, "arm": arm, "reward": reward}
        offset = await self._log.append(self._told, partition, codec.encode("Feedback", fields))
        self._last_click[user] = max(offset, self._last_click.get(user, -1))
        self._last_click.move_to_end(user)
        if len(self._last_click) > REMEMBERED_USERS:
            self._last_click.popitem(last=False)
        self._last_click_of_partition[partition] = max(offset, self._last_click_of_partition.get(partition, -1))

    def _check_feedback(self, event_id: str, user: str, arm: int, reward: float) -> None:
        """Refuse feedback that every learner would refuse, as far as this client can know."""
        asked = self._answers.get(event_id) or self._waiting.get(event_id)
        if asked is not None:
            _require_user(asked.user, user)
        if arm < 0:
            raise UnknownArm(f"arm: expected one numbered from 0, got {arm}")
        if self._rules is not None:
            self._rules.check_feedback(user, arm, reward)

    def _on_decisions(self, partition: int, offset: int, value: bytes) -> None:
        home = self._home_at(partition)
        for head, answers in home.reader.read(offset, value):
            home.circuit.on_answer()
            position = items_read(head)
            for answer in answers:
                question = self._waiting.get(answer.event_id)
                # An event of this name elsewhere is another user's: only in one partition does the learner see to that.
                if question is None or question.home is not home:
                    continue
                if home.unanswered.is_answer(answer.event_id, head, (answer, position)):
                    self._settle(question, answer, position)
            home.unanswered.passed(head)
            home.learner_knows = position
            self._ask_who_waits(home)
            for event_id in home.unanswered.take_refused():
                self._on_refusal(event_id)

    def _settle(self, question: _Question, answer: Answer, position: int) -> None:
        """Resolve a question with an answer, whose learner had read the catalogue up to this offset."""
        if self.items.knows(answer.arm, position):
            self._give(question, answer, position)
            return
        # The question has its answer, so it is no refusal when the journal passes it.
        question.home.unanswered.forget(answer.event_id)
        task = asyncio.create_task(self._read_names(question, answer, position))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _read_names(self, question: _Question, answer: Answer, position: int) -> None:
        try:
            await self.items.refresh_all()
        except HushstreamError as error:
            self._fail(answer.event_id, error)
        else:
            self._give(question, answer, position)

    def _give(self, question: _Question, answer: Answer, position: int) -> None:
        try:
            decision = answer.to(question.user, *self.items.of_decision(answer.arm, position))
        except UnknownItem as error:
            # Only this question fails: whoever delivers the answers of all others must go on.
            self._fail(answer.event_id, error)
            return
        self._drop(answer.event_id)
        self._answers[answer.event_id] = decision
        if len(self._answers) > REMEMBERED_ANSWERS:
            self._answers.popitem(last=False)
        question.answer.give(decision)


def _of_context(eligible: Sequence[Any], context: Mapping[str, Any]) -> Sequence[Any]:
    """Eligible items; the context must have the features of each."""
    if not all(item in context for item in eligible):
        raise UnknownArm("eligible: expected items whose features the context has, got another")
    return eligible


def _refused() -> RequestRefused:
    return RequestRefused(
        "decide: the learner refused the context (another length than the configuration's, a histogram that does not "
        "sum to 1, a user outside the graph, items of which none is on offer); `hushstream dead-letters list edge` "
        "tells why"
    )


def _share(name: str, value: float) -> float:
    """A reward or a harm.

    Raises:
        BadReward: not a number in [0, 1].
    """
    if not is_number(value):
        raise BadReward(f"{name}: expected a number in [0, 1], got {type_name(value)}")
    if not 0.0 <= value <= 1.0:
        raise BadReward(f"{name}: expected a number in [0, 1], got {value!r}")
    return float(value)


def _require_user(known: str, user: str) -> None:
    # The arm would tell this user about another user's clicks. Only this process can check: event ids must be unique.
    if known != user:
        raise UnknownEvent("event_id: expected one of this user's or a new one, got another user's")
