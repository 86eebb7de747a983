"""The roles of colin, pdap, pdol and bgt, killed at each step of the protocol; `test_crash_sweep` does it to p2b's.

Third form of equality: disturbed and undisturbed runs fold the same frozen logs under the fixed schedule. Journals,
releases and the ledger must be equal byte for byte; of topics that are sent at least once a reader drops repeats.
"""

from __future__ import annotations

import asyncio
import signal
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frozen_logs import KEY_SEED

from hushstream.schemas import codec
from patience import Patience

pytestmark = [
    pytest.mark.slow,
    pytest.mark.process,
    pytest.mark.asyncio(loop_scope="session"),
]

MARKS = ("marking", "marked")
"""Steps of roles that note how far they have released; an aggregator holds no key, and notes nothing."""
STEPS = ("snapshot", "committed", *MARKS, "decoded", "folded", "journal_sent", "journal_acked", "released")
"""Those that come at intervals first: when they come, several batches more have been folded."""

Crash = tuple[str, int, int]
"""(step, home partition, least sequence number)."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A role over frozen logs.

    Attributes:
        role: its name.
        frozen: the logs.
        homes: home partitions.
        unit: records (a learner's: contexts) in a batch.
        written: topics that it writes beside its home's, with their partitions.
    """

    role: str
    frozen: Any
    homes: int
    unit: int
    written: Mapping[str, int] = field(default_factory=dict)


