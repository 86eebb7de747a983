"""Drafts a deployment: its items, the features of a visit, and sizes that suit the expected visits.

Its facts are stated by its owner, or found in a log. Values that were computed from rows are marked as private
(`hushstream.features.checks`), as in a draft of features alone. `hushstream prepare` refuses the draft until its
owner has confirmed each mark. An evaluation on the same log accepts it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, NamedTuple

import yaml

from hushstream.agents.worker.deployment import parse_config
from hushstream.engine.declare.artefacts import Artefacts
from hushstream.engine.declare.plan import Audience, Plan
from hushstream.features.checks import FROM_ROWS, without_marks
from hushstream.privacy.amounts import count_text
from hushstream.replay.logged.drafts.features import NOTES_ON_MARKS, draft_features
from hushstream.replay.logged.drafts.mapping import MEANT, Columns, arms_in, delimiter_of, first_of, flow_yaml
from hushstream.replay.logged.log import LogError
from hushstream.replay.logged.mapping import TableMapping
from hushstream.replay.logged.table import Source, columns_in, read_chunks
from hushstream.replay.logged.values import id_of, marks_nothing, users
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.catalogue import kind_of

_ROOM = 2
"""The drafted capacity, as a multiple of the items there are: room costs memory alone, as the sums are sized for those
that are expected."""

_LEAST_ITEMS = 2
_MOST_INTERACTIONS = 10
WINDOWS = (12, 4, 2)
"""Numbers of windows for the expected slots. More of them update the model more often, and each adds noise. A window of
all slots would never close if one user fewer came, and teach nobody if all did."""

_CONTROLS = (0.1, 0.2)
_EXPLORED = 0.05
_EPSILON, _LIFT_EPSILON = 1.0, 0.5
_WAIT = 1800
_MOST_USERS = 10_000_000
_MONTHS, _MOST_TAGS = 12, 3


UNMEASURED = (
    "whether so few visits teach a model that beats users' own learning depends on effects that are not measured yet; "
    "`hushstream evaluate` measures them on the log, and its verdict counts"
)
"""What is said of a log in place of `TooFew`, as assumed effects would contradict those that its evaluation finds."""


class TooFew(HushstreamError):
    """By its forecast it may not beat users' own learning, or hardly the best single item.

    Attributes:
        flag: the flag, and the value that would do in place of the one stated; empty: none is known.
    """

    def __init__(self, message: str, flag: Mapping[str, str]) -> None:
        super().__init__(message)
        self.flag = flag


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """What a deployment is drafted for, in public numbers or in those of a log.

    Attributes:
        name: of the deployment; letters that a name may not have are replaced.
        items: number of items today.
        named: whether items have ids of their own; else they are 0, 1, 2 and so on.
        features: the YAML lines of the features of a visit.
        users: number of users that the deployment is sized for.
        visits: visits that most of them make.
        rate: share of visits that are rewarded; None: not known.
        levels: reward levels above 0.
        marks: whether figures were taken from rows, and are marked so.
        windows: number of windows for these users.
        control: share of users in each of two groups without the shared model; 0: nothing is measured.
        enough: whether its users are enough by the forecast.
        needed: number of users who begin with a model that a measurement of its gain takes.
    """

    name: str
    items: int
    features: Sequence[str]
    users: int
    visits: int
    rate: float | None = None
    named: bool = True
    levels: int = 1
    marks: bool = False
    windows: int = WINDOWS[1]
    control: float = _CONTROLS[0]
    enough: bool = True
    needed: int = 0

    @property
    def slots(self) -> int:
        """The users rounded to two digits: more would feign to know how many come."""
        unit: int = 10 ** max(0, len(str(self.users)) - 2)
        return max(1, round(self.users / unit) * unit)

    @property
    def window(self) -> int:
        """The slots of a window."""
        return max(1, self.slots // self.windows)

    def text(self, confirmed: bool = False) -> str:
        """The deployment.yaml, with comments; without marks where its owner has confirmed that all is public."""
        lines = self._lines()
        if confirmed:
            lines = (line for line in lines if not line.lstrip().startswith(NOTES_ON_MARKS))
        return "\n".join(lines) + "\n"

    def _lines(self) -> Iterator[str]:
        yield f"deployment: {flow_yaml(_name(self.name))}"
        named = ", named: true" if self.named else ""
        most = "capacity: the most at a time, fixed for its life; each place gets noise"
        yield f"items: {{capacity: {self._capacity()}{named}, expected: {max(self.items, _LEAST_ITEMS)}}}   # {most}"
        yield from self.features
        yield f"expected_slots: {self.slots}   # about so many users, one report each, in its whole life; more may come"
        yield from self._mark("", "expected_slots")
        yield "slot:"
        yield f"  after_interactions: {min(_MOST_INTERACTIONS, self.visits)}   # as many visits as most users make"
        yield from self._mark("  ", "after_interactions")
        yield f"privacy: {{epsilon: {_EPSILON}}}   # a report's cost: zero-out; replace-one is 2x; smaller: more noise"
        yield "release:"
        yield "  mechanism: slot-sums"
        yield f"  window_units: {self.window}   # a model comes after so many reports"
        yield from self._mark("  ", "window_units")
        yield "feedback:"
        yield f"  attribution_window_seconds: {_WAIT}   # a visit that gets no reward within this time counts as 0"
        yield f"  settle_seconds: {2 * _WAIT}   # a report leaves so long after its last visit; at least the time above"
        found = []
        if self.levels > 1:
            found.append("reward_levels")
            yield f"  reward_levels: {self.levels}   # rewards are rounded down to so many steps"
        if self.rate is not None:
            found.append("click_rate")
            yield f"  click_rate: {self.rate}   # share of visits that are rewarded, by however little"
        if found:
            yield from self._mark("  ", ", ".join(found))
        yield f"exploration: {{choice: epsilon, share: {_EXPLORED}}}   # its own log can judge other policies later"
        if self.control:
            yield "# Users without the shared model, to compare with: `hushstream lift`. A change of features ends it:"
            yield "# delete this line for `hushstream up --next`."
            yield f"measurement: {{baseline: {self.control}, own: {self.control}, epsilon: {_LIFT_EPSILON}}}"
        else:
            why = f"it takes {self.needed:,} users who begin with a model to show the gain that is forecast"
            yield f"# measurement: left out; {why if self.enough else 'first evaluate whether there is a gain'}"
        yield "partitions: {learner: 1, shuffler: 1}"

    def _mark(self, before: str, setting: str) -> Iterator[str]:
        if self.marks:
            yield f"{before}{FROM_ROWS}: [{setting}]"

    def _capacity(self) -> int:
        """The drafted ``items.capacity``.

        Numbered items cannot be added later, so they need no room for more: it would be filled with items that do not
        exist.
        """
        return max(_LEAST_ITEMS, _ROOM * self.items if self.named else self.items)


def fitted(shop: Shop) -> Shop:
    """The shop with windows and control groups that suit its number of users, by the forecast of `hushstream plan`.

    It takes the most windows that pay, and the smallest control groups with which `hushstream lift` can tell the gain
    that is forecast; none where it cannot.

    Raises:
        TooFew: there are no such windows, or a shop whose facts are stated would earn more with the best single item
            for everybody; the message says how many visits a month would do.
        HushstreamError: the command's own check refuses the draft.
    """
    one = next((found for windows in WINDOWS if _pays(found := replace(shop, windows=windows))), None)
    if one is not None:
        measured = [replace(one, control=share) for share in _CONTROLS]
        users: int = _facts(measured[-1])["needed"]
        return next((each for each in measured if _pays(each) and _tells(each)), replace(one, control=0, needed=users))
    would, flag = _remedy(shop)
    doubt = forecast(replace(shop, windows=WINDOWS[-1])).doubt
    raise TooFew(
        f"too few visits for this: with {shop.slots:,} users in its life, {count_text(shop.visits, 'visit')} of each, "
        f"a shared private model {doubt}, by the forecast of `hushstream plan`; {would}",
        flag,
    )


def _remedy(shop: Shop) -> tuple[str, Mapping[str, str]]:
    """What would do in place of an answer, in words, and as a flag with its value, if one is known."""
    needed, least = _enough(shop), replace(shop, windows=WINDOWS[-1])
    fewer = (shop.items >> halved for halved in range(1, shop.items.bit_length() - 1))
    items = next((few for few in fewer if _pays(replace(least, items=few))), None)
    others = "features that tell more of what a user likes" if items is None else f"{items} items (--items {items})"
    if needed is None:
        flag = {} if items is None else {"--items": f"{items}"}
        return f"and no number of visits would do: state {others}", flag
    visits = monthly(needed, shop.visits)
    return (
        f"here is what would work: {visits:,} visits a month (--visits {visits}), as they are {needed:,} users a year; "
        f"or {others}",
        {"--visits": f"{visits}"},
    )


def users_of(visits: int, each: int) -> int:
    """Number of users of a year with this number of visits a month, if each makes ``each`` visits."""
    return max(1, round(_MONTHS * visits / each))


def monthly(users: int, each: int) -> int:
    """Visits a month by this number of users a year."""
    return math.ceil(users * each / _MONTHS)


def _enough(shop: Shop) -> int | None:
    """Number of users with whom the fewest windows pay, at most a quarter too many; None: no number."""
    low, times = shop.users, 2
    while not _pays(replace(shop, users=shop.users * times, windows=WINDOWS[-1])):
        low, times = shop.users * times, times * 2
        if shop.users * times > _MOST_USERS:
            return None
    high = shop.users * times
    while high > 1.25 * low:
        middle = (low + high) // 2
        low, high = (low, middle) if _pays(replace(shop, users=middle, windows=WINDOWS[-1])) else (middle, high)
    unit: int = 10 ** max(0, len(str(high)) - 2)
    return math.ceil(high / unit) * unit


def audience_of(shop: Shop) -> Audience:
    """The people that a shop is sized for: they come within a year, each with as many visits as a slot takes."""
    return Audience.of_a_year(shop.slots, min(_MOST_INTERACTIONS, shop.visits))


def forecast(shop: Shop) -> Plan:
    """The plan of the drafted deployment, for `audience_of`."""
    config = _config(shop)
    kind = kind_of(config.system)
    assert kind.plan is not None, kind.name
    return kind.plan(config, Artefacts(shop.name, {}), audience_of(shop))


def _pays(shop: Shop) -> bool:
    """Whether it beats own learning and, where its facts are stated, the best single item; a log's are evaluated."""
    plan = forecast(shop)
    return plan.beats is True and (shop.marks or not plan.doubt)


