"""The first and second form of equality, for each way of releasing.

Second form: a closed loop on the direct runner and on the stream gives the same, offsets aside. There are two
learner and two shuffler partitions: windows reach the aggregator in either order, so windows are compared by
their window id, and of each model track the last version, which holds them all.

First form: what a live stream published is recomputed from its logs, role by role.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from two_runners import decisions, decoded, require_recomputed, with_records

from hushstream.agents.worker.deployment import KeySource
from hushstream.agents.worker.roles import all_machines
from hushstream.ops.check.verify import verify, verify_export
from hushstream.ops.export import export_copy, open_export
from hushstream.ops.log_copy import LogCopy
from hushstream.replay.runners.direct import DirectDriver, MemoryLog

pytestmark = [pytest.mark.slow, pytest.mark.process(keep=["slot-sums"])]


def last_models(recording: Any) -> dict[str, dict[str, Any]]:
    names = ("version", "gram", "moment", "observations", "epsilon_micro", "delta_units", "digest")
    models = decoded(recording, "models", "Model")
    return {model["line"]: {name: model[name] for name in names} for model in models}


def test_every_user_gets_the_same_decisions_and_rewards(run):
    assert len(run.equal_decisions()) == run.direct.played.decisions
    for condition, chosen in run.direct.played.chosen.items():
        np.testing.assert_array_equal(chosen, run.stream.played.chosen[condition])
        np.testing.assert_array_equal(run.direct.played.rewards[condition], run.stream.played.rewards[condition])


def test_warm_users_started_from_the_complete_model_on_both_runners(run):
    for recording in (run.direct, run.stream):
        last = last_models(recording)
        versions: dict[str, set[int]] = {}
        for event_id, (*_, version) in decisions(recording).items():
            versions.setdefault(event_id.rpartition("-")[0], set()).add(version)
        assert versions == {
            "contributors": {0},
            "cold": {0},
            "warm_private": {last["private"]["version"]},
        }


def test_every_slot_holds_the_same_content(run):
    ours, theirs = (
        {fields["report_id"]: fields["content"] for fields in decoded(recording, "reports", "SlotReport")}
        for recording in (run.direct, run.stream)
    )
    assert ours == theirs
    assert len(ours) == len(run.direct.played.rewards["contributors"])
    assert {part for part, copy in run.stream.logs.of_topic("reports") if copy.records} == {0, 1}


def test_sums_and_their_debits_are_the_same_bytes(run):
    for topic, schema in (("window-sums", "WindowSums"), ("ledger", "LedgerEntry")):
        assert len(run.equal(topic, schema, ordered=False)) == 2, "one window of each shuffler"
    windows = list(decoded(run.direct, "window-sums", "WindowSums"))
    assert any(np.frombuffer(window["ones"] + window["zeros"], "<i8").any() for window in windows), (
        "something was released"
    )


def test_the_last_model_of_each_line_is_the_same_bytes(run):
    ours, theirs = last_models(run.direct), last_models(run.stream)
    assert ours == theirs
    assert set(ours) == {"private"}


# Recomputing.


def with_a_byte_changed(logs: LogCopy, source: tuple[str, int]) -> LogCopy:
    """The same logs, but for one byte in the last record of one partition."""
    part = logs.part(source)
    last = part.records[-1]
    bent = bytearray(last.value)
    bent[len(bent) // 2] ^= 1
    return with_records(logs, source, [*part.records[:-1], last._replace(value=bytes(bent))])


def test_a_live_stream_and_a_direct_run_verify(run, key_seed):
    require_recomputed(run.system, KeySource(seed=key_seed), run.direct, run.stream)


def is_mark(source: tuple[str, int]) -> bool:
    """Marks say when a worker sent what: nothing to compute again. A take-up refuses altered ones."""
    return source[0].startswith(("marks-", "state-"))


@pytest.mark.parametrize("run", ["slot-sums"], indirect=True)
def test_a_changed_byte_in_any_topic_of_a_live_stream_is_found(run, key_seed):
    sources = [source for source, part in run.stream.logs.parts.items() if part.records and not is_mark(source)]
    assert {topic for topic, _ in sources} >= {
        "contexts", "clicks", "decisions", "reports", "journal-shuffler", "window-sums", "ledger",
        "models",
    }  # fmt: skip
    for source in sources:
        found = verify(with_a_byte_changed(run.stream.logs, source), run.system, KeySource(seed=key_seed))
        assert found.exit_code == 1, source


def test_an_export_of_a_stream_played_again_by_the_direct_runner_gives_the_same_bytes(run, key_seed, tmp_path):
    export_copy(run.stream.logs, run.system, tmp_path / "export")
    assert verify_export(tmp_path / "export", run.system, KeySource(seed=key_seed)).exit_code == 0
    log = MemoryLog()
    for source, part in open_export(tmp_path / "export").parts.items():
        log.load(*source, list(part.records))
    before = {source: list(records) for source, records in log.partitions()}
    driver = DirectDriver(log, all_machines(run.system, KeySource(seed=key_seed)), bytes(32))
    driver.pump()  # follows the exported journals; whatever their inputs do not give again is refused
    assert {source: list(records) for source, records in log.partitions()} == before
    assert [step for step in driver.steps if step.journal is not None or step.releases] == []


def test_a_fresh_shuffler_over_the_reports_of_a_stream_writes_its_journal_and_releases_again(run, key_seed):
    """Windows are cut by the log, not by batches, so even without the journal the bytes are the same."""
    log = MemoryLog()
    for source, part in run.stream.logs.parts.items():
        if source[0] == "reports":
            log.load(*source, list(part.records))
    every = all_machines(run.system, KeySource(seed=key_seed))
    machines = [machine for machine in every if machine.journal[0] == "journal-shuffler"]
    DirectDriver(log, machines, bytes(32)).pump()
    for topic in ("journal-shuffler", "window-sums", "ledger"):
        ours = sorted(r.value for (name, _), records in log.partitions() if name == topic for r in records)
        assert ours == sorted(r.value for _, part in run.stream.logs.of_topic(topic) for r in part.records), topic
