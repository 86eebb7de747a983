"""The benchmark on a given broker gives every row and leaves nothing there; how fast is not asked here."""

import asyncio
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.protocol.admin import DeleteTopicsResponse_v3

from hushstream.agents.errors import AccessDenied
from hushstream.ops.connection import Connection
from hushstream.replay.bench import stream
from hushstream.replay.bench.processes import embedded_broker
from hushstream.replay.bench.stream import StreamSizes, delete_topics, kafka_rows, open_bench, prepare_deployment
from hushstream.replay.experiments.rows import BenchFailed

SMALL = StreamSizes(dimension=4, arms=3, users=20, event_pairs=10_000, batch_pairs=40 * 256, paced_seconds=1.0)


async def _topics(bootstrap: str) -> list[str]:
    async with Connection(bootstrap, "").admin("list topics") as admin:
        return [name for name in await admin.list_topics() if not name.startswith("__")]


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_small_run_on_a_given_broker_gives_every_row_and_deletes_its_topics(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told: list[str] = []
    # A busy machine does not keep the pace, which is what makes a run no measurement (`test_stream_rows.py`).
    monkeypatch.setattr(stream, "PACE_TOLERANCE", 0.0)

    async def run() -> None:
        async with embedded_broker(tmp_path) as bootstrap:
            rows = await asyncio.to_thread(kafka_rows, bootstrap, told.append, 1, SMALL)
            assert await _topics(bootstrap) == []
        one_form = ["events/s", "events/s", "x", "us/event", "us/event"]
        assert [row.unit for row in rows] == [*one_form, *one_form]
        assert [row.target for row in rows if row.target] == ["at least 0.7", "at least 0.7"]
        assert all(row.value > 0 for row in rows)
        assert all((row.reached is None) == (not row.target) for row in rows)

    asyncio.run(run())
    assert len(told) == 2


def test_a_topic_that_may_not_be_deleted_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def refuse(self: AIOKafkaAdminClient, topics: list[str]) -> DeleteTopicsResponse_v3:
        return DeleteTopicsResponse_v3(0, [(topics[0], 29)])

    async def run() -> None:
        async with embedded_broker(tmp_path) as bootstrap:
            async with Connection(bootstrap, "").admin("create topics") as admin:
                await admin.create_topics([NewTopic("bench-1.contexts", 1, 1)])
            monkeypatch.setattr(AIOKafkaAdminClient, "delete_topics", refuse)
            await delete_topics(Connection(bootstrap, "bench-1."))

    with pytest.raises(AccessDenied, match=r"delete topic bench-1\.contexts: .*forbid it"):
        asyncio.run(run())


async def _fail(folder: Path, bootstrap: str) -> None:
    """Make topics, and end as a run does whose worker has died."""
    system = prepare_deployment(folder, SMALL)
    async with open_bench(folder / "failed", system, SMALL, bootstrap) as bench:
        await bench.learner("failed")
        assert len(await _topics(bootstrap)) > 5
        raise BenchFailed("the worker ended")


def test_topics_of_a_run_that_fails_are_deleted_and_others_stay(tmp_path: Path) -> None:
    async def run() -> None:
        async with embedded_broker(tmp_path) as bootstrap:
            async with Connection(bootstrap, "").admin("create topics") as admin:
                await admin.create_topics([NewTopic("bench-of-somebody.contexts", 1, 1)])
            with pytest.raises(BenchFailed, match="the worker ended"):
                await _fail(tmp_path, bootstrap)
            assert await _topics(bootstrap) == ["bench-of-somebody.contexts"]

    asyncio.run(run())
