"""Erasing a user of a collaborative deployment: deletion request, export, and `verify` of each role."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import numpy as np
import pytest

from hushstream.agents.worker.deployment import KeySource
from hushstream.agents.worker.roles import all_machines
from hushstream.ops.check.findings import Status
from hushstream.ops.check.verify import verify, verify_export
from hushstream.ops.export import export_copy, open_export
from hushstream.ops.forget import ERASED, Forgotten, erase_export, forget_async, what_waits
from hushstream.ops.log_copy import LogCopy, PartitionCopy
from hushstream.replay.runners.direct import DirectDriver, DirectEventLog, MemoryLog
from hushstream.schemas import codec
from hushstream.systems.colin.system import declare

CANARY = "ann-canary"
USERS = (CANARY, "bob")
KEYS = KeySource(seed=7)
MODES = ("server", "learner", "noisy")
RELEASES = {
    "server": {},
    "learner": {"noise_at": "learner"},
    "noisy": {"noise_at": "learner", "mechanism": "noisy-reward"},
}


class Played:
    """A direct deployment in which two users had rounds, each shown and rewarded, and each ended by a phase end."""

    def __init__(self, related: Any, mode: str) -> None:
        graph = related.make_graph(USERS, [(*USERS, 1.0)])
        release = {**related.DEFAULTS["release"], "rows": 2, **RELEASES[mode]}
        self.system = declare(related.make_system(graph, release=release))
        self.log = MemoryLog()
        self.driver = DirectDriver(self.log, all_machines(self.system, KEYS), os.urandom(32))
        self._features = related.some_features
        self._rounds = 0

    def put(self, topic: str, name: str, **fields: Any) -> None:
        self.log.append(topic, 0, codec.encode(name, fields))
        self.driver.pump()

    def round(self, users: tuple[str, ...] = USERS) -> None:
        self._rounds += 1
        for user in users:
            event_id = f"{user[0]}{self._rounds}"
            context = self._features(self._rounds).tobytes()
            self.put("contexts", "Context", event_id=event_id, user=user, context=context)
            (*_, last) = self.log.slice("decisions", 0, 0).records
            (arm,) = np.frombuffer(codec.decode(last.value)[1]["arms"], "<i4").tolist()
            for kind in ("shown", "reward"):
                self.put("clicks", "Feedback", kind=kind, event_id=event_id, user=user, arm=arm, reward=1.0)
        self.put("contexts", "Seal", phase=self._rounds, origin=-1, config_digest=bytes(16), after_click=-1)

    def forget(self) -> Forgotten:
        return asyncio.run(forget_async(DirectEventLog(self.log, self.driver, 1), self.system, CANARY, 5.0))

    def values(self, topic: str) -> list[bytes]:
        return [record.value for record in self.log.slice(topic, 0, 0).records]


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def played(related: Any, mode: str) -> Played:
    """Three rounds before the deletion request, and two after it."""
    played = Played(related, mode)
    for _ in range(3):
        played.round()
    return played


def test_the_deletion_reaches_whoever_holds_their_rewards_and_what_stays_and_waits_is_said(played, mode):
    done = played.forget()
    counts = [step.counts["forgotten"] for step in played.driver.steps if step.counts.get("forgotten")]
    assert counts == ([1, 1] if mode == "server" else [1])
    assert done.folded
    text = done.as_text()
    assert CANARY not in text
    for said in ("no release names them again", "relation graph", "no allowance is refilled", "contexts: 7 days"):
        assert said in text
    assert ("rewards: 7 days" in text) is (mode == "server")
    assert ("the counter until it has read" in text) is (mode == "server")


def test_on_public_data_without_noise_nothing_is_said_of_a_guarantee(related):
    system = declare(related.make_system(release={"mechanism": "exact"}, public_dataset=True))
    assert "without noise, as the deployment is on public data" in system.erasure.stays[0]
    assert "guarantee" not in " ".join((*system.erasure.stays, *what_waits(system)))


def test_their_name_leaves_the_edge_for_no_topic(played):
    played.forget()
    played.round()
    beyond = [value for (topic, _), records in played.log.partitions() if topic not in ("contexts", "clicks")
              for value in (record.value for record in records)]  # fmt: skip
    assert beyond
    assert not any(CANARY.encode() in value for value in beyond)


def test_verify_finds_logs_with_an_erasure_in_them_equal(played):
    played.forget()
    played.round()
    found = verify(LogCopy.of(played.log), played.system, KEYS)
    assert found.ok
    assert not found.findings


def test_verify_says_of_an_erased_export_that_it_is_erased_and_not_changed(played, mode, tmp_path):
    played.forget()
    played.round()
    export_copy(LogCopy.of(played.log), played.system, tmp_path / "copy")
    # Of three rounds before the deletion request their context, two clicks, and where it travels their reward.
    assert erase_export(tmp_path / "copy", played.system, CANARY) == 3 * (4 if mode == "server" else 3)
    logs = open_export(tmp_path / "copy")
    assert [record.value == ERASED for record in logs.part(("contexts", 0)).records] == 3 * [True, False, False] + 4 * [
        False
    ]
    for role in played.system.role_names:
        found = verify_export(tmp_path / "copy", played.system, KEYS, (role,))
        assert found.ok, found.as_text()
        assert (found.totals[Status.ERASED] > 0) is (role != "aggregator"), role


def test_rewards_taken_out_without_an_erasure_after_them_are_a_change(related):
    played = Played(related, "server")
    for _ in range(3):
        played.round()
    copy = LogCopy.of(played.log)
    part = copy.part(("rewards", 0))
    records = [part.records[0]._replace(value=ERASED), *part.records[1:]]
    cut = LogCopy({**copy.parts, ("rewards", 0): PartitionCopy(part.low, part.high, records)})
    found = verify(cut, played.system, KEYS, ("counter",))
    assert found.totals[Status.CHANGED] > 0
    assert not found.totals[Status.ERASED]
    assert "no deletion request says why" in str(found.findings[0])
