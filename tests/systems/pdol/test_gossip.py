"""The paper's form: graphs that mix, sensitivities in whole numbers, and the role's rounds with late neighbours."""

from __future__ import annotations

import numpy as np
import pytest
from tests.systems.pdol.conftest import DIMENSION, config_of, records

from hushstream.privacy.promises.promise import NOT_PRIVATE
from hushstream.schemas import codec
from hushstream.systems.pdol.algorithm.gossip import (
    PARAMETER_BITS,
    WHOLE,
    GossipNode,
    adjacency_of,
    metropolis,
    mixing_of,
    noise_law,
    require_mixing,
    sensitivity_of,
    step_of,
)
from hushstream.systems.pdol.algorithm.rows import BadGraph, BadRelease, PdolError, Rows, null_rows
from hushstream.systems.pdol.configuration import UNIT, GossipConfig, PdolConfig, RecordConfig
from hushstream.systems.pdol.nodes.gossip_sharing import gossip_home
from hushstream.systems.pdol.system import declare

STEP = 2.0
ONE = 1 << PARAMETER_BITS


def gossip_config(at: str = "own", nodes: int = 3, rounds: int = 50, **options) -> PdolConfig:
    form = GossipConfig(1.0, rounds, "complete", step=STEP, gradient_at=at, **options)  # type: ignore[arg-type]
    return PdolConfig("tests", nodes, RecordConfig(DIMENSION), gossip=form)


def node_of(config: PdolConfig, node: int = 0) -> GossipNode:
    assert config.gossip is not None
    return GossipNode(node, mixing_of(config.gossip, config.nodes), config)


@pytest.mark.parametrize(("graph", "degree"), [("ring", 2), ("torus", 4), ("random-regular", 4), ("complete", 63)])
def test_every_graph_has_its_degree_and_mixes(graph, degree):
    adjacency = adjacency_of(graph, 64, seed=3)  # type: ignore[arg-type]
    assert (adjacency.sum(axis=1) == degree).all()
    assert (adjacency == adjacency.T).all()
    weights = metropolis(adjacency)
    require_mixing(weights)
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
        adjacency_of(graph, nodes)  # type: ignore[arg-type]


