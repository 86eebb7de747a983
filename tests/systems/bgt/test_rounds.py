"""The server and its role: which round follows which, and what its models are worth."""

from __future__ import annotations

import numpy as np
import pytest

from hushstream.engine.records import ReplayMismatch
from hushstream.schemas import codec
from hushstream.systems.bgt.edge.agent import Ratings, fit, predict, ratings_of, solve
from hushstream.systems.bgt.records import BadRelease, Model, Release, parse_model
from hushstream.systems.bgt.server import ItemSums, Server, biases_of, joined

from .conftest import collector_of, config_of, ids, ratings, run_rounds, slots_of


def error(known: Ratings, later: Ratings, model: Model, config, features=None) -> float:
    features = np.zeros((config.items, 0)) if features is None else features
    found = predict(fit(known, model, features, config), later.owners, later.items, model, features, config)
    return float(np.sqrt(np.mean((found - later.values) ** 2)))


def alone(config) -> Model:
    return Model(np.zeros(config.items), np.zeros((config.items, 0)))


def test_factors_are_found_where_there_are_some_and_better_predictions_come_of_them():
    """600 users at epsilon 10: the eigenvalue is more than twice the edge, so noise does not decide."""
    config = config_of(epsilon=10.0)
    known, later = ratings(config, 600)
    server, asked = run_rounds(config, known)
    assert [one.kind for one in asked] == ["items", "pairs", "factors"]
    assert server.spectrum.largest[0] > 2 * server.spectrum.edge
    assert server.model.factors.shape[1]
    biases = Model(server.model.biases, np.zeros((config.items, 0)))
    by_alone, by_biases, by_all = (
        error(known, later, model, config) for model in (alone(config), biases, server.model)
    )
    assert by_biases < by_alone
    assert by_all < 0.9 * by_biases


def test_where_noise_hides_every_factor_the_last_round_asks_for_items_again():
    """40 users at epsilon 1: the largest eigenvalue is that of noise, 1.1 edges being 7 deviations away from it."""
    config = config_of(epsilon=1.0)
    known, later = ratings(config, 40, taste=0.0)
    errors = []
    for seed in range(1, 16):
        server, asked = run_rounds(config, known, seed)
        assert [one.kind for one in asked] == ["items", "pairs", "items"]
        assert not server.model.factors.shape[1]
        errors.append(error(known, later, server.model, config))
    # A single draw of so much noise may be a bad one (a third of them are); half of them are not.
    assert np.median(errors) < error(known, later, alone(config), config) + 0.02


def test_without_noise_the_model_is_that_of_exact_sums():
    """One item in which everybody's residual is known: the bias comes out between prior and mean, near the mean."""
    config = config_of(noise="exact")
    known, _ = ratings(config, 400, taste=0.0)
    server, _ = run_rounds(config, known)
    counts = np.bincount(known.items, minlength=config.items)
    mean = np.bincount(known.items, weights=known.values, minlength=config.items) / np.maximum(counts, 1)
    rated = counts > 50
    assert np.corrcoef(server.model.biases[rated], mean[rated])[0, 1] > 0.99


def test_two_releases_of_the_same_sums_count_by_their_precision():
    """The variance of what is joined is that of one release at both prices together, whatever the split."""
    draw = np.random.default_rng(0)
    one, other = 3.0, 1.0
    first, second = (ItemSums(*(scale * draw.standard_normal((2, 200_000))), scale) for scale in (one, other))
    found = joined(first, second)
    assert found.deviation == pytest.approx((1 / one**2 + 1 / other**2) ** -0.5)
    assert found.counts.std() == pytest.approx(found.deviation, rel=0.02)
    assert found.rest.std() == pytest.approx(found.deviation, rel=0.02)


def test_an_item_of_which_little_is_known_keeps_near_what_popularity_and_features_say():
    config = config_of(items=1000, features=1)
    draw = np.random.default_rng(0)
    counts, feature = draw.uniform(0, 200, 1000), draw.integers(0, 2, 1000).astype(float)
    truth = 0.1 * feature - 0.05
    found = biases_of(ItemSums(counts, counts * truth + draw.standard_normal(1000), 1.0), feature[:, None], config)
    rare = counts < 5
    assert np.abs(found.biases - truth)[rare].mean() < 0.02
    assert np.abs(found.biases - truth)[counts > 100].mean() < 0.02


