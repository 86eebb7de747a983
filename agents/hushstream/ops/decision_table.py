"""Makes a table of decisions from a deployment's own log, to evaluate another policy on it.

The table has one row for each decision that the model made: the values of its features, the arm that was shown, its
propensity, and the reward. Contexts of numbers are one feature, an embedding named ``context``. Decisions are left out
if their row would be wrong or biased:

* Answers to users who are shown the application's own choice and to users over quota are left out: no policy drew them.
* A decision that was never shown is left out. So is a decision in whose place the application showed another arm,
  because the propensity is not that arm's. If an application shows some arms less often than it gets them as answers,
  the table is still biased.
* A decision whose reward could still come when the log ended is left out, even if the reward has come. Otherwise early
  rewards would count, and late zeros would not.
* A decision is left out if an eligible item has a cap: whether it could be chosen depends on the user's earlier shows.
  Leaving out all decisions with such an item, chosen or not, biases nothing.

If items have names, the arms of the table are all items that ever existed, in the order in which they were added,
each under its id. A row of the catalogue held several items over time, so the catalogue version of a decision says
which item the decision meant. Its eligible items are those that were on offer then, or the pinned ones of them. If
contexts have numbers for each item, those of item n come n-th; they are 0 if a context gave none.

The table is exact content of persons: keep it in the edge zone, where contexts and clicks are.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.client.decisions import Answer, DecisionReader, items_read, mask_of
from hushstream.engine.catalogue import CatalogueRules, ItemRefused
from hushstream.engine.declare.declaration import DECISIONS, System, conversation_of
from hushstream.engine.declare.requests import ContextRules
from hushstream.engine.learner.arrivals import decode_checked
from hushstream.engine.learner.batch import eligible_mask
from hushstream.engine.learner.items import ItemReader
from hushstream.engine.records import InputSlice
from hushstream.features.schema import FeatureSchema
from hushstream.features.schema import declare as declare_features
from hushstream.feedback.join import NOT_SHOWN
from hushstream.learners.exploration import WHOLE
from hushstream.ops.export import FILE_MODE
from hushstream.ops.log_copy import LogCopy, PartitionCopy
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.feedback_columns import gather_feedback
from hushstream.schemas.rows import HARM, REWARD

TABLE, MAPPING = "decisions.jsonl", "mapping.yaml"
NOTICE = (
    "INTERNAL, NOT PRIVATE: exact content of users of {deployment}. Keep it in the edge zone; results computed from "
    "it are not private either."
)
_FOLDER_MODE = 0o700
_NUMBERS = "context"
"""The feature that holds a context of numbers."""

_COLUMNS = {key: f"decision.{key}" for key in ("user", "timestamp", "arm", "reward", "propensity", "eligible")}
"""The columns beside those of the features, whose names have no dots."""


class Context(NamedTuple):
    """A request: the user (as a running number), the time, the values by feature, and the eligible arms."""

    user: int
    time_ms: int
    features: Mapping[str, Any]
    eligible: bytes


class Row(NamedTuple):
    """A decision: the context, the answer, the arm on screen, and its reward."""

    context: Context
    answer: Answer
    shown: int
    reward: float


class _Feedback(NamedTuple):
    """The feedback on an event: the arm that was on screen, and its reward."""

    shown: int = NOT_SHOWN
    reward: float = 0.0


@dataclass(frozen=True)
class DecisionTable:
    """Decisions with their rewards.

    Attributes:
        rows: the decisions, in the order of their answers.
        left_out: how many decisions were left out, by reason.
        arms: the number of arms.
        schema: the features.
        deployment: the name of the deployment.
        items: the id of each arm; None if items have no names.
    """

    rows: Sequence[Row]
    left_out: Mapping[str, int]
    arms: int
    schema: FeatureSchema
    deployment: str
    items: Sequence[str] | None = None

    def write(self, folder: Path) -> None:
        """Write the table, and the mapping with which `hushstream evaluate` reads it; only the owner can read them.

        Raises:
            HushstreamError: the folder exists already, or cannot be written.
        """
        try:
            folder.mkdir(mode=_FOLDER_MODE)
            with open(_owned(folder / TABLE), "w", encoding="utf-8") as file:
                file.writelines(f"{json.dumps(self._entries(row))}\n" for row in self.rows)
            with open(_owned(folder / MAPPING), "w", encoding="utf-8") as file:
                file.write(self._mapping())
        except OSError as error:
            raise HushstreamError(f"{folder}: expected a new folder to write, got {error.strerror}") from None

    def _entries(self, row: Row) -> dict[str, Any]:
        context, answer, _, reward = row
        eligible = list(range(self.arms))
        if context.eligible:
            eligible = np.flatnonzero(eligible_mask(context.eligible, self.arms)).tolist()
        said = (
            f"u{context.user}",
            context.time_ms,
            self._called(answer.arm),
            reward,
            answer.propensity / WHOLE,
            list(map(self._called, eligible)),
        )
        return {**context.features, **dict(zip(_COLUMNS.values(), said, strict=True))}

    def _called(self, arm: int) -> int | str:
        return arm if self.items is None else self.items[arm]

    def _mapping(self) -> str:
        arms = self.arms if self.items is None else list(self.items)
        keys = {"data": "internal", "timestamp_unit": "ms", "arms": arms, "features": self.schema.plain, **_COLUMNS}
        lines = [f"{key}: {json.dumps(value)}" for key, value in keys.items()]
        return "\n".join((f"# {NOTICE.format(deployment=self.deployment)}", *lines, ""))


def decision_table(logs: LogCopy, system: System) -> DecisionTable:
    """The decisions of a deployment, in the order of their answers by partition.

    Args:
        logs: a copy with contexts, clicks and decisions from their beginning.
        system: the deployment.

    Raises:
        HushstreamError: applications do not ask this deployment for decisions, or no decision can be used.
    """
    if system.parties:
        raise HushstreamError(f"deployment {system.config.deployment}: expected one without parties, got several")
    conversation = conversation_of(system)
    answers, rules = conversation.answers, system.requests
    if conversation != DECISIONS or answers is None or not isinstance(rules, ContextRules):
        raise HushstreamError(f"deployment {system.config.deployment}: expected one that decides, got another")
    (feedback_topic,) = conversation.feedback
    items = None
    if rules.catalogue is not None:
        items = _Items(rules.catalogue, logs.part((rules.catalogue.topic, 0)), rules.item_numbers)
    wait_ms = _wait_ms(system)
    numbers: dict[str, int] = {}
    left_out: Counter[str] = Counter()
    rows: list[Row] = []
    for partition, decided in logs.of_topic(answers):
        asked = logs.part((conversation.requests, partition))
        contexts = _contexts(asked, conversation.requests, partition, rules, numbers)
        ends_ms = max((record.timestamp_ms for record in asked.records), default=0)
        said = _feedback(logs.part((feedback_topic, partition)), contexts, wait_ms)
        for answer, position in _answers(decided):
            context, feedback = contexts.get(answer.event_id), said.get(answer.event_id, _Feedback())
            why = _omitted(answer, context, feedback, ends_ms - wait_ms)
            if why is None and context is not None:
                row = Row(context, answer, *feedback)
                named = row if items is None else items.named(row, position)
                if named is not None:
                    rows.append(named)
                    continue
                why = "an eligible item has a cap"
            left_out[why or ""] += 1
    if not rows:
        raise HushstreamError(f"log: expected decisions that were shown, got none ({dict(left_out)} left out)")
    schema = rules.features
    if schema is None:
        dimension = len(rows[0].context.features[_NUMBERS])
        schema = declare_features({_NUMBERS: {"kind": "embedding", "dimension": dimension}})
    arms, ids = (rules.arms, None) if items is None else (len(items.ids), items.ids)
    return DecisionTable(rows, left_out, arms, schema, system.config.deployment, ids)


class _Items:
    """All items that ever existed.

    Attributes:
        ids: the ids, in the order in which they were added.
    """

    def __init__(self, rules: CatalogueRules, part: PartitionCopy, item_numbers: int | None) -> None:
        """Read the catalogue's changes from their beginning; a context has ``item_numbers`` numbers for each item."""
        self._item_numbers = item_numbers
        reader = ItemReader(rules)
        self._catalogue = reader.catalogue
        self._highs: list[int] = []
        self._offered = [self._catalogue.offered]
        self._pinned = [self._catalogue.pinned]
        self._capped = [list(self._catalogue.caps)]
        numbers: dict[str, int] = {}
        for read in reader.read(InputSlice(rules.topic, 0, part.low, part.high, tuple(part.records))):
            with suppress(ItemRefused):
                if read.changes:
                    for item in self._catalogue.take_all(read.changes, read.log_time_ms):
                        numbers.setdefault(item.item, len(numbers))
                    self._highs.append(read.offset + 1)
                    self._offered.append(self._catalogue.offered)
                    self._pinned.append(self._catalogue.pinned)
                    self._capped.append(list(self._catalogue.caps))
        self.ids = tuple(numbers)
        self._numbers = numbers

    def named(self, row: Row, position: int) -> Row | None:
        """Replace rows by the numbers of items; the learner that decided had read the changes up to an offset.

        None if an eligible item has a cap.
        """
        changes = bisect_right(self._highs, position)
        version = self._catalogue.rules.version_after(changes)
        offered, mask = self._offered[changes], row.context.eligible
        allowed = offered & eligible_mask(mask, len(offered)) if mask else offered
        if allowed[self._capped[changes]].any():
            return None
        pinned = allowed & self._pinned[changes]
        eligible = np.flatnonzero(pinned if pinned.any() else allowed)
        of_rows = {int(one): self._number(int(one), version) for one in np.flatnonzero(offered)}
        among = mask_of([of_rows[int(one)] for one in eligible])
        answer = row.answer._replace(arm=self._number(row.answer.arm, version))
        shown = self._number(row.shown, version)
        features = row.context.features
        if self._item_numbers is not None:
            given = np.reshape(features[_NUMBERS], (-1, self._item_numbers))
            by_item = np.zeros((len(self.ids), self._item_numbers))
            by_item[list(of_rows.values())] = given[list(of_rows)]
            features = {_NUMBERS: by_item.ravel().tolist()}
        return Row(row.context._replace(eligible=among, features=features), answer, shown, row.reward)

    def _number(self, row: int, version: int) -> int:
        return self._numbers[self._catalogue.of_row(row, version).item]


