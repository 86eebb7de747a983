"""Peers: they decide and learn as asked, those that are missing have a row that says so, and a page has each kind."""

from __future__ import annotations

import pytest

from hushstream.replay.bench import peers
from hushstream.replay.bench.baselines import DIMENSION, Answering
from hushstream.replay.bench.load import context_values, make_load, reward_values
from hushstream.replay.bench.peers import Peer, learner_rows, peer_tables, stream_rows
from hushstream.replay.bench.stream import StreamSizes
from hushstream.replay.experiments.rows import PeerRow

ABSENT = Peer("Nobody", "nobody", "no-such-package[kafka]==1.0", "nothing", " (of an own kind)")
SIZES = StreamSizes(users=20, event_pairs=12_000, batch_pairs=40 * 256)


def test_a_peer_answers_every_context_and_learns_its_reward() -> None:
    answering, load = Answering(), make_load(400, 3, DIMENSION, 1)
    shown = []
    for context, one in zip(context_values(load, 1), range(400), strict=True):
        event, arm = (answering(context) or b"").decode().split()
        assert event == load.event_ids[one]
        shown.append(int(arm))
        (reward,) = reward_values(load.part(one, one + 1), [int(arm)], [float(int(arm) == 2)], 1)
        assert answering(reward) is None
    assert shown[:3] == [0, 1, 2], "what was not rewarded is left"
    assert shown[200:].count(2) > 150
    with pytest.raises(KeyError):
        answering(reward)


def test_whatever_is_installed_decides_and_learns_in_this_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "LEARNERS", (*peers.LEARNERS, ABSENT))
    found = {row.name: row for row in learner_rows(lambda _: None, 1, events=50)}
    assert found["learners: hushstream, LinUCB"].value
    for peer in peers.LEARNERS:
        row = found[f"learners: {peer.name}"]
        assert bool(row.value) == peer.installed
        assert peer.installed or row.unit.startswith(f"not installed: pip install {peer.package}")
    assert not ABSENT.installed
    assert peers.STREAMS[0].installed


@pytest.mark.process
async def test_streams_answer_the_same_records_on_one_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    only = [peer for peer in peers.STREAMS if peer.key in ("faust-topic", "aiokafka")]
    asks = Peer("Asks for all", "asks", "aiokafka", "", lists_topics=True)
    monkeypatch.setattr(peers, "STREAMS", (*only, asks))
    rows = await stream_rows(lambda _: None, 1, SIZES)
    assert [row.name for row in rows] == [
        "streams on embedded broker: hushstream, one event a record",
        "streams on embedded broker: hushstream, records of 256",
        "streams on embedded broker: bare Faust, topic.send",
        "streams on embedded broker: aiokafka, commits by hand",
        "streams on embedded broker: Asks for all",
    ]
    *measured, left = rows
    assert all(row.value and row.guarantees for row in measured)
    assert (left.value, left.unit) == (None, "not measured here, but with --bootstrap of Apache Kafka")


def test_a_page_has_a_table_of_each_kind_with_the_first_over_every_other() -> None:
    rows = [
        PeerRow("learners: ours", 9_000.0, "events/CPU s", guarantees="all"),
        PeerRow("learners: theirs", 6_000.0, "events/CPU s", guarantees="some"),
        ABSENT.missing("learners"),
        PeerRow("servers: ours", 10.0, "events/CPU s"),
    ]
    tables = peer_tables(rows)
    assert list(tables) == ["learners", "servers"]
    assert "| theirs | 6,000 | 1.50 | some |\n" in tables["learners"]
    assert (
        "| Nobody | not installed: pip install no-such-package[kafka]==1.0 (of an own kind) | | nothing |"
        in tables["learners"]
    )
