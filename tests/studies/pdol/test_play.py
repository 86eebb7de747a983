"""Streams, and what is learned from them; figures of TMC2007 where its files are there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from hushstream.engine.configuration import LARGEST_EPSILON
from hushstream.engine.declare.plan import Audience
from hushstream.features.schema import declare
from hushstream.replay.catalogue import options_of, run_with
from hushstream.replay.datasets.store import DatasetError, locate
from hushstream.replay.logged.log import LogError
from hushstream.replay.studies.pdol.experiments import (
    as_printed,
    gossip_config,
    play_gossip,
    sharing_config,
    without_noise,
)
from hushstream.replay.studies.pdol.play import (
    TRIED,
    alone_labels,
    central_labels,
    judged,
    lead_of,
    open_domains,
    play,
    predicted_labels,
)
from hushstream.replay.studies.pdol.worlds import (
    RecordStream,
    clicks_of,
    deal,
    dense_synthetic,
    load_records,
    make_stream,
    ml_clicks,
    record_mapping,
    sparse_synthetic,
    tmc_binary,
)
from hushstream.replay.worlds.draws import Draws
from hushstream.replay.worlds.movielens import Ratings
from hushstream.replay.worlds.world import WorldError
from hushstream.systems.pdol.algorithm.aggregate import Aggregate
from hushstream.systems.pdol.algorithm.local import SHOWN, NodePredictors
from hushstream.systems.pdol.algorithm.moments import RIDGE
from hushstream.systems.pdol.algorithm.rows import predictions, scores, sums_by_row
from hushstream.systems.pdol.configuration import UNIT
from hushstream.systems.pdol.plan import LEAST_GAIN, plan, sharing_gain


def small(**options):
    return sparse_synthetic(**{"records": 1_600, "dimension": 60, "features": 10, "nodes": 4, **options})


def needs_tmc() -> None:
    try:
        locate("tmc2007")
    except DatasetError as error:
        pytest.skip(f"TMC2007 is not here: {error}")


def test_synthetic_records_are_as_they_are_said_to_be():
    stream = sparse_synthetic(records=4_000, dimension=500, features=30, nodes=8)
    assert (len(stream), stream.dimension, stream.refused) == (4_000, 501, 0)
    squares = sums_by_row(stream.rows.values**2, stream.rows.indptr)
    # Truncation takes at most two units of 2^-12 from each of at most 31 values.
    assert (squares <= UNIT**2).all()
    assert (squares >= (1 - 2 * 31 / UNIT) * UNIT**2).all()
    assert np.mean(stream.rows.labels == 1) == pytest.approx(0.5, abs=0.05)
    counts = np.bincount(stream.rows.indices, minlength=501)
    # Popularity 1 / (rank + 50): the first hundred features have their share, and every record has the constant.
    weights = 1 / (np.arange(500) + 50)
    assert counts[500] == 4_000
    assert counts[:100].sum() / counts[:500].sum() == pytest.approx(weights[:100].sum() / weights.sum(), abs=0.03)
    again, other = sparse_synthetic(records=70, seed=1), sparse_synthetic(records=70, seed=2)
    assert again.rows.indices.tolist() == sparse_synthetic(records=70, seed=1).rows.indices.tolist()
    assert again.rows.indices.tolist() != other.rows.indices.tolist()


def test_drift_turns_what_is_learned():
    streams = [small(drift=drift, records=6_000) for drift in (0.0, 4.0)]
    calm, turned = (judged(stream, central_labels(stream)) for stream in streams)
    assert calm.last > turned.last + 0.05


def test_a_plan_counts_no_more_records_of_a_person_than_a_node_does():
    """40 records of each person are worth one, where nodes count one; the plan had counted 40, and said 0.99."""
    config = sharing_config(dense_synthetic(records=1_600, dimension=8)[0], 2.0, node=True)
    one, many = (plan(config, Audience(2_000, visits, lead=0.1)) for visits in (1, 40))
    assert many.facts["expected_records"] == one.facts["expected_records"] == pytest.approx(2_000 / 16 * 365 / 30)
    three = replace(config, records=replace(config.records, records_per_user=3))
    assert plan(three, Audience(2_000, 40)).facts["expected_records"] > 2.8 * one.facts["expected_records"]


def test_a_plan_of_moments_has_their_size():
    """Nine features and the constant: 10 sums and 55 of their products, 8 bytes each; of gradients one number each."""
    few, many = (
        plan(sharing_config(dense_synthetic(records=1_600, dimension=wide)[0], 2.0), Audience(2_000, 1)).sizes["broker"]
        for wide in (9, 299)
    )
    assert few.startswith("a release has 0.52 kB, a model 0.52 kB")
    assert many.startswith("a release has 2.4 kB, a model 1.2 kB")


def test_where_labels_turn_a_lone_node_that_forgets_beats_nodes_alone_as_the_plan_says():
    """Labels turn round midway: .11 to .15 over four seeds, so nodes alone are not the best that a node could do."""
    stream = dense_synthetic(records=1_200, dimension=10, nodes=2, seed=0)[0]
    signed = stream.rows.labels * np.where(np.arange(1_200) < 600, 1, -1).astype(np.int8)
    turned = replace(stream, rows=replace(stream.rows, labels=signed))
    seen = np.zeros((1_200, stream.dimension))
    seen[np.repeat(np.arange(1_200), stream.rows.lengths), stream.rows.indices] = stream.rows.values / UNIT
    right = np.zeros(1_200, dtype=bool)
    for node in range(2):
        inverse, weights = np.eye(stream.dimension) / RIDGE, np.zeros(stream.dimension)
        for place in np.flatnonzero(stream.nodes == node):
            row, label = seen[place], signed[place]
            right[place] = (weights @ row >= 0) == (label > 0)
            moved = inverse @ row / (0.98 + row @ inverse @ row)
            weights += moved * (label - weights @ row)
            inverse = (inverse - np.outer(moved, row @ inverse)) / 0.98
    assert right.mean() > (alone_labels(turned) == signed).mean() + 0.05
    config = sharing_config(turned, 8.0, node=True)
    assert any("a lone learner that forgets" in one for one in plan(config, Audience(1_200, 1, 365.0)).assumed)


def test_records_are_dealt_evenly_or_as_zipf_says():
    even, zipf = deal(6_400, 64, "even", 0), deal(6_400, 64, "zipf", 0)
    assert set(np.bincount(even)) == {100}
    counts = np.bincount(zipf, minlength=64)
    assert counts.sum() == 6_400
    assert counts[0] == pytest.approx(64 * counts[63], rel=0.1)
    with pytest.raises(WorldError, match="even or zipf"):
        deal(10, 2, "odd", 0)  # type: ignore[arg-type]


def test_a_label_that_is_not_there_is_refused():
    needs_tmc()
    with pytest.raises(WorldError, match="label must be one of class01"):
        tmc_binary(label="class99")


def test_clicks_have_a_user_a_film_and_a_constant_and_users_stay_at_their_node():
    ratings = Ratings(
        np.array([0, 1, 0, 2]),
        np.array([0, 0, 1, 1]),
        np.array([5, 3, 4, 1]),
        np.array([3, 1, 2, 4]),
        np.ones((2, 1), bool),
        ("x",),
    )
    stream = clicks_of(ratings, 2, 4, seed=0)
    assert stream.rows.labels.tolist() == [-1, 1, 1, -1]
    assert stream.rows.indices.reshape(4, 3).tolist() == [[1, 3, 5], [0, 4, 5], [0, 3, 5], [2, 4, 5]]
    assert stream.nodes[1] == stream.nodes[2]
    assert stream.private_features == pytest.approx(1 / 3)


def test_the_loop_gives_what_the_stages_give_one_by_one():
    """Nothing of the loop's batching shows: the plain order of arrival, a record at a time, ends in the same model."""
    stream = small()
    config = sharing_config(stream, 4.0)
    first, again = (play(stream, config, 3) for _ in range(2))
    assert first == again
    domains, aggregate, right = open_domains(config, 3), Aggregate(config), 0
    for place in range(len(stream)):
        row, domain = stream.rows.part(place, place + 1), domains[int(stream.nodes[place])]
        model = aggregate.model.solved(stream.dimension).weights
        right += int(predictions(scores(row, model))[0] == row.labels[0])
        domain.fold(row, model)
        if not domain.capacity_left:
            aggregate.on_release(domain.release())
            if aggregate.due:
                aggregate.publish()
    assert first.released.whole == right / len(stream)
    assert first.versions == aggregate.model.version