def _tells(shop: Shop) -> bool:
    facts = _facts(shop)
    return bool(facts["detects"] <= facts["gain"])


def _facts(shop: Shop) -> Mapping[str, Any]:
    facts = forecast(shop).facts
    assert facts is not None
    return facts


def _config(shop: Shop) -> Any:
    config = parse_config(without_marks(yaml.safe_load(shop.text())), shop.name)
    kind_of(config.system).check(config)
    return config


def feature_lines(known: Sequence[str]) -> Iterator[str]:
    """The YAML lines of features as a person states them.

    Args:
        known: each as ``NAME=a,b,c`` (one of these), ``NAME=a|b`` (any of these), ``NAME=16..96`` (a number),
            ``NAME=clock``, ``NAME=weekday`` or ``NAME=yes/no``.

    Raises:
        HushstreamError: one is none of these, or none is stated.
    """
    if not known:
        raise HushstreamError("known: expected at least one feature of a visit, such as device=phone,laptop; got none")
    yield "features:   # known before an item is shown; the application tells them by name"
    for text in known:
        name, feature = stated(text)
        yield f"  {flow_yaml(name)}: {flow_yaml(feature).strip()}"


_SAID = {"clock": "time_of_day", "weekday": "day_of_week", "yes/no": "boolean"}
_SPAN = re.compile(r"(-?\d+(?:\.\d+)?)\.\.(-?\d+(?:\.\d+)?)")


