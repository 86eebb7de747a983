"""The group's timers and odd turns, with sessions too short for Apache Kafka."""

import asyncio
from typing import Any

import pytest

from hushstream.broker.disk import Volatile
from hushstream.broker.errors import ErrorCode, RequestRefused
from hushstream.broker.groups import CommittedOffset, GroupCoordinator, GroupState, Joined, Joiner
from hushstream.broker.store import BrokerSettings
from patience import patience


def joiner(member_id: str = "", **fields: Any) -> Joiner:
    settings: dict[str, Any] = {
        "client_id": "c",
        "client_host": "/127.0.0.1",
        "session_timeout_ms": 200,
        "rebalance_timeout_ms": 200,
        "protocol_type": "consumer",
        "protocols": (("range", b"r"), ("roundrobin", b"rr")),
    }
    return Joiner(member_id=member_id, **(settings | fields))


def coordinator(**settings: int) -> GroupCoordinator:
    return GroupCoordinator(BrokerSettings(group_min_session_timeout_ms=10, **settings), Volatile())


async def refused(awaitable: Any) -> ErrorCode:
    with pytest.raises(RequestRefused) as caught:
        await awaitable
    return caught.value.code


async def stable_pair(groups: GroupCoordinator, **fields: Any) -> tuple[Joined, Joined]:
    """Two members, both synced; the first is the leader."""
    first = await groups.join("g", joiner(**fields), id_required=False)
    second = asyncio.create_task(groups.join("g", joiner(**fields), id_required=False))
    await asyncio.sleep(0)
    again = await groups.join("g", joiner(first.member_id, **fields), id_required=False)
    other = await second
    waiting = asyncio.create_task(groups.sync("g", other.generation, other.member_id, {}))
    await asyncio.sleep(0)
    parts = {again.member_id: b"1", other.member_id: b"2"}
    assert await groups.sync("g", again.generation, again.member_id, parts) == b"1"
    assert await waiting == b"2"
    return again, other


async def test_a_member_that_does_not_rejoin_is_left_behind_after_the_rebalance_timeout():
    groups = coordinator()
    first, _ = await stable_pair(groups, session_timeout_ms=10_000, rebalance_timeout_ms=100)
    changed = joiner(
        first.member_id, session_timeout_ms=10_000, rebalance_timeout_ms=100, protocols=(("range", b"new"),)
    )
    async with asyncio.timeout(patience(2)):
        alone = await groups.join("g", changed, id_required=False)
    assert [member_id for member_id, _, _ in alone.members] == [first.member_id]
    groups.close()


async def test_a_leader_that_never_assigns_does_not_block_the_group():
    groups = coordinator()
    slow = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 100}
    leader = await groups.join("g", joiner(**slow), id_required=False)
    second = asyncio.create_task(groups.join("g", joiner(**slow), id_required=False))
    await asyncio.sleep(0)
    await groups.join("g", joiner(leader.member_id, **slow), id_required=False)
    other = await second
    code = await refused(groups.sync("g", other.generation, other.member_id, {}))
    assert code is ErrorCode.REBALANCE_IN_PROGRESS
    promoted = await groups.join("g", joiner(other.member_id, **slow), id_required=False)
    assert promoted.leader_id == other.member_id
    groups.close()


async def test_a_member_that_waits_for_others_is_not_expired():
    groups = coordinator()
    first, _ = await stable_pair(groups, session_timeout_ms=30, rebalance_timeout_ms=200)
    changed = joiner(first.member_id, session_timeout_ms=30, protocols=(("range", b"new"),))
    joined = await groups.join("g", changed, id_required=False)
    assert joined.member_id == first.member_id
    groups.close()


async def test_a_promised_member_id_lapses():
    groups = coordinator()
    code = await refused(groups.join("g", joiner(session_timeout_ms=30), id_required=True))
    assert code is ErrorCode.MEMBER_ID_REQUIRED
    async with asyncio.timeout(patience(2)):
        joined = await groups.join("g", joiner(), id_required=False)
    assert len(joined.members) == 1
    groups.close()


async def test_an_initial_delay_gathers_the_first_members_in_one_generation():
    groups = coordinator(group_initial_rebalance_delay_ms=100)
    joins = [asyncio.create_task(groups.join("g", joiner(), id_required=False))]
    await asyncio.sleep(0.03)
    joins.append(asyncio.create_task(groups.join("g", joiner(), id_required=False)))
    joined = await asyncio.gather(*joins)
    assert {outcome.generation for outcome in joined} == {1}
    assert len({outcome.leader_id for outcome in joined}) == 1
    groups.close()


async def test_members_vote_for_the_protocol_most_prefer_among_the_common_ones():
    groups = coordinator(group_initial_rebalance_delay_ms=50)
    preferences = [("a", "b", "c"), ("b", "c"), ("c", "b")]
    joined = await asyncio.gather(
        *(
            groups.join("g", joiner(protocols=tuple((name, b"") for name in names)), id_required=False)
            for names in preferences
        )
    )
    assert {outcome.protocol for outcome in joined} == {"b"}
    groups.close()


async def test_the_last_member_leaves_an_empty_group_with_its_offsets():
    groups = coordinator()
    joined = await groups.join("g", joiner(), id_required=False)
    groups.check_commit("h", -1, "")
    await groups.commit("g", {("t", 0): CommittedOffset(5, -1, "")})
    groups.leave("g", joined.member_id)
    group = groups.find("g")
    assert group is not None
    assert (group.state, group.members) == (GroupState.EMPTY, {})
    assert groups.committed("g")["t", 0].offset == 5
    groups.forget_topic("t")
    assert groups.committed("g") == {}
    groups.close()


async def test_commits_during_the_leaders_assignment_are_refused_and_before_it_are_taken():
    groups = coordinator()
    joined = await groups.join("g", joiner(), id_required=False)
    with pytest.raises(RequestRefused) as caught:
        groups.check_commit("g", joined.generation, joined.member_id)
    assert caught.value.code is ErrorCode.REBALANCE_IN_PROGRESS
    await groups.sync("g", joined.generation, joined.member_id, {})
    groups.check_commit("g", joined.generation, joined.member_id)
    second = asyncio.create_task(groups.join("g", joiner(), id_required=False))
    await asyncio.sleep(0)
    groups.check_commit("g", joined.generation, joined.member_id)
    second.cancel()
    groups.close()