def test_nodes_that_learn_for_themselves_side_by_side_learn_as_they_would_one_by_one():
    stream = small(records=400)
    config = sharing_config(stream, None, node=True)
    predictors, right = NodePredictors(4, stream.dimension), []
    coins = Draws(0, "guard").generator().random(len(stream))
    aggregate, domains = Aggregate(config), open_domains(config, 0)
    for place in range(len(stream)):
        row, node = stream.rows.part(place, place + 1), stream.nodes[place : place + 1]
        model = aggregate.model.solved(stream.dimension)
        right.append(predictors.step(node, row, model.weights, coins[place : place + 1])[0, SHOWN] == row.labels[0])
        domain = domains[int(node[0])]
        domain.fold(row, model.weights)
        if not domain.capacity_left:
            aggregate.on_release(domain.release())
            if aggregate.due:
                predictors.adopt(aggregate.publish().solved(stream.dimension))
    played = play(stream, config, 0)
    assert played.node is not None
    assert played.node.whole == pytest.approx(np.mean(right))


def test_without_noise_sharing_beats_nodes_apart_and_the_guard_follows_the_better():
    """A seeded run; the gap is 20 standard errors wide."""
    stream = small(records=8_000, dimension=600, features=20, nodes=16)
    config = sharing_config(stream, None, node=True)
    played = play(stream, config, 0)
    assert played.released.last > played.experts["alone"].last + 0.05
    assert played.node is not None
    assert played.node.last > played.experts["alone"].last + 0.03