def stated(text: str) -> tuple[str, dict[str, Any]]:
    """The name and the settings of one feature as `feature_lines` takes it.

    Raises:
        HushstreamError: it is none.
    """
    name, _, said = (part.strip() for part in text.partition("="))
    if said in _SAID:
        return name, {"kind": _SAID[said]}
    if span := _SPAN.fullmatch(said):
        low, high = map(float, span.groups())
        return name, {"kind": "number", "range": [int(end) if end.is_integer() else end for end in (low, high)]}
    separator = "|" if "|" in said else ","
    words = [word.strip() for word in said.split(separator) if word.strip()]
    if not name or len(words) < 2 or "=" in said:
        raise HushstreamError(
            f"known: expected one feature, as NAME=a,b,c (one of these), NAME=a|b|c (any of these), NAME=16..96, "
            f"NAME=clock, NAME=weekday or NAME=yes/no; got {text!r}"
        )
    tags = {"kind": "tags", "vocabulary": words, "most": min(len(words), _MOST_TAGS)}
    return name, tags if separator == "|" else {"kind": "category", "vocabulary": words}


def shop_of_log(path: Source, name: str, visits: int | None = None, mapping: TableMapping | None = None) -> Shop:
    """What a CSV, Parquet or JSON log or a query shows; its owner has to read the draft and confirm each mark.

    Args:
        path: path of the log, or a query.
        name: name of the deployment.
        visits: visits a month that are expected; None: the users of the log are all.
        mapping: what the columns mean; None: their names say it.

    Raises:
        LogError: the file cannot be read, or has no rows, no column with the arm shown, or no column that could be a
            feature.
    """
    features, size = draft_features(path, mapping), _size_of(path, mapping)
    named = not isinstance(size.items, int)
    return Shop(
        name=name,
        items=len(size.items) if isinstance(size.items, list) else size.items,
        named=named,
        features=tuple(features.of_features()),
        users=size.users if visits is None else users_of(visits, size.usual_rows),
        visits=size.usual_rows,
        rate=features.declaration.get("click_rate"),
        levels=features.declaration.get("reward_levels", 1),
        marks=True,
    )


