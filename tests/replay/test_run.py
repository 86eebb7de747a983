"""One function plays every system: what it takes, what it refuses, and that its measures have one form."""

from __future__ import annotations

import pytest

from hushstream.replay.measures import environment, throughput
from hushstream.replay.run import option_names, options_of, run_with
from hushstream.replay.studies.colin.report import CollaborativeResult
from hushstream.replay.studies.p2b.report.results import RunResult
from hushstream.replay.study import studies
from hushstream.schemas.errors import HushstreamError

RELATED = {"users": 3, "arms": 4, "dimension": 3, "pool": 20, "rounds": 2}


def test_one_function_plays_both_systems_and_tells_how_far_it_is():
    told = []
    found = run_with(
        options_of("colin", {"world": RELATED}), progress=lambda done, total, what: told.append((done, total))
    )
    assert isinstance(found, CollaborativeResult)
    assert (found.events, told[-1]) == (6, (6, 6))
    small = {"world": {"users": 10, "rounds": 2}, "config": {"encoder": {"codes": 4}}, "conditions": ("cold",)}
    personal = run_with(options_of("p2b", small))
    assert isinstance(personal, RunResult)
    assert personal.system == "p2b"
    assert set(personal.throughput) == set(found.throughput)
    assert personal.environment == found.environment == environment()


@pytest.mark.parametrize(
    ("system", "options", "says"),
    [
        ("foo", {}, "system: expected p2b or colin or pdap or pdol or bgt, got 'foo'"),
        ("colin", {"conditions": ("cold",)}, r"expected options of colin \(dataset, .*rounds.*\); got conditions"),
        ("p2b", {"rounds": 3, "colour": 1}, r"expected options of p2b \(.*\); got colour, rounds"),
    ],
)
def test_what_a_system_does_not_take_is_refused_by_name(system, options, says):
    with pytest.raises(HushstreamError, match=says):
        options_of(system, options)


def test_every_system_can_be_told_where_to_run_and_what_to_play():
    shared = {"dataset", "runner", "seed", "world", "config", "folder", "bootstrap", "security", "verify"}
    for system in studies():
        assert shared < set(option_names(system))


def test_what_an_application_tells_after_a_decision_is_an_event_beside_it():
    counts = {"decided": 9, "rewarded": 3, "shown": 5, "slot": 7}
    found = throughput(2.0, 10, [0.5, 1.5], counts, {"learner": 1_000_000})
    assert found == {
        "seconds": 2.0,
        "decisions": 10.0,
        "decisions_per_second": 5.0,
        "events_per_second": 9.0,
        "decision_seconds_p50": 1.0,
        "decision_seconds_p99": pytest.approx(1.49),
        "peak_memory_bytes_learner": 1_000_000.0,
    }
    assert throughput(2.0, 10, [1.0], {}, {})["events_per_second"] == 5.0