def test_random_graphs_follow_their_seed():
    first, again, other = (adjacency_of("random-regular", 20, seed) for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()
    for seed in range(20):
        assert (adjacency_of("random-regular", 5, seed).sum(axis=1) == 4).all()


def test_weights_that_do_not_mix_are_refused():
    apart = np.kron(np.eye(2, dtype=np.int64), metropolis(adjacency_of("ring", 4)))
    with pytest.raises(BadGraph, match="connected one, got 4 of 8 nodes"):
        require_mixing(apart)
    lopsided = np.array([[WHOLE, 0], [WHOLE // 2, WHOLE // 2]])
    with pytest.raises(BadGraph, match="sum to one"):
        require_mixing(lopsided)
    with pytest.raises(BadGraph, match="no negative"):
        require_mixing(np.array([[2 * WHOLE, -WHOLE], [-WHOLE, 2 * WHOLE]]))
    with pytest.raises(BadGraph, match="square"):
        require_mixing(np.ones((2, 3), dtype=np.int64))


def test_steps_fall_as_the_root_of_the_round_within_an_eighth_of_an_octave():
    form = gossip_config().gossip
    assert form is not None
    for number in range(1, 3000):
        exact = STEP * ONE / number**0.5
        assert exact - 1 <= step_of(form, number) <= exact * 2 ** (1 / 8) + 1
    assert len({step_of(form, number) for number in range(1, 448)}) <= 37


@pytest.mark.parametrize("at", ["own", "sent"])
def test_two_records_move_what_is_sent_by_no_more_than_the_sensitivity_in_l1(at):
    """The largest move is nearly reached: opposite labels of one record that is spread evenly."""
    config = gossip_config(at)
    assert config.gossip is not None
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
    bound = sensitivity_of(config.gossip, 1, DIMENSION)
    assert 0.99 * bound < largest <= bound
    assert bound == pytest.approx(2 * STEP * ONE * DIMENSION**0.5, abs=2)


def test_the_noise_has_the_printed_scale():
    config = gossip_config()
    assert config.gossip is not None
    law = noise_law(config.gossip, 9, DIMENSION)
    assert law.law == "laplace"
    assert law.numerator / law.denominator == pytest.approx(sensitivity_of(config.gossip, 9, DIMENSION) / 1.0)


def test_a_step_is_that_of_the_algorithm():
    """Line by line in floats, with noise and neighbours."""
    config = gossip_config(lasso=0.05)
    form, rows = config.gossip, records(30, seed=4)
    assert form is not None
    node, draw = node_of(config), np.random.default_rng(1)
    theta, known = np.zeros(DIMENSION), np.zeros((3, DIMENSION))
    for number in range(1, 31):
        row = rows.part(number - 1, number)
        noise = draw.integers(-ONE, ONE, DIMENSION)
        alpha = step_of(form, number) / ONE
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
            assert node.on_parameters(neighbour, number, values)
            known[neighbour] = values / ONE


def test_a_late_neighbour_is_mixed_as_it_was_last_known():
    prompt, late = (node_of(gossip_config()) for _ in range(2))
    noise, values = np.zeros(DIMENSION, dtype=np.int64), np.full(DIMENSION, 3 * ONE)
    for node in (prompt, late):
        node.on_parameters(1, 1, values)
    assert not prompt.on_parameters(1, 1, 5 * values)
    assert prompt.on_parameters(1, 3, values)
    assert not prompt.on_parameters(1, 2, 5 * values)
    assert prompt.step(null_rows(1), noise)[1].tolist() == late.step(null_rows(1), noise)[1].tolist()


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
    with pytest.raises(BadRelease, match="neighbour of node 0, got node 3"):
        node.on_parameters(3, 1, noise)
    with pytest.raises(BadRelease, match="expected int64 of shape"):
        node.on_parameters(1, 1, noise[1:])
    with pytest.raises(PdolError, match="one slot in one of 1 rounds, got 2"):
        node.step(null_rows(2), noise)
    node.step(null_rows(1), noise)
    with pytest.raises(PdolError, match="one of 1 rounds"):
        node.step(null_rows(1), noise)
    with pytest.raises(PdolError, match="paper's form"):
        GossipNode(0, metropolis(adjacency_of("ring", 3)), config_of())


ROUNDS = 6


@pytest.fixture(scope="session")
def pdol(pdol_rigs):
    return pdol_rigs


def gossip_system(pdol, gradient_at="sent", nodes=3):
    form = GossipConfig(2.0, ROUNDS, "complete", gradient_at=gradient_at)
    return pdol.make_system(nodes=nodes, gossip=form, records={"label_slots": 1})


def rig_of(pdol, system, node, key=None):
    class GossipRig(pdol.NodeRig):
        def fresh(self):
            return gossip_home(self.system, self.partition, self.key)

    return GossipRig(system, key, node)


def parameters(rig):
    return rig.seen.records("parameters", "Parameters")


def tell(rig, *others):
    """Give a node what others have sent that it has not read."""
    for other in others:
        place = ("parameters", other.partition)
        values = [output.value for output in other.seen.releases("parameters")]
        for value in values[len(rig.logs.get(place, [])) :]:
            rig.put(*place[:1], value, place[1])


def play_round(rigs, number):
    for rig in rigs:
        rig.play(100 * number + 10 * rig.partition, 1)
        rig.end_phase(number)
        rig.fold()
    for rig in rigs:
        tell(rig, *(other for other in rigs if other is not rig))
        rig.fold()


def played(pdol, gradient_at="sent", key=None):
    system = gossip_system(pdol, gradient_at)
    rigs = [rig_of(pdol, system, node, key) for node in range(3)]
    for number in range(4):
        play_round(rigs, number)
    return rigs


@pytest.mark.parametrize("gradient_at", ["own", "sent"])
def test_rounds_are_those_of_the_stage_with_the_noise_that_was_sent(pdol, gradient_at):
    rigs = played(pdol, gradient_at)
    config = rigs[0].system.config
    mixing = mixing_of(config.gossip, 3)
    nodes = [GossipNode(node, mixing, config) for node in range(3)]
    sent = [[np.frombuffer(one["values"], "<i8").astype(np.int64) for one in parameters(rig)] for rig in rigs]
    for number in range(4):
        for node in nodes:
            event = 100 * number + 10 * node.node
            row = pdol.some_row(event)
            weights = node.weights()[row.indices]
            said = rigs[node.node].said()[f"e{event}"]
            assert said == (1 if int(weights @ row.values) > 0 else -1)
            labels = np.array([1 if event % 3 else -1], dtype=np.int8)
            own = node.follow(type(row)(row.indptr, row.indices, row.values, labels), sent[node.node][number])
            assert np.any(sent[node.node][number] != own), "noise was added"
        for node in nodes:
            for other in range(3):
                node.on_parameters(other, number + 1, sent[other][number])
    for rig, node in zip(rigs, nodes, strict=True):
        rig.machine.sharing.feed()
        assert rig.machine.sharing.node.dump() == node.dump()


def test_parameters_of_a_round_that_has_not_come_wait_for_it(pdol):
    system = gossip_system(pdol)
    fast, slow = rig_of(pdol, system, 0), rig_of(pdol, system, 1)
    for number in range(3):
        fast.play(10 * number, 1)
        fast.end_phase(number)
        fast.fold()
    tell(slow, fast)
    slow.play(100, 1)
    slow.end_phase(0)
    slow.fold()
    assert [after for after, _ in slow.machine.sharing.neighbours[0].waiting] == [1, 2, 3]
    slow.play(200, 1)
    slow.end_phase(1)
    slow.fold()
    assert [after for after, _ in slow.machine.sharing.neighbours[0].waiting] == [2, 3], (
        "what was sent after round 1 was mixed"
    )


def test_a_neighbour_that_is_dead_holds_nobody_up(pdol):
    rig = rig_of(pdol, gossip_system(pdol), 0)
    for number in range(ROUNDS + 2):
        rig.play(10 * number, 1)
        rig.end_phase(number)
        rig.fold()
    assert [one["after"] for one in parameters(rig)] == list(range(1, ROUNDS + 1)), "and after the last round nothing"


def test_a_record_pays_once_and_a_known_fork_pays_again(pdol):
    rig = rig_of(
        pdol,
        pdol.make_system(
            nodes=3, gossip=GossipConfig(2.0, ROUNDS, "complete", gradient_at="sent"), sharing={"epochs": 1}
        ),
        0,
        pdol.SECRET,
    )
    rig.play(0, 1)
    rig.end_phase(0)
    rig.fold()
    debits = [debit for fields in rig.seen.journals for debit in fields["debits"]]
    assert [debit["epsilon_micro"] for debit in debits] == [2_000_000]
    assert parameters(rig)[0]["private_as_stated"]
    rig.machine.request_epoch(bytes(16), forked=True)
    rig.play(10, 1)
    rig.end_phase(1)
    rig.fold()
    assert len(parameters(rig)) == 1, "the budget cannot pay for another epoch"
    assert rig.machine.refused is not None


def test_the_form_as_printed_is_not_private_as_stated_and_has_no_aggregator(pdol):
    own, sent = (declare(gossip_system(pdol, way)) for way in ("own", "sent"))
    assert NOT_PRIVATE in own.guarantee().marks
    assert own.guarantee().epsilon_micro == 2_000_000 * (1 + (ROUNDS - 1) / 2)
    assert NOT_PRIVATE not in sent.guarantee().marks
    for system in (own, sent):
        assert system.role_names == ("node",)
        assert {topic.name for topic in system.topics} >= {"records", "predictions", "parameters", "ledger"}
        assert not {topic.name for topic in system.topics} & {"releases", "models"}
        assert {content.topic for content in system.guarantee().contents} <= {t.name for t in system.topics}


def test_parameters_of_another_deployment_or_size_are_not_mixed(pdol):
    system = gossip_system(pdol)
    rig, other = rig_of(pdol, system, 0), rig_of(pdol, system, 1)
    other.play(0, 1)
    other.end_phase(0)
    other.fold()
    name, fields = codec.decode(other.seen.releases("parameters")[0].value)
    for change in ({"config_digest": bytes(16)}, {"values": bytes(8)}):
        rig.put("parameters", codec.encode(name, {**fields, **change}), 1)
    rig.put("parameters", b"junk", 1)
    rig.play(50, 1)
    rig.fold()
    assert not rig.machine.sharing.neighbours[1].waiting
    assert rig.machine.sharing.neighbours[1].position == 3