@pytest.mark.parametrize("width", [0, 4])
def test_each_user_is_solved_as_if_alone_and_each_residual_is_that_of_a_fit_without_its_own_rating(width):
    config = config_of()
    known, _ = ratings(config, 300)
    draw = np.random.default_rng(2)
    features, rest = draw.standard_normal((config.items, width)), draw.standard_normal(len(known.items))
    columns, penalty = np.column_stack((np.ones(len(rest)), features[known.items])), np.diag([4.0] + [0.3] * width)
    found = solve(known, rest, features, 4.0, 0.3)
    for user in (0, 1, 127, 128, 299):
        rows = np.arange(known.ends[user], known.ends[user + 1])
        for row in (None, *rows[:3]):
            used = rows[rows != row]
            alone = np.linalg.solve(columns[used].T @ columns[used] + penalty, columns[used].T @ rest[used])
            if row is None:
                assert np.allclose(found.own[user], alone)
            else:
                assert found.left_out[row] == pytest.approx(rest[row] - columns[row] @ alone)


def test_who_rated_nothing_is_predicted_by_most_of_what_items_say():
    config = config_of()
    nobody = Ratings(np.zeros(3, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0))
    for biases, expected in (
        (np.full(config.items, 0.1), 0.7 + 0.8 * 0.1),
        (np.arange(config.items) / 100, 0.7 + 0.8 * 0.05),
    ):
        model = Model(biases, np.ones((config.items, 2)))
        own = fit(nobody, model, np.zeros((config.items, 0)), config)
        assert not any(fitted.any() for fitted in (own.local, own.shared))
        found = predict(own, np.array([1]), np.array([5]), model, np.zeros((config.items, 0)), config)
        assert found == pytest.approx(expected)


def test_a_model_of_noise_gets_little_weight_and_costs_little():
    """Biases that say nothing, as large as real ones, and 200 ratings of each user."""
    config = config_of(items=400)
    draw = np.random.default_rng(5)
    model, none = Model(draw.normal(0, 0.1, 400), np.zeros((400, 0))), np.zeros((400, 0))
    users, items, truth = np.repeat(np.arange(40), 200), np.tile(np.arange(200), 40), draw.uniform(0.3, 1, (2, 8000))
    own = fit(ratings_of(users, items, truth[0], config, 40), model, none, config)
    assert np.median(own.weight) < 0.2
    mixed, alone, released = (
        np.mean((predict(one, users, items + 200, model, none, config) - truth[1]) ** 2)
        for one in (own, own._replace(weight=np.zeros(40)), own._replace(weight=np.ones(40)))
    )
    assert mixed < alone + 0.1 * (released - alone)


def test_no_slots_at_all_and_counts_below_zero_still_make_a_model():
    config = config_of(epsilon=1.0)
    server = Server(config)
    while server.asked is not None:
        server.take(collector_of(server.asked, config).release())
    assert np.isfinite(server.model.biases).all()
    server = Server(config)
    server.take(Release(0, "items", 5, np.full((2, config.items), -(2**30), dtype=np.int64)))
    assert np.isfinite(server.model.biases).all()
    assert np.abs(server.model.biases).max() <= 0.4


def test_a_refused_round_leaves_the_model_of_the_rounds_before():
    config = config_of(epsilon=10.0)
    known, later = ratings(config, 600)
    server = Server(config)
    for _ in range(2):
        collector = collector_of(server.asked, config)
        collector.take(slots_of(known, server.asked, config), ids(600))
        server.take(collector.release())
    server.stop()
    assert server.asked is None
    assert error(known, later, server.model, config) < error(known, later, alone(config), config)


def test_a_release_of_another_round_is_refused():
    config = config_of()
    server = Server(config)
    with pytest.raises(BadRelease, match=r"expected round 0 \(items\), got round 1"):
        server.take(Release(1, "pairs", 0, np.zeros(190, dtype=np.int64)))
    with pytest.raises(BadRelease, match="features"):
        Server(config, np.full((config.items, 1), 1.0))


def test_the_model_is_the_same_whichever_sign_the_library_gives_eigenvectors(monkeypatch):
    config = config_of(epsilon=10.0)
    known, _ = ratings(config, 600)
    plain, _ = run_rounds(config, known)
    eigh = np.linalg.eigh
    monkeypatch.setattr(np.linalg, "eigh", lambda matrix: (eigh(matrix)[0], -eigh(matrix)[1]))
    other, _ = run_rounds(config, known)
    assert (plain.model.factors == other.model.factors).all()


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
