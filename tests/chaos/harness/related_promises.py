"""What must hold of a collaborative deployment after any fault, computed from the logs without its machines.

A reader drops repeats: a record whose bytes stand earlier in the same partition is no record. Everything here
looks at raw partitions, so a second content under one id cannot hide behind that rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hushstream.engine.records import InputRecord
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from textbook import TextbookCollaborative

Written = Mapping[Any, Sequence[InputRecord]]


async def check(role: str, run: Any, audit: Any, frozen: Any, epochs: int = 1) -> None:
    """Hold one run's topics to the promises of its role.

    Args:
        role: its name.
        run: the run.
        audit: what is on its topics.
        frozen: the inputs, and what is true of them.
        epochs: how many epochs of noise a counter has had, whether it released in the first or not.
    """
    written = await run.all_records(list(audit.releases))
    of_home = {home: run.make_machine(home).journal for home in audit.journals}
    records = await run.all_records(list(of_home.values()))
    journals = {home: records[journal] for home, journal in of_home.items()}
    if role == "counter":
        _counter(audit, frozen, written, journals, epochs)
    else:
        {"learner": _learner, "aggregator": _aggregator}[role](audit, frozen, written, journals)


def one_content(name: str, records: Sequence[InputRecord], id_field: str) -> dict[bytes, dict[str, Any]]:
    """The records of one schema by id; fails when an id stands for two contents."""
    contents: dict[bytes, bytes] = {}
    found: dict[bytes, dict[str, Any]] = {}
    for record in records:
        schema, fields = codec.decode(record.value)
        if schema == name:
            known = contents.setdefault(fields[id_field], record.value)
            assert known == record.value, f"two contents of {name} {fields[id_field].hex()}"
            found[fields[id_field]] = fields
    return found


def _learner(audit: Any, frozen: Any, written: Written, _: Any) -> None:
    rows = 0
    for partition, values in audit.journals.items():
        decided: Counter[str] = Counter()
        for value in values[1:]:
            fields = codec.decode(value)[1]
            rows += fields["slots"]
            decided.update(e for e, way in zip(fields["event_ids"], fields["policies"], strict=True) if way == 0)
        accepted = Counter(frozen.events[partition])
        told = f"missing {sorted(accepted - decided)}, more {sorted(decided - accepted)}"
        assert decided == accepted, f"partition {partition}: each accepted event is decided once, and no other: {told}"
        dead = written["dead-letters-edge", partition]
        refused = {(f["topic"], f["offset"], f["row"]) for f in (codec.decode(r.value)[1] for r in dead)}
        assert len(refused) >= frozen.dead[partition]
    trusted = frozen.system.config.release.noise_at == "server"
    topic, schema, name = ("rewards", "Rewards", "batch_id") if trusted else ("releases", "Release", "release_id")
    sent = one_content(schema, written[topic, 0], name)
    assert sum(len(fields["nodes"]) // 4 for fields in sent.values()) == rows > 0, "every row left once"
    if not trusted:
        _paid_once(audit, frozen, [r for (t, _), records in written.items() if t == "ledger" for r in records])


def _paid_once(audit: Any, frozen: Any, ledger: Sequence[InputRecord], epochs: Sequence[int] = (0,)) -> None:
    entries = one_content("LedgerEntry", ledger, "entry_id")
    scopes = sorted(entry["debit"]["scope"] for entry in entries.values())
    names = [f"epoch/{home}/{epoch}" for home in audit.journals for epoch in epochs]
    assert [scope.partition("/renewal/")[0] for scope in scopes] == names
    assert ["/renewal/" in scope for scope in scopes] == [not name.endswith("/0") for name in names]
    price = round(1_000_000 * frozen.system.config.release.epsilon)
    assert {entry["debit"]["epsilon_micro"] for entry in entries.values()} == {price}


def _counter(audit: Any, frozen: Any, written: Written, journals: Written, epochs: int) -> None:
    releases = one_content("Release", written["releases", 0], "release_id")
    met = sorted({fields["epoch"] for fields in releases.values()})
    assert met in (list(range(epochs)), list(range(1, epochs))), f"an epoch is opened where it was requested, got {met}"
    _paid_once(audit, frozen, written["ledger", 0], met)
    records = [codec.decode(value)[1] for value in audit.journals[0][1:]]
    assert [record["leaf"] for record in records] == list(range(1, len(records) + 1))
    assert sum(record["debit"]["epsilon_micro"] > 0 for record in records) == len(met)
    by_leaf = {fields["leaf"]: fields for fields in releases.values()}
    assert len(by_leaf) == len(releases) == len(records), "one release for each record"
    order = [by_leaf[record["leaf"]]["epoch"] for record in records]
    assert order == sorted(order), "an epoch that has ended stays so"
    counted: Counter[tuple[int, bytes]] = Counter()
    for record in records:
        fields = by_leaf[record["leaf"]]
        counted.update(_rows_of(fields))
        assert record["rows"] == len(fields["nodes"]) // 4
    high = records[-1]["head"]["inputs"][0]["high"]
    assert counted == _rows_that_count(frozen, high), "each accepted reward counts once"
    appended: dict[bytes, int] = {}
    for item in journals[0]:
        appended.setdefault(item.value, item.timestamp_ms)
    times = {codec.decode(value)[1]["leaf"]: appended[value] for value in audit.journals[0][1:]}
    for item in written["releases", 0]:
        assert item.timestamp_ms >= times[codec.decode(item.value)[1]["leaf"]], "no release before its debit"


def _rows_of(fields: Mapping[str, Any]) -> list[tuple[int, bytes]]:
    """(node, features) of each row."""
    nodes = np.frombuffer(fields["nodes"], "<i4").tolist()
    step = len(fields["contexts"]) // len(nodes)
    return [(node, fields["contexts"][step * row : step * (row + 1)]) for row, node in enumerate(nodes)]


def _rows_that_count(frozen: Any, high: int) -> Counter[tuple[int, bytes]]:
    """What counts of the frozen rewards below an offset, by this module's own reading of the rules."""
    counted: Counter[tuple[int, bytes]] = Counter()
    known: set[bytes] = set()
    taken: Counter[int] = Counter()
    for _, value in frozen.logs["rewards", 0][:high]:
        try:
            name, fields = codec.decode(value)
        except HushstreamError:
            continue
        if name != "Rewards" or fields["config_digest"] != frozen.system.digest or fields["batch_id"] in known:
            continue
        rewards, features = np.frombuffer(fields["rewards"], "<f8"), np.frombuffer(fields["contexts"], "<f4")
        lengths = np.linalg.norm(features.reshape(len(rewards), -1).astype(np.float64), axis=1)
        if rewards.max() > 1 or lengths.max() > 1 or max(n for n, _ in _rows_of(fields)) >= frozen.system.core.nodes:
            continue
        known.add(fields["batch_id"])
        for node, row in _rows_of(fields):
            if taken[node] < frozen.system.config.release.rewards_per_user:
                taken[node] += 1
                counted[node, row] += 1
    return counted


