"""A node in the form of the paper as a role: rounds, neighbours that are early or late, and what it costs."""

from __future__ import annotations

import numpy as np
import pytest

from hushstream.privacy.promises.promise import NOT_PRIVATE
from hushstream.schemas import codec
from hushstream.systems.pdol.algorithm.gossip import GossipNode
from hushstream.systems.pdol.algorithm.graphs import mixing_of
from hushstream.systems.pdol.configuration import GossipConfig
from hushstream.systems.pdol.nodes.gossip_sharing import gossip_home
from hushstream.systems.pdol.system import declare

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


@pytest.mark.parametrize("gradient_at", ["own", "sent"])
def test_a_snapshot_or_the_journal_alone_lead_to_the_same_bytes(pdol, gradient_at):
    for rig in played(pdol, gradient_at):
        again = rig.fresh()
        found = rig.replayed(again)
        outputs = [[o for step in seen.steps for o in step.releases] for seen in (found, rig.seen)]
        assert outputs[0] == outputs[1]
        assert again.snapshot() == rig.machine.snapshot()
        restored = rig.fresh()
        restored.start(rig.genesis)
        restored.restore(rig.machine.snapshot())
        assert restored.snapshot() == rig.machine.snapshot()


def test_another_record_in_a_round_meets_other_noise(pdol):
    noise = []
    for event in (1, 2):
        rig = rig_of(pdol, gossip_system(pdol), 0, pdol.SECRET)
        rig.play(event, 1)
        rig.end_phase(0)
        rig.fold()
        exact = GossipNode(0, mixing_of(rig.system.config.gossip, 3), rig.system.config)
        row = pdol.some_row(event)
        labelled = type(row)(row.indptr, row.indices, row.values, np.ones(1, dtype=np.int8))
        sent = np.frombuffer(parameters(rig)[0]["values"], "<i8").astype(np.int64)
        noise.append(sent - exact.follow(labelled, sent))
    assert not np.array_equal(*noise)


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
    assert NOT_PRIVATE in own.promises.releases.marks
    assert own.promises.releases.epsilon_micro == 2_000_000 * (1 + (ROUNDS - 1) / 2)
    assert NOT_PRIVATE not in sent.promises.releases.marks
    for system in (own, sent):
        assert system.role_names == ("node",)
        assert {topic.name for topic in system.topics} >= {"records", "predictions", "parameters", "ledger"}
        assert not {topic.name for topic in system.topics} & {"releases", "models"}
        assert {content.topic for content in system.promises.releases.contents} <= {t.name for t in system.topics}


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