def test_the_papers_form_learns_without_noise_and_not_at_a_small_epsilon():
    stream = small(records=3_200)
    config = gossip_config(stream, 0.1, graph="ring")
    plain, noised = play_gossip(stream, config, 0, without_noise), play_gossip(stream, config, 0, as_printed(config))
    assert plain.accuracy.last > 0.7
    assert noised.accuracy.last < 0.6
    assert noised.hinge > 10 * plain.hinge
    sparse = replace(config, lasso=2.0)
    assert play_gossip(stream, sparse, 0, without_noise).zeros > 0.2 > plain.zeros


@pytest.mark.slow_statistics
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_published_figures_of_tmc2007():
    """Bands are those of the published means; one key of three, so they are as wide again as its spread."""
    needs_tmc()
    stream = tmc_binary()
    assert (len(stream), stream.dimension) == (28_596, 501)
    assert stream.constant == pytest.approx(0.702, abs=1e-3)
    assert play(stream, sharing_config(stream, 1.0), 0).released.whole == pytest.approx(0.785, abs=0.025)
    assert play(stream, sharing_config(stream, 8.0), 0).released.whole == pytest.approx(0.842, abs=0.015)
    assert play(stream, sharing_config(stream, None), 0).released.whole >= 0.855


def test_movielens_says_that_sharing_will_not_pay():
    try:
        stream = ml_clicks()
    except DatasetError as error:
        pytest.skip(f"MovieLens-100K is not here: {error}")
    for epsilon in (1.0, 8.0):
        ahead = sharing_gain(sharing_config(stream, epsilon), stream.records_per_node, stream.private_features)
        assert ahead.verdict == "will not beat nodes alone"