def _aggregator(audit: Any, frozen: Any, _: Written, __: Written) -> None:
    models = [codec.decode(value)[1] for value in audit.journals[0][1:]]
    assert [model["version"] for model in models] == list(range(1, len(models) + 1))
    system = frozen.system.core
    textbook = TextbookCollaborative(system.relation, system.features.dimension, system.ridge)
    moment = np.zeros((system.nodes, system.features.dimension))
    known: set[bytes] = set()
    for _, value in frozen.logs["releases", 0]:
        try:
            name, fields = codec.decode(value)
        except HushstreamError:
            continue
        if name != "Release" or fields["config_digest"] != system.digest or fields["release_id"] in known:
            continue
        blocks = np.frombuffer(fields["blocks"], "<i4")
        if len(fields["sums"]) != 8 * len(blocks) * system.features.dimension:
            continue
        known.add(fields["release_id"])
        for node, row in _rows_of(fields):
            textbook.observe(node, np.frombuffer(row, "<f4").astype(np.float64))
        moment[blocks] = np.frombuffer(fields["sums"], "<i8").reshape(len(blocks), -1) / 2.0 ** fields["grid_bits"]
    textbook.set_moment(moment)
    assert len(models) == len(known), "each release gives one version"
    ours = np.frombuffer(models[-1]["parameters"], "<f8").reshape(moment.shape)
    np.testing.assert_allclose(ours, textbook.parameters(), rtol=1e-7, atol=1e-9)
