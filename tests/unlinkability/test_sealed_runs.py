"""Sealed slots end to end: both runners, verify, and a worker that is killed."""

from __future__ import annotations

from typing import Any

import pytest

from hushstream.ops.check.verify import verify
from hushstream.replay.run import options_of, run_with
from hushstream.schemas import codec

pytestmark = pytest.mark.slow

OPTIONS: dict[str, Any] = {"dataset": "synthetic", "seed": 3, "world": {"users": 30}}
CONFIG: dict[str, Any] = {
    "encoder": {"codes": 4},
    "partitions": {"learner": 2, "shuffler": 2},
    "privacy": {"epsilon": 20.0},
    "release": {"sums": "fresh"},
}
SEALED = {**CONFIG, "slot": {"sealed": True}}


@pytest.mark.process
def test_sealed_slots_give_the_same_sums_on_both_runners_and_all_that_was_published_follows():
    in_clear = run_with(options_of("p2b", {"runner": "direct", "config": CONFIG, **OPTIONS}))
    direct = run_with(options_of("p2b", {"runner": "direct", "config": SEALED, **OPTIONS}))
    stream = run_with(options_of("p2b", {"runner": "stream", "config": SEALED, **OPTIONS}))
    assert in_clear.counts["slot"] > 10
    private, own = (in_clear.rows[name] for name in ("shared private model", "own learning only"))
    assert private["mean_reward"] != own["mean_reward"], "the model has an effect"
    for sealed in (direct, stream):
        assert (sealed.rows, sealed.curve) == (in_clear.rows, in_clear.curve)
        assert sealed.verify is not None
        assert {check.status for check in sealed.verify.values()} == {"equal"}
    assert direct.config_digest == stream.config_digest != in_clear.config_digest


@pytest.mark.process
def test_a_worker_that_is_killed_seals_every_slot_to_the_same_bytes_again(deployed, raw, tmp_path):
    with deployed.embedded() as broker:
        left = deployed.worked(broker, tmp_path, raw.records, sealed=True, killed=True)
    values: dict[bytes, set[bytes]] = {}
    for record in raw.of_topic(left.logs, "reports"):
        assert codec.decode(record.value)[0] == "SealedSlot"
        values.setdefault(record.value[10:26], set()).add(record.value)
    assert values.keys() >= left.user_of.keys()
    assert {len(found) for found in values.values()} == {1}, "one content an id, whichever worker sent it"
    found = verify(left.copy, left.system, left.keys, ("learner",))
    assert found.exit_code == 0, found.as_text()
