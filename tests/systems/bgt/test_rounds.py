"""The server: which round follows which, and what its models are worth."""

from __future__ import annotations

import numpy as np
import pytest

from hushstream.systems.bgt.edge.ratings import Ratings
from hushstream.systems.bgt.edge.solving import fit, predict, solve
from hushstream.systems.bgt.errors import BadRelease
from hushstream.systems.bgt.rounds import Model, Release
from hushstream.systems.bgt.server.estimate import ItemSums, biases_of, joined
from hushstream.systems.bgt.server.rounds import Server

from .conftest import collector_of, config_of, ids, ratings, run_rounds, slots_of


def error(known: Ratings, later: Ratings, model: Model, config, features=None) -> float:
    features = np.zeros((config.items, 0)) if features is None else features
    found = predict(fit(known, model, features, config), later.owners, later.items, model, features, config)
    return float(np.sqrt(np.mean((found - later.values) ** 2)))


def alone(config) -> Model:
    return Model(np.zeros(config.items), np.zeros((config.items, 0)))


def test_factors_are_found_where_there_are_some_and_better_predictions_come_of_them() -> None:
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


def test_where_noise_hides_every_factor_the_last_round_asks_for_items_again() -> None:
    """40 users at epsilon 1: the largest eigenvalue is that of noise, 1.1 edges being 7 deviations away from it."""
    config = config_of(epsilon=1.0)
    known, later = ratings(config, 40, taste=0.0)
    server, asked = run_rounds(config, known)
    assert [one.kind for one in asked] == ["items", "pairs", "items"]
    assert not server.model.factors.shape[1]
    assert error(known, later, server.model, config) < error(known, later, alone(config), config) + 0.02


def test_without_noise_the_model_is_that_of_exact_sums() -> None:
    """One item in which everybody's residual is known: the bias comes out between prior and mean, near the mean."""
    config = config_of(noise="exact")
    known, _ = ratings(config, 400, taste=0.0)
    server, _ = run_rounds(config, known)
    counts = np.bincount(known.items, minlength=config.items)
    mean = np.bincount(known.items, weights=known.values, minlength=config.items) / np.maximum(counts, 1)
    rated = counts > 50
    assert np.corrcoef(server.model.biases[rated], mean[rated])[0, 1] > 0.99


def test_two_releases_of_the_same_sums_count_by_their_precision() -> None:
    """The variance of what is joined is that of one release at both prices together, whatever the split."""
    draw = np.random.default_rng(0)
    one, other = 3.0, 1.0
    first, second = (ItemSums(*(scale * draw.standard_normal((2, 200_000))), scale) for scale in (one, other))
    found = joined(first, second)
    assert found.deviation == pytest.approx((1 / one**2 + 1 / other**2) ** -0.5)
    assert found.counts.std() == pytest.approx(found.deviation, rel=0.02)
    assert found.rest.std() == pytest.approx(found.deviation, rel=0.02)


def test_an_item_of_which_little_is_known_keeps_near_what_popularity_and_features_say() -> None:
    config = config_of(items=1000, features=1)
    draw = np.random.default_rng(0)
    counts, feature = draw.uniform(0, 200, 1000), draw.integers(0, 2, 1000).astype(float)
    truth = 0.1 * feature - 0.05
    found = biases_of(ItemSums(counts, counts * truth + draw.standard_normal(1000), 1.0), feature[:, None], config)
    rare = counts < 5
    assert np.abs(found.biases - truth)[rare].mean() < 0.02
    assert np.abs(found.biases - truth)[counts > 100].mean() < 0.02


def test_each_user_is_solved_as_if_alone() -> None:
    config = config_of()
    known, _ = ratings(config, 300)
    draw = np.random.default_rng(2)
    features, rest = draw.standard_normal((config.items, 4)), draw.standard_normal(len(known.items))
    found = solve(known, rest, features, 4.0, 0.3)
    for user in (0, 1, 127, 128, 299):
        span = slice(known.ends[user], known.ends[user + 1])
        columns = np.column_stack((np.ones(span.stop - span.start), features[known.items[span]]))
        alone = np.linalg.solve(columns.T @ columns + np.diag([4.0] + [0.3] * 4), columns.T @ rest[span])
        assert np.allclose(found[user], alone)


def test_who_rated_nothing_is_predicted_by_the_items_alone() -> None:
    config = config_of()
    nobody = Ratings(np.zeros(3, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0))
    model = Model(np.full(config.items, 0.1), np.ones((config.items, 2)))
    own = fit(nobody, model, np.zeros((config.items, 0)), config)
    assert not own.any()
    found = predict(own, np.array([1]), np.array([5]), model, np.zeros((config.items, 0)), config)
    assert found == pytest.approx(0.8)


def test_no_slots_at_all_and_counts_below_zero_still_make_a_model() -> None:
    config = config_of(epsilon=1.0)
    server = Server(config)
    while server.asked is not None:
        server.take(collector_of(server.asked, config).release())
    assert np.isfinite(server.model.biases).all()
    server = Server(config)
    server.take(Release(0, "items", 5, np.full((2, config.items), -(2**30), dtype=np.int64)))
    assert np.isfinite(server.model.biases).all()
    assert np.abs(server.model.biases).max() <= 0.4


def test_a_refused_round_leaves_the_model_of_the_rounds_before() -> None:
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


def test_a_release_of_another_round_is_refused() -> None:
    config = config_of()
    server = Server(config)
    with pytest.raises(BadRelease, match=r"expected round 0 \(items\), got round 1"):
        server.take(Release(1, "pairs", 0, np.zeros(190, dtype=np.int64)))
    with pytest.raises(BadRelease, match="features"):
        Server(config, np.full((config.items, 1), 1.0))


def test_the_model_is_the_same_whichever_sign_the_library_gives_eigenvectors(monkeypatch) -> None:
    config = config_of(epsilon=10.0)
    known, _ = ratings(config, 600)
    plain, _ = run_rounds(config, known)
    eigh = np.linalg.eigh
    monkeypatch.setattr(np.linalg, "eigh", lambda matrix: (eigh(matrix)[0], -eigh(matrix)[1]))
    other, _ = run_rounds(config, known)
    assert (plain.model.factors == other.model.factors).all()