class Subject(ABC):
    """The roles of one system, each over its frozen logs."""

    def __init__(self, module: Any, harness: Any, real_roles: Any, kinds: Mapping[str, Kind]) -> None:
        self.kinds, self._module, self._harness, self._roles = kinds, module, harness, real_roles
        self._calm: Mapping[str, Any] = {}

    def deployed(self, bench: Any, kind: str, name: str, logs: Any = None, **settings: Any) -> Any:
        """Makes a `Deployment` of one kind of role over its frozen logs; ``logs`` may stand in their place."""
        of = self.kinds[kind]
        arguments = {"name": of.role, "folder": str(of.frozen.folder), "seed": KEY_SEED}
        return self._harness.Deployment(
            bench,
            f"{self._module.__name__.rpartition('.')[2]}-{kind.replace(' ', '-').partition('.')[0]}-{name}",
            f"{Path(self._roles.__file__)}:role",
            arguments,
            self._roles.role(**arguments),
            of.frozen.of(of.role) if logs is None else logs,
            of.homes,
            {"fixed_records": of.unit, **settings},
            of.written,
        )

    async def calm(self, bench: Any) -> Mapping[str, Any]:
        """What each kind of role leaves of the frozen logs when nothing happens to it."""

        async def left(kind: str) -> Any:
            async with self.deployed(bench, kind, "calm", **self._harness.CALM) as run:
                await run.finish()
                audit = await run.audit()
                assert audit.repeats == audit.off_chain == 0, kind
                await self.hold(kind, run, audit)
            return audit

        if not self._calm:
            self._calm = dict(zip(self.kinds, await asyncio.gather(*map(left, self.kinds)), strict=True))
        return self._calm

    def crashes(self, kind: str, audit: Any) -> Iterable[tuple[Mapping[str, Any], Sequence[Crash]]]:
        """Settings and crashes of each run: all partitions in turn, early in the journals.

        A worker goes on in all partitions until it is killed in one: late in the journals nothing would be left to do.
        """
        found = []
        steps = [step for step in STEPS if step not in MARKS or kind != "aggregator"]
        for n, step in enumerate(steps):
            home = n % len(audit.journals)
            last = len(audit.journals[home]) - 1
            found.append((step, home, 1 + last * n // (3 * len(steps))))
        return [({}, found)]

    @abstractmethod
    async def hold(self, kind: str, run: Any, audit: Any, fixed: bool = True) -> None:
        """Hold what a role left to the promises of its system; ``fixed`` says whether batches were cut alike."""


def sent(audit: Any, topic: str, schema: str) -> list[Mapping[str, Any]]:
    """The records of one schema on one topic."""
    found = [codec.decode(value) for (name, _), those in audit.releases.items() if name == topic for value in those]
    return [fields for name, fields in found if name == schema]


class Related(Subject):
    """Colin, with the noise at a trusted counter and at learners."""

    promises: Any

    async def hold(self, kind: str, run: Any, audit: Any, fixed: bool = True) -> None:
        await self.promises.check(self.kinds[kind].role, run, audit, self.kinds[kind].frozen)


VENDOR = "learner.vendor-0"


def names_in(records: list[Mapping[str, Any]]) -> Counter[bytes]:
    return Counter(fields["names"][at : at + 16] for fields in records for at in range(0, len(fields["names"]), 16))


class Vendors(Subject):
    """Pdap: a vendor's learner, the counter and the aggregator."""

    async def hold(self, kind: str, run: Any, audit: Any, fixed: bool = True) -> None:
        """Every event is decided once and leaves once; an outcome is in one block at most; all are paid for once.

        What a vendor said of its items is passed on, once.
        """
        frozen = self.kinds[kind].frozen
        passed_on = {VENDOR: "outcomes", "counter": "releases"}
        if kind in passed_on:
            changes = sent(audit, passed_on[kind], "ArmChange")
            arms = frozen.system.config.vendors[0].arms
            own = [(fields["arm"], fields["offered"]) for fields in changes if fields["arm"] < arms]
            assert sorted(own) == sorted([*((arm, True) for arm in range(arms)), (2, False), (4, False)])
        if kind == VENDOR:
            decided = Counter(
                event
                for journal in audit.journals.values()
                for value in journal[1:]
                for event in codec.decode(value)[1]["event_ids"]
            )
            visits = {f"visit:{event}" for event in np.flatnonzero(frozen.visits.arrivals.homes == 0)}
            # A learner that has not read its catalogue yet has nothing to show: such contexts are refused, and clients
            # ask again (`tests/client/test_answers_at_once.py`). Where all is merged by log time there is none.
            assert visits <= decided.keys() or (not fixed and visits & decided.keys())
            assert set(decided.values()) == {1}
            left = names_in(sent(audit, "outcomes", "Outcomes"))
            assert set(left.values()) == {1}
            # What was never shown, as probes are not, leaves nothing; nor does an event whose model came at another
            # time than when the log was made, so that another arm was decided than was shown.
            assert len(left) == len(visits) or (not fixed and 0 < len(left) < len(visits))
        elif kind == "counter":
            values = [codec.decode(value) for _, value in frozen.logs["outcomes", 0]]
            came = names_in([fields for name, fields in values if name == "Outcomes"])
            releases = sent(audit, "releases", "BlockRelease")
            assert len({fields["window"] for fields in releases}) == len(releases) > 20
            assert sum(fields["outcomes"] for fields in releases) == len(came)
            blocked = sum(int(np.frombuffer(fields["counts"], "<i8").sum()) for fields in releases)
            assert 0 < blocked <= len(came)
            (entry,) = sent(audit, "ledger", "LedgerEntry")
            assert entry["debit"]["epsilon_micro"] == 2_000_000


def require_all_answered(audit: Any, frozen: Any) -> None:
    """Every record is answered once."""
    answered: Counter[str] = Counter()
    for values in audit.journals.values():
        for value in values[1:]:
            fields = codec.decode(value)[1]
            answered.update(e for e, again in zip(fields["event_ids"], fields["repeated"], strict=True) if not again)
    assert answered == Counter({f"record-{place}": 1 for place in range(len(frozen.stream))})


class Records(Subject):
    """Pdol: nodes with and without learners of their own, and the aggregator."""

    async def hold(self, kind: str, run: Any, audit: Any, fixed: bool = True) -> None:
        """Every record is answered once; every domain pays once for all that it released."""
        if kind == "aggregator":
            return
        require_all_answered(audit, self.kinds[kind].frozen)
        released = sum(codec.decode(value)[1]["releases"] for of in audit.journals.values() for value in of[1:])
        assert len(sent(audit, "releases", "GradientSum")) == released > 0
        entries = [values for (topic, _), values in audit.releases.items() if topic == "ledger"]
        assert [len(values) for values in entries] == [1] * self.kinds[kind].homes


class Ratings(Subject):
    """Bgt: rater, collector and aggregator."""

    users: int

    def crashes(self, kind: str, audit: Any) -> Iterable[tuple[Mapping[str, Any], Sequence[Crash]]]:
        """Two runs: a collector's journal has three records, and each crash of a later step leaves one fewer."""
        marked = [] if kind == "aggregator" else [(step, 0, 1) for step in MARKS]
        early = [("snapshot", 0, 0), ("committed", 0, 0), ("decoded", 0, 1), ("folded", 0, 1), ("journal_sent", 0, 1)]
        return [
            ({"in_flight": 1}, [*early, *marked]),
            ({"in_flight": 1}, [("journal_acked", 0, 1), ("released", 0, 2)]),
        ]

    async def hold(self, kind: str, run: Any, audit: Any, fixed: bool = True) -> None:
        """Everybody sends one slot a round; a round is released once, and paid for once."""
        if kind == "rater":
            slots = sent(audit, "updates", "RatingSlot")
            assert len({slot["slot_id"] for slot in slots}) == len(slots) == 3 * self.users
        elif kind == "collector":
            assert sorted(one["round"] for one in sent(audit, "releases", "RatingSums")) == [0, 1, 2]
            assert len(sent(audit, "ledger", "LedgerEntry")) == 3
        else:
            assert sorted(one["number"] for one in sent(audit, "rounds", "RatingRound")) == [1, 2, 3]


@pytest.fixture(scope="session")
def made(
    harness: Any, real_roles: Any, related: Any, vendor_logs: Any, record_logs: Any, rating_logs: Any,
    related_promises: Any, tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], Subject]:  # fmt: skip
    """Makes the subject of one system."""

    def colin() -> Subject:
        server, edge = (related.freeze(tmp_path_factory.mktemp(at), at) for at in ("server", "learner"))
        written = {"rewards": 1, "releases": 1, "models": 1}
        kinds = {
            "learner": Kind("learner", server, 3, 10, written),
            "edge learner": Kind("learner", edge, 3, 10, written),
            "counter": Kind("counter", server, 1, 4),
            "aggregator": Kind("aggregator", server, 1, 1),
        }
        subject = Related(related, harness, real_roles, kinds)
        subject.promises = related_promises
        return subject

    def pdap() -> Subject:
        frozen = vendor_logs.freeze(tmp_path_factory.mktemp("vendors"))
        own = {"outcomes": 1, "forwards.vendor-1": 1, "models": 1, "items.vendor-0": 1}
        others = {role: Kind(role, frozen, 1, 1, {"releases": 1}) for role in ("counter", "aggregator")}
        return Vendors(vendor_logs, harness, real_roles, {VENDOR: Kind(VENDOR, frozen, 2, 3, own), **others})

    def pdol() -> Subject:
        frozen = record_logs.freeze(tmp_path_factory.mktemp("records"))
        own = record_logs.freeze(tmp_path_factory.mktemp("nodes"), "node")
        written = {"releases": 1, "models": 1}
        kinds = {
            "node": Kind("node", frozen, 3, 6, written),
            "node with a learner of its own": Kind("node", own, 3, 6, written),
            "aggregator": Kind("aggregator", frozen, 1, 1),
        }
        return Records(record_logs, harness, real_roles, kinds)

    def bgt() -> Subject:
        frozen = rating_logs.freeze(tmp_path_factory.mktemp("ratings"))
        kinds = {
            "rater": Kind("rater", frozen, 1, 5, {"updates": 1, "models": 1, "rounds": 1}),
            "collector": Kind("collector", frozen, 1, 4, {"releases": 1}),
            "aggregator": Kind("aggregator", frozen, 1, 1, {"rounds": 1}),
        }
        subject = Ratings(rating_logs, harness, real_roles, kinds)
        subject.users = rating_logs.USERS
        return subject

    found: dict[str, Subject] = {}
    ways = {"colin": colin, "pdap": pdap, "pdol": pdol, "bgt": bgt}
    return lambda name: found[name] if name in found else found.setdefault(name, ways[name]())


@pytest.fixture
def subject(made: Callable[[str], Subject], request: pytest.FixtureRequest) -> Subject:
    return made(request.param)


def of_systems(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("subject", names, indirect=True)


async def each(calls: Iterable[Any]) -> None:
    """Awaits all at the same time; the first failure ends the others."""
    async with asyncio.TaskGroup() as group:
        for call in calls:
            group.create_task(call)


@of_systems("colin", "pdap", "pdol", "bgt")
async def test_killed_at_each_step_and_restarted_a_role_leaves_the_bytes_of_an_undisturbed_run(bench, subject):
    calm = await subject.calm(bench)

    async def sweep(kind: str, number: int, settings: Mapping[str, Any], crashes: Sequence[Crash]) -> None:
        async with subject.deployed(bench, kind, f"killed-{number}", **settings) as run:
            await run.crash_sweep(crashes)
            audit = await run.audit()
            assert audit == calm[kind], kind
            assert audit.off_chain == 0, kind
            await subject.hold(kind, run, audit)

    await each(
        sweep(kind, number, *one) for kind in calm for number, one in enumerate(subject.crashes(kind, calm[kind]))
    )


WOKEN = {
    "colin": [*(("counter", stage) for stage in ("folded", "journal_sent", "journal_acked", "marking")),
              ("edge learner", "journal_sent")],
    "pdap": [(VENDOR, "journal_sent"), ("counter", "journal_sent")],
    "pdol": [("node", "journal_sent")],
}  # fmt: skip


@pytest.mark.parametrize(("subject", "woken"), WOKEN.items(), indirect=["subject"], ids=WOKEN)
async def test_an_owner_that_wakes_after_its_session_adds_no_second_content(bench, subject, woken):
    async def wake(kind: str, stage: str) -> None:
        async with subject.deployed(bench, kind, f"woken-{stage}", schedule="live") as run:
            run.pace_seconds = 0.02
            await run.outlived((stage, 0, 3), batches=(5, 7))
            audit = await run.audit()  # asserts that nothing off the chain was released
            await subject.hold(kind, run, audit, fixed=False)
        if isinstance(subject, Related) and kind == "counter":  # other journals say which batches were cut
            calm = await subject.calm(bench)
            assert (audit.journals, audit.releases) == (calm[kind].journals, calm[kind].releases)

    if isinstance(subject, Related):
        await subject.calm(bench)
    await each(wake(*one) for one in woken)


OLDER = [("colin", "counter"), ("colin", "edge learner"), ("pdap", VENDOR), ("pdap", "counter"), ("pdol", "node"),
         ("bgt", "rater"), ("bgt", "collector")]  # fmt: skip


@pytest.mark.parametrize(("subject", "kind"), OLDER, indirect=["subject"])
async def test_topics_older_than_what_was_released_are_refused_though_one_debit_may_have_paid_for_all(
    bench, subject, kind, tmp_path
):
    deployed = partial(subject.deployed, bench, kind, release_marks=str(tmp_path / "paid"))
    async with deployed("whole") as run:
        await run.finish()
        audit = await run.audit()
    if isinstance(subject, Related):
        assert len(audit.releases["ledger", 0]) == 1, "one debit pays for all"
    kept = {"deployment": run.values["deployment"], "role": run.values["role"]}
    older = deployed("older", **kept, datadir=str(tmp_path / "state"))
    older.copied_journals = {home: values[: 2 * len(values) // 3] for home, values in audit.journals.items()}
    async with older:
        before = await older.output_ends()
        worker = await older.start()
        assert await worker.exit_code() == 1
        assert "the topics are an older copy" in worker.log.read_text(encoding="utf-8")
        assert await older.output_ends() == before, "nothing is sent or drawn again"


# Rule 7, with a real worker.


def flipped(log: list[tuple[int, bytes]], least: int) -> tuple[int, list[tuple[int, bytes]]]:
    """The log with every reward of one record replaced by another: the first from an offset on."""
    offset = next(
        place
        for place, (_, value) in enumerate(log)
        if place >= least and value[:2] == b"\xc3\x01" and codec.decode(value)[0] == "Rewards"
    )
    time_ms, value = log[offset]
    name, fields = codec.decode(value)
    rewards = 1.0 - np.frombuffer(fields["rewards"], "<f8")
    changed = codec.encode(name, {**fields, "rewards": rewards.astype("<f8").tobytes()})
    return offset, [*log[:offset], (time_ms, changed), *log[offset + 1 :]]


async def values_until(run: Any, place: tuple[str, int], enough: Callable[[list[bytes]], bool]) -> list[bytes]:
    waiting = Patience(30)
    while True:
        values: list[bytes] = await run.values_of(place)
        if enough(values):
            return values
        assert not waiting.over, f"{place}: {len(values)} values and not what was waited for"
        await asyncio.sleep(0.1)


def decoded(values: list[bytes]) -> list[dict[str, Any]]:
    return [dict(codec.decode(value)[1]) for value in values]


@of_systems("colin")
async def test_a_counter_whose_inputs_changed_while_it_was_down_sends_nothing_twice_and_pays_for_a_new_epoch(
    bench, subject
):
    frozen = subject.kinds["counter"].frozen
    whole = frozen.logs["rewards", 0]
    async with subject.deployed(bench, "counter", "before") as run:
        run.pace_seconds = 0.01
        worker = await run.start(("journal_acked", 0, 20))
        assert await worker.exit_code() == -signal.SIGKILL
        journal = await run.values_of(("journal-counter", 0))
        released = await run.values_of(("releases", 0))
    records = decoded(journal[1:])
    high = records[-1]["head"]["inputs"][0]["high"]
    offset, log = flipped(whole[:high], high // 2)
    first_changed = next(n for n, r in enumerate(records) if r["head"]["inputs"][0]["high"] > offset)
    assert 0 < first_changed < len(records) - 2

    run = subject.deployed(bench, "counter", "after", {("rewards", 0): log}, schedule="live")
    run.copied_journals = {0: journal}
    async with run:
        worker = await run.start()
        await worker.logged("a new epoch begins with the next release")
        await worker.logged(f"at journal record {len(records)} ")
        again = await run.values_of(("releases", 0))
        assert again == released[:first_changed], "what still follows from the log, with the same bytes, and no more"
        await run.append({("rewards", 0): whole[high:]})
        await values_until(run, ("releases", 0), lambda values: len(values) >= first_changed + 3)
        worker.kill(signal.SIGTERM)
        assert await worker.exit_code() == 0
        releases = decoded(await run.values_of(("releases", 0)))
        entries = decoded(await run.values_of(("ledger", 0)))
        followed = decoded((await run.values_of(("journal-counter", 0)))[len(journal) :])
        # Its own journal can be followed by the next worker, who sends nothing that is not there already.
        ends = await run.output_ends()
        heir = await run.start(datadir=str(run.settings.datadir) + "-other")
        await heir.logged(f"at journal record {len(records) + len(followed)} ")
        assert await run.output_ends() == ends
        heir.kill(signal.SIGTERM)
        assert await heir.exit_code() == 0
    fresh = releases[first_changed:]
    assert {release["epoch"] for release in fresh} == {1}
    assert [release["leaf"] for release in fresh] == [len(records) + 1 + n for n in range(len(fresh))]
    assert not {release["release_id"] for release in fresh} & {release["release_id"] for release in decoded(released)}
    price = round(1_000_000 * frozen.system.config.release.epsilon)
    assert [entry["debit"]["epsilon_micro"] for entry in entries] == [price, price]
    assert [entry["debit"]["scope"] for entry in entries] == ["epoch/0/0", "epoch/0/1/renewal/1"]
    assert followed[0]["debit"] == entries[1]["debit"]
    assert {record["debit"]["epsilon_micro"] for record in followed[1:]} == {0}