class _Size(NamedTuple):
    """Sizes of a log: its users, the number of rows that three in four users have at least, and its items."""

    users: int
    usual_rows: int
    items: int | list[str]


def _size_of(path: Source, mapping: TableMapping | None) -> _Size:
    delimiter = delimiter_of(path) if mapping is None else mapping.delimiter
    there = columns_in(path, delimiter)
    meant = {key: first_of(there, MEANT[key]) for key in MEANT} if mapping is None else mapping.meanings
    user, arm = meant["user"], meant["arm"]
    if arm is None:
        # A first line without any usual name may be a row: its cells are values of somebody.
        got = ", ".join(there) if any(meant.values()) else "none that is known; is the first line a header?"
        raise LogError(
            f"{path}: expected a column of what was shown, such as {', '.join(MEANT['arm'][:3])}, got {got}; rename "
            "it, or say what the columns mean (--mapping FILE with arm, arms, reward)"
        )
    wanted = Columns(tuple(one for one in (user, arm) if one is not None), delimiter)
    rows_of, shown = Counter[str](), set[str]()
    for chunk in read_chunks(path, wanted):
        names = chunk.row_names
        who = names if user is None else users(chunk.columns[user], user, (str(path), names))
        rows_of.update(compress(who, [not marks_nothing(item) for item in chunk.columns[arm]]))
        shown.update(map(id_of, chunk.columns[arm]))
    counts = sorted(rows_of.values()) or [0]
    items = arms_in(list(shown)) if mapping is None else mapping.arms
    return _Size(len(counts), counts[len(counts) // 4], items if isinstance(items, int) else list(items))


def _name(name: str) -> str:
    """The name, changed to one that a deployment may have."""
    kept = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name.lower())
    return kept.strip("-")[:32].strip("-") or "shop"