def _omitted(answer: Answer, context: Context | None, feedback: _Feedback, last_ms: int) -> str | None:
    """Why a decision is left out; None if it gets a row."""
    if answer.policy != "model":
        return f"answered as {answer.policy}"
    if context is None:
        return "context not in the log"
    if feedback.shown == NOT_SHOWN:
        return "never shown"
    if feedback.shown != answer.arm:
        return "another arm on screen"
    return "reward could still come" if context.time_ms > last_ms else None


def _contexts(
    part: PartitionCopy, topic: str, partition: int, rules: ContextRules, numbers: dict[str, int]
) -> dict[str, Context]:
    """The first context of each event, by event id."""
    decoded = decode_checked(InputSlice(topic, partition, part.low, part.high, tuple(part.records)), rules)
    columns = decoded.columns
    found: dict[str, Context] = {}
    for row, event_id in enumerate(columns.event_ids):
        if row not in decoded.refused and event_id not in found:
            user = numbers.setdefault(columns.users[row], len(numbers))
            found[event_id] = Context(
                user, columns.timestamps_ms[row], _features(rules, columns.contexts[row]), columns.eligible[row]
            )
    return found


def _features(rules: ContextRules, context: NDArray[Any]) -> Mapping[str, Any]:
    """The values of a context (d,) by feature."""
    if rules.features is None:
        return {_NUMBERS: context.astype(np.float64).tolist()}
    (row,) = rules.features.read(context.tobytes())
    return rules.features.values(row)