def _drawn(
    alike: float, seed: int, nodes: int = 16, each: int = 150, wide: int = 60, turned: bool = False
) -> RecordStream:
    """Records of nodes whose true weights share a part of their variance; ``turned``: midway all labels turn."""
    draw, records = np.random.default_rng(seed), nodes * each
    common, own = draw.normal(size=wide), draw.normal(size=(nodes, wide))
    owner, values = np.arange(records) % nodes, draw.normal(size=(records, wide))
    truth = np.sqrt(alike) * common + np.sqrt(1 - alike) * own
    score = (values * truth[owner]).sum(axis=1) + 0.3 * np.sqrt(wide) * draw.normal(size=records)
    score *= np.where(turned & (np.arange(records) >= records // 2), -1, 1)
    ends, places = np.arange(records + 1) * wide, np.tile(np.arange(wide), records)
    return make_stream("drawn", ends, places, values.ravel(), np.where(score > 0, 1, -1), wide, owner, nodes)


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_the_forecast_is_true_where_nodes_differ_and_where_they_do_not(epsilon):
    """The lead is measured on one public draw, and judged on another: no false word, and the true gain is foretold.

    Where nodes have nothing in common, the gain of one draw deviates by .008 from a mean of 0 (six draws, epsilon 1).
    """
    for alike in (0.0, 0.3, 1.0):
        public, ours = _drawn(alike, 1), _drawn(alike, 3)
        config = sharing_config(ours, epsilon, node=True)
        central, alone = (judged(public, said) for said in (central_labels(public), alone_labels(public)))
        lead = central.whole - alone.whole
        verdict = sharing_gain(config, ours.records_per_node, lead=lead).verdict
        played = play(ours, config, 0)
        assert played.node is not None
        gain = played.node.whole - played.experts["alone"].whole
        assert {"will beat nodes alone": gain > 0.02, "will not beat nodes alone": gain < 0.01}.get(verdict, True)
        assert (verdict == "will beat nodes alone") == (alike == 1.0 and epsilon == 8.0)
        unmeasured = "may or may not beat nodes alone" if epsilon == 8.0 else "will not beat nodes alone"
        assert sharing_gain(config, ours.records_per_node).verdict == unmeasured


def test_a_plan_stakes_a_definite_word_on_records_that_do_not_change_with_time():
    """It said that sharing will not beat nodes alone; where labels turned midway, it gained .04 in the last quarter."""
    gains = []
    for seed in range(3):
        stream = _drawn(1.0, seed, nodes=8, wide=20, turned=True)
        config = sharing_config(stream, 0.5, node=True)
        played = play(stream, config, 0)
        assert played.node is not None
        gains.append(played.node.last - played.experts["alone"].last)
    verdict = plan(config, Audience(len(stream), 1, 365.0, lead=0.1)).verdict
    assert min(gains) > LEAST_GAIN, "noise is too large to learn from others, yet the plan's word alone would be false"
    assert verdict.startswith("If records do not change with time, sharing will not beat nodes alone within a year")
    unsure = plan(sharing_config(stream, 8.0, node=True), Audience(len(stream), 1, 365.0))
    assert unsure.verdict.startswith("Sharing may or may not beat nodes alone")


# People's own records: read through a mapping, refused by row and column, never by value.

TABLE = {
    "label": "bought",
    "positive": "yes",
    "features": {"age": {"kind": "number", "range": [0, 100]}, "kind": {"kind": "category", "vocabulary": ["a", "b"]}},
    "node": "shop",
    "nodes": ["north", "south"],
}
CSV = "age,kind,shop,bought,extra\n50,a,north,yes,1\n100,b,south,no,2\n500,a,north,no,3\n"


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_svmlight_is_read_with_its_comments(tmp_path):
    path = write(tmp_path, "few.svm", "# head\n+1 1:0.5 3:2 # a\n\n-1 2:1\n1 3:1\n")
    mapping = record_mapping({"positive": "1", "nodes": 2, "dimension": 3, "public": True})
    stream = load_records(path, mapping)
    assert stream.rows.labels.tolist() == [1, -1, 1]
    assert stream.nodes.tolist() == [0, 1, 0]
    assert stream.rows.part(0, 1).indices.tolist() == [0, 2, 3]
    assert stream.public


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CSV.replace("50,a", "old,a"), "line 2.*age"),
        (CSV.replace("south", "west"), "line 3.*shop"),
        (CSV.replace("500,a,north,no", "500,a,north,"), "line 4.*bought"),
        (CSV.replace("age", "years"), "age"),
        ("age,kind,shop,bought\n", "no rows"),
    ],
)
def test_a_bad_value_is_named_by_its_place(tmp_path, text, message):
    with pytest.raises(LogError, match=message) as refused:
        load_records(write(tmp_path, "shop.csv", text), record_mapping(TABLE))
    assert "old" not in str(refused.value)
    assert "west" not in str(refused.value)


@pytest.mark.parametrize("line", ["1 4:1", "1 0:1", "1 a:1", "1 1:", "1 1:nan", "1 1:inf", "1 1"])
def test_a_bad_svmlight_line_is_named(tmp_path, line):
    mapping = record_mapping({"positive": "1", "nodes": 2, "dimension": 3})
    with pytest.raises(LogError, match="line 2: expected"):
        load_records(write(tmp_path, "bad.svm", f"1 1:1\n{line}\n"), mapping)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": 1}, "unknown key colour"),
        ({"positive": None}, "positive: expected a text"),
        ({"nodes": 3}, "names of the nodes"),
        ({"nodes": 0}, "nodes: expected 1 to"),
        ({"nodes": ["a", "a"]}, "different names"),
        ({"public": "yes"}, "true or false"),
    ],
)
def test_a_bad_mapping_is_refused(change, message):
    with pytest.raises(LogError, match=message):
        record_mapping({**TABLE, **change})


