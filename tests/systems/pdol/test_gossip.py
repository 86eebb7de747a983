"""The paper's form: graphs that mix, sensitivities in whole numbers, late neighbours, and what it truly costs."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from tests.systems.pdol.conftest import DIMENSION, records

from hushstream.privacy.promises.page import page_text
from hushstream.privacy.promises.promise import NOT_PRIVATE
from hushstream.systems.pdol.algorithm.gossip import (
    PARAMETER_BITS,
    WHOLE,
    GossipConfig,
    GossipNode,
    adjacency_of,
    gossip_epsilon,
    gossip_guarantee,
    metropolis,
    mixing_of,
    noise_law,
    sensitivity_of,
    step_of,
)
from hushstream.systems.pdol.algorithm.rows import BadGraph, PdolError, Rows, null_rows
from hushstream.systems.pdol.configuration import UNIT

STEP = 2.0
ONE = 1 << PARAMETER_BITS


def gossip_config(at: str = "own", rounds: int = 50, **options) -> GossipConfig:
    return GossipConfig(3, DIMENSION, 1.0, rounds, "complete", step=STEP, gradient_at=at, **options)


def node_of(config: GossipConfig, node: int = 0) -> GossipNode:
    return GossipNode(node, mixing_of(config), config)


@pytest.mark.parametrize(("graph", "degree"), [("ring", 2), ("torus", 4), ("random-regular", 4), ("complete", 63)])
def test_every_graph_has_its_degree_and_mixes(graph, degree):
    adjacency = adjacency_of(graph, 64, seed=3)
    assert (adjacency.sum(axis=1) == degree).all()
    assert (adjacency == adjacency.T).all()
    weights = metropolis(adjacency)
    assert (weights[adjacency] == WHOLE // (1 + degree)).all()
    mixed = np.linalg.matrix_power(weights / WHOLE, 4000)
    assert mixed == pytest.approx(np.full((64, 64), 1 / 64), abs=1e-3)


def test_weights_of_unequal_degrees_are_doubly_stochastic_without_tolerance():
    draw = np.random.default_rng(5)
    for _ in range(20):
        graph = np.triu(draw.random((9, 9)) < 0.5, 1)
        weights = metropolis(graph | graph.T)
        assert (weights.sum(axis=0) == WHOLE).all()
        assert (weights.sum(axis=1) == WHOLE).all()
        assert (weights >= 0).all()


@pytest.mark.parametrize(("graph", "nodes"), [("random-regular", 4), ("torus", 7), ("ring", 1), ("complete", 1)])
def test_graphs_that_do_not_exist_are_refused(graph, nodes):
    with pytest.raises(BadGraph, match="expected"):
        adjacency_of(graph, nodes)


def test_random_graphs_follow_their_seed():
    first, again, other = (adjacency_of("random-regular", 20, seed) for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()
    for seed in range(20):
        assert (adjacency_of("random-regular", 5, seed).sum(axis=1) == 4).all()


def test_steps_fall_as_the_root_of_the_round_within_an_eighth_of_an_octave():
    form = gossip_config()
    for number in range(1, 3000):
        exact = STEP * ONE / number**0.5
        assert exact - 1 <= step_of(form, number) <= exact * 2 ** (1 / 8) + 1
    assert len({step_of(form, number) for number in range(1, 448)}) <= 37


@pytest.mark.parametrize("at", ["own", "sent"])
def test_two_records_move_what_is_sent_by_no_more_than_the_sensitivity_in_l1(at):
    """The largest move is nearly reached: opposite labels of one record that is spread evenly."""
    config = gossip_config(at)
    even = np.full(DIMENSION, int(UNIT / DIMENSION**0.5), dtype=np.int64)
    ends, indices = np.array([0, DIMENSION], dtype=np.int64), np.arange(DIMENSION, dtype=np.int32)
    pairs = [Rows(ends, indices, even, np.array([label], dtype=np.int8)) for label in (1, -1)]
    pairs += [records(40, seed).part(row, row + 1) for seed, row in ((1, 0), (2, 5), (3, 9), (4, 2))]
    noise = np.zeros(DIMENSION, dtype=np.int64)
    largest = 0.0
    for first in pairs:
        for second in pairs:
            sent = [node_of(config).step(row, noise)[1] for row in (first, second)]
            largest = max(largest, float(np.abs(sent[0] - sent[1]).sum()))
    bound = sensitivity_of(config, 1)
    assert 0.99 * bound < largest <= bound
    assert bound == pytest.approx(2 * STEP * ONE * DIMENSION**0.5, abs=2)


def test_the_noise_has_the_printed_scale():
    config = gossip_config()
    law = noise_law(config, 9)
    assert law.law == "laplace"
    assert law.numerator / law.denominator == pytest.approx(sensitivity_of(config, 9) / 1.0)


def test_a_step_is_that_of_the_algorithm():
    """Line by line in floats, with noise and neighbours."""
    config = gossip_config(lasso=0.05)
    rows = records(30, seed=4)
    node, draw = node_of(config), np.random.default_rng(1)
    theta, known = np.zeros(DIMENSION), np.zeros((3, DIMENSION))
    for number in range(1, 31):
        row = rows.part(number - 1, number)
        noise = draw.integers(-ONE, ONE, DIMENSION)
        alpha = step_of(config, number) / ONE
        w = np.sign(theta) * np.maximum(np.abs(theta) - alpha * 0.05, 0)
        x = np.zeros(DIMENSION)
        x[row.indices] = row.values / UNIT
        score, label = float(w @ x), int(row.labels[0])
        theta = known.mean(axis=0) + (alpha * label * x if label * score < 1 else 0)
        seen, sent = node.step(row, noise)
        assert seen.loss == pytest.approx(max(0.0, 1 - label * score), abs=1e-3)
        assert sent / ONE == pytest.approx(theta + noise / ONE, abs=1e-4 * number)
        known[0] = sent / ONE
        for neighbour in (1, 2):
            values = draw.integers(-ONE, ONE, DIMENSION)
            node.on_parameters(neighbour, values)
            known[neighbour] = values / ONE


def test_gradients_at_what_was_sent_do_not_depend_on_what_was_held_back():
    """Two histories that sent the same parameters go on alike with ``sent``, and not with ``own``."""
    followed = {}
    for at in ("own", "sent"):
        config, noise = gossip_config(at), np.zeros(DIMENSION, dtype=np.int64)
        rows = records(2, seed=8)
        nodes = [node_of(config) for _ in range(2)]
        first = nodes[0].step(rows.part(0, 1), noise)[1]
        # The other node has a null slot, and noise that makes up for it: what is sent is the same.
        quiet = node_of(config).step(null_rows(1), noise)[1]
        assert nodes[1].step(null_rows(1), first - quiet)[1].tolist() == first.tolist()
        probe = Rows(*(getattr(rows.part(0, 1), name) for name in ("indptr", "indices", "values", "labels")))
        followed[at] = [node.step(probe, noise)[1].tolist() for node in nodes]
    assert followed["sent"][0] == followed["sent"][1]
    assert followed["own"][0] != followed["own"][1]


def test_what_does_not_fit_is_refused():
    node, noise = node_of(gossip_config(rounds=1)), np.zeros(DIMENSION, dtype=np.int64)
    with pytest.raises(PdolError, match="one slot in one of 1 rounds, got 2"):
        node.step(null_rows(2), noise)
    node.step(null_rows(1), noise)
    with pytest.raises(PdolError, match="one of 1 rounds"):
        node.step(null_rows(1), noise)


def test_the_papers_form_says_that_it_is_not_private_as_stated_and_what_holds():
    own, sent = (gossip_guarantee(gossip_config(at, rounds=200)) for at in ("own", "sent"))
    assert own.marks == (NOT_PRIVATE,)
    assert own.cost.epsilon_micro == 100_500_000  # 1 + (200 - 1) / 2
    assert own.claimed is not None
    assert own.claimed.epsilon_micro == 1_000_000
    assert NOT_PRIVATE in page_text(own)
    assert (sent.marks, sent.cost.epsilon_micro, sent.claimed) == ((), 1_000_000, None)


@pytest.mark.parametrize("rounds", [1, 2, 7])
def test_the_true_epsilon_is_the_sum_of_what_each_round_can_tell(rounds):
    """Of a person's rounds epsilon each, of every other one after their first half of it; their worst rounds."""
    form = GossipConfig(64, 501, epsilon=0.3, rounds=rounds, gradient_at="own")
    for theirs in range(1, rounds + 1):
        worst = max(
            sum(0.3 if round_ in own else 0.15 for round_ in range(min(own), rounds))
            for own in combinations(range(rounds), theirs)
        )
        assert float(gossip_epsilon(form, theirs)) == pytest.approx(worst)
    assert gossip_epsilon(form, rounds + 1) == gossip_epsilon(form, rounds), "nobody has more records than rounds"
