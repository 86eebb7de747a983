"""The aggregator role: a version for each round that ended, and what is asked for next, from releases alone."""

from __future__ import annotations

import numpy as np
import pytest

from hushstream.engine.records import ReplayMismatch
from hushstream.schemas import codec
from hushstream.systems.bgt.records import parse_model


@pytest.fixture(scope="module")
def played(films):
    return films.all_rounds(films.make_system(noise="exact"), users=60)


def test_each_round_gives_a_version_and_the_next_round(films, played):
    rater, collector, server = played
    versions = server.seen.journals
    assert [record["version"] for record in versions] == [1, 2, 3]
    assert [record["next_kind"] for record in versions] == ["pairs", "factors", "none"]
    rounds = [codec.decode(output.value)[1] for output in server.seen.releases("rounds")]
    assert [one["number"] for one in rounds] == [1, 2, 3]
    assert [one["kept"] for one in rounds] == [0, films.FACTORS, 0]
    assert len(collector.released()) == 3
    assert len(rater.slots()) == 180
    model = parse_model(versions[-1], server.system.config)
    assert model.factors.shape == (films.ITEMS, films.FACTORS)
    assert rater.machine.received.ended
    assert np.array_equal(rater.machine.received.model.factors, model.factors), "what is published is the model"


def test_a_journal_and_a_snapshot_lead_to_the_same_versions_and_rounds(played):
    _, _, server = played
    fresh = server.fresh()
    assert server.replayed(fresh).releases("rounds") == server.seen.releases("rounds")
    assert fresh.snapshot() == server.machine.snapshot()
    restored = server.fresh()
    restored.start(server.genesis)
    restored.restore(server.machine.snapshot())
    assert restored.snapshot() == server.machine.snapshot()
    assert np.array_equal(restored.server.model.factors, server.machine.server.model.factors)


def test_a_version_that_differs_by_a_rounding_stands_and_one_that_differs_by_more_does_not(played, monkeypatch):
    _, _, server = played
    eigh = np.linalg.eigh
    for off, stands in ((1e-13, True), (1e-4, False)):
        monkeypatch.setattr(np.linalg, "eigh", lambda matrix, off=off: (eigh(matrix)[0] * (1 + off), eigh(matrix)[1]))
        if stands:
            found = server.replayed(server.fresh()).releases("rounds")
            assert found == server.seen.releases("rounds"), "what is announced follows from the journal"
        else:
            with pytest.raises(ReplayMismatch, match="another record"):
                server.replayed(server.fresh())


@pytest.mark.parametrize("lost", [1, 2])
def test_where_the_budget_refuses_a_round_the_model_of_the_first_stands_and_nothing_more_is_asked_for(films, lost):
    """Refused between B and C as well: B's factors are those of the most rated items alone."""
    rater, _, server = films.all_rounds(films.make_system(epsilon=20.0), users=60, lost=lost)
    versions = server.seen.journals
    assert [record["version"] for record in versions] == list(range(1, lost + 2))
    assert versions[-1]["next_kind"] == "none"
    assert versions[-1]["factors"] == b""
    assert versions[-1]["biases"] == versions[0]["biases"]
    assert rater.machine.received.ended
    assert len(rater.slots()) == 60 * (lost + 1), "nobody answers a round that is not asked for"
    assert rater.machine.ended_rounds == 3
    fresh = server.fresh()
    server.replayed(fresh)
    again = server.fresh()
    again.start(server.genesis)
    again.restore(server.machine.snapshot())
    assert fresh.snapshot() == again.snapshot() == server.machine.snapshot()


def test_releases_that_cannot_be_are_dead_letters_and_repeated_ones_count_once(films, played):
    _, collector, _ = played
    server = films.ModelRig(collector.system)
    release, phase_end, second, *_ = films.outputs_of(collector.seen, "releases")
    name, fields = codec.decode(release)
    fresh = {"release_id": bytes(16)}
    server.give([codec.encode(name, {**fields, **fresh, "sums": fields["sums"][8:]}), second, b"none"])
    assert server.seen.reasons[:2] == ["malformed_release", "malformed_release"]
    assert len(server.seen.reasons) == 3
    seen = server.give([release, release, codec.encode(name, {**fields, **fresh}), phase_end])
    assert seen.counts["repeated_release"] == 1
    assert seen.reasons == ["malformed_release"], "one release of each round"
    assert [record["version"] for record in seen.journals] == [1]