def test_a_mapping_that_does_not_fit_the_file_is_refused(tmp_path):
    svm = record_mapping({"positive": "1", "nodes": 2, "dimension": 3})
    with pytest.raises(LogError, match="expected a mapping with label"):
        load_records(write(tmp_path, "shop.csv", CSV), svm)
    with pytest.raises(LogError, match="expected a mapping with dimension"):
        load_records(write(tmp_path, "few.svm", "1 1:1\n"), record_mapping(TABLE))
    with pytest.raises(LogError, match="missing key positive"):
        record_mapping({"nodes": 2})


def test_columns_of_declared_features_become_the_cells_of_their_blocks(tmp_path):
    text = CSV + ",z,south,yes,4\n"
    stream = load_records(write(tmp_path, "shop.csv", text), TABLE)
    assert (stream.node_count, stream.refused, stream.public) == (2, 0, False)
    assert stream.rows.labels.tolist() == [1, -1, -1, 1]
    schema = declare(TABLE["features"])
    assert stream.dimension == schema.cells + 1
    told = [{"age": 50, "kind": "a"}, {"age": 100, "kind": "b"}, {"age": 500, "kind": "a"}, {"kind": "z"}]
    for row, values in enumerate(told):
        part = stream.rows.part(row, row + 1)
        blocks = schema.blocks(schema.read(schema.encode(values).row))
        dense = np.zeros(schema.cells)
        np.add.at(dense, blocks.cells[0], blocks.values[0])
        # Before the constant, all that is not 0, in proportion.
        found = np.zeros(schema.cells + 1)
        found[part.indices] = part.values / UNIT
        assert found[:-1] / np.linalg.norm(found[:-1]) == pytest.approx(dense / np.linalg.norm(dense), abs=2e-3)
    assert stream.nodes.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"features": {"age": {"kind": "number"}}}, "features.age"),
        ({"features": {"colour": {"kind": "boolean"}}}, "colour"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(tmp_path, changes, message):
    with pytest.raises(LogError, match=message):
        load_records(write(tmp_path, "shop.csv", CSV), {**TABLE, **changes})


# Whether sharing pays, said from a run of records.


def test_the_lead_that_a_plan_takes_is_that_of_late_records():
    """Of all records a central learner of digits leads by .11, with which the plan said "will"; they gain nothing."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    values, signed = digits.data[order] / 16, np.where(digits.target[order] >= 5, 1, -1)
    (records, wide), nodes = values.shape, 12
    ends, places = np.arange(records + 1) * wide, np.tile(np.arange(wide), records)
    stream = make_stream("digits", ends, places, values.ravel(), signed, wide, np.arange(records) % nodes, nodes)
    led, alone = (said == signed for said in (central_labels(stream), alone_labels(stream)))
    config = sharing_config(stream, 8.0, node=True)
    found, wrong = lead_of(stream, led, alone).value, led.mean() - alone.mean()
    assert found == pytest.approx(0.05, abs=0.03)
    said = {lead: plan(config, Audience(records, 1, 365.0, lead=float(lead))).beats for lead in (found, wrong)}
    assert said == {found: None, wrong: True}
    gains = [judged(stream, predicted_labels(stream, config, seed)).whole - alone.mean() for seed in range(3)]
    assert np.mean(gains) < LEAST_GAIN


@pytest.mark.parametrize("prediction", ["released", "node"])
def test_where_no_epsilon_helps_that_is_said_up_to_the_largest_that_is_allowed(prediction):
    """A few records of many features: nothing that is shared can be better than chance."""
    config = {"deployment": "few", "release": {"window_units": 20, "horizon": 8}, "prediction": {"place": prediction}}
    world = {"records": 240, "dimension": 60, "nodes": 4}
    played = run_with(
        options_of(
            "pdol", {"runner": "direct", "config": config, "dataset": "sparse-synthetic", "seed": 3, "world": world}
        )
    )
    assert max(TRIED) == LARGEST_EPSILON
    assert played.payoff.otherwise == "keep apart, as no epsilon up to 20 was shown to pay on these records"