def _feedback(part: PartitionCopy, contexts: Mapping[str, Context], wait_ms: int) -> dict[str, _Feedback]:
    """The feedback on each event that came within ``wait_ms``; the first record of each kind counts."""
    columns = gather_feedback(part.records)
    found: dict[str, _Feedback] = {}
    rewarded: set[str] = set()
    for row, event_id in enumerate(columns.event_ids):
        context = contexts.get(event_id)
        if context is None or columns.timestamps_ms[row] > context.time_ms + wait_ms or columns.kinds[row] == HARM:
            continue
        before = found.get(event_id, _Feedback())
        shown = columns.arms[row] if before.shown == NOT_SHOWN else before.shown
        if columns.kinds[row] == REWARD and event_id not in rewarded:
            rewarded.add(event_id)
            found[event_id] = _Feedback(shown, columns.rewards[row])
        else:
            found[event_id] = before._replace(shown=shown)
    return found


def _answers(part: PartitionCopy) -> Iterator[tuple[Answer, int]]:
    """Yield each answer, with the offset up to which its learner had read the catalogue."""
    reader = DecisionReader()
    for record in part.records:
        for head, answers in reader.read(record.offset, record.value):
            yield from ((answer, items_read(head)) for answer in answers)


def _wait_ms(system: System) -> int:
    """How long a reward can count: the attribution window, or twice the settle span if that is longer."""
    config = system.config
    window = float(getattr(getattr(config, "feedback", None), "attribution_window_seconds", 0.0))
    return round(1000 * max(window, 2 * float(getattr(config, "settle_seconds", 0.0))))


def _owned(path: Path) -> int:
    """Create a file that only its owner can read."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
