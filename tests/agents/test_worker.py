"""A worker and its surroundings: what is wrong is said in one line, what goes away is waited for."""

from __future__ import annotations

import asyncio
import shutil
import signal
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from hushstream.agents.kafka.stream import Stream
from patience import Patience, patience

pytestmark = pytest.mark.asyncio(loop_scope="module")

EVENTS = [(1_000_000 + i, b"k%d" % (i % 5)) for i in range(60)]


def deployment(bench: Any, harness: Any, machines: Any, name: str, partitions: int = 2, **settings: Any) -> Any:
    return harness.Deployment(
        bench,
        name,
        f"{machines.__file__}:counting",
        {"targets": partitions},
        machines.counting(targets=partitions),
        {("events", p): EVENTS for p in range(partitions)},
        partitions,
        settings,
    )


def only_line(worker: Any) -> str:
    """What the worker said about its end: one line, no traceback."""
    text = worker.log.read_text(encoding="utf-8")
    assert "Traceback" not in text, text
    lines = [line for line in text.splitlines() if line.startswith("hushstream worker")]
    assert len(lines) == 1, text
    return str(lines[0])


async def test_a_consumer_that_has_not_begun_is_asked_nothing():
    # The fetch thread makes its consumer, and starts it later; in between, asking would end the worker.
    consumer: Any = AIOKafkaConsumer()
    thread = SimpleNamespace(kafka=consumer, thread_loop=asyncio.get_running_loop())
    app, settings = SimpleNamespace(consumer=SimpleNamespace(thread=thread)), SimpleNamespace(topic_prefix="")
    stream = Stream(app, settings)  # type: ignore[arg-type]  # nothing else is read
    await stream.raise_refusal()
    await consumer.stop()


async def test_an_absent_broker_is_named_and_ends_the_worker(bench, harness, machines):
    port = harness.free_port()
    async with deployment(bench, harness, machines, "absent") as run:
        worker = await run.start(bootstrap=f"127.0.0.1:{port}", connect_timeout_seconds=0.8)
        assert await worker.exit_code() == 1
    assert f"no broker at 127.0.0.1:{port} answered within 0.8 s" in only_line(worker)


async def test_a_missing_topic_is_named(bench, harness, machines):
    async with deployment(bench, harness, machines, "missing") as run:
        worker = await run.start(topic_prefix="nowhere.")
        assert await worker.exit_code() == 1
    assert "topic nowhere.counts does not exist" in only_line(worker)


async def test_a_wrong_number_of_partitions_is_named(bench, harness, machines):
    made = harness.Deployment(
        bench, "uneven", f"{machines.__file__}:counting", {}, machines.counting(), {}, 1,
        {}, {"journal-counting": 3},
    )  # fmt: skip
    async with made as run:
        worker = await run.start()
        assert await worker.exit_code() == 1
    name = run.settings.physical("journal-counting")
    assert f"topic {name}: expected 1 partition, found 3" in only_line(worker)


async def test_the_journal_of_another_deployment_is_refused(bench, harness, machines):
    async with deployment(bench, harness, machines, "foreign") as run:
        run._arguments["deployment"] = "mine"
        worker = await run.start()
        assert await worker.exit_code() == 1
    assert "expected deployment mine, found test" in only_line(worker)


async def test_another_deployments_worker_is_refused_before_the_group_gives_it_anything(bench, harness, machines):
    """In the group it would cost its peers two rebalances, in each of which they answer nobody."""
    async with deployment(bench, harness, machines, "undisturbed") as run:
        healthy = await run.start()
        await run.taken_up(healthy)
        admin = AIOKafkaAdminClient(bootstrap_servers=bench.bootstrap)
        await admin.start()
        try:
            before = await admin.describe_consumer_groups([run.settings.group])
            run._arguments["deployment"] = "mine"
            other = await run.start()
            assert await other.exit_code() == 1
            after = await admin.describe_consumer_groups([run.settings.group])
        finally:
            await admin.close()
        assert str(before) == str(after)
        assert "expected deployment mine, found test" in only_line(other)
        assert "at journal record" not in other.log.read_text(encoding="utf-8")


async def test_a_worker_that_is_killed_and_started_again_disturbs_no_peer(bench, harness, machines):
    """The group never notices: its session is longer than the test, and its generation stays what it was."""
    async with deployment(bench, harness, machines, "restarted") as run:
        first = await run.start(datadir=str(run.settings.datadir / "one"), session_timeout_seconds=1800.0)
        # Whoever came second would move partitions of a peer that has them already.
        await run.taken_up(first)
        peer = await run.start(datadir=str(run.settings.datadir / "two"), session_timeout_seconds=1800.0)
        await peer.logged("at journal record", harness.PATIENCE_SECONDS)
        await run.folded_all()
        taken_up = peer.log.read_text(encoding="utf-8").count("at journal record")
        first.kill(signal.SIGKILL)
        await first.exit_code()
        again = await run.start(datadir=str(run.settings.datadir / "one"), session_timeout_seconds=1800.0)
        await again.logged("at journal record", harness.PATIENCE_SECONDS)
        await run.append({("events", p): EVENTS for p in range(2)})
        await run.folded_all()
        assert peer.log.read_text(encoding="utf-8").count("at journal record") == taken_up
        for worker in (again, peer):
            worker.kill(signal.SIGTERM)
            assert await worker.exit_code() == 0, worker.log.read_text(encoding="utf-8")[-3000:]
        audit = await run.audit()
    assert audit.off_chain == 0
    assert {p: places["events", p] for p, places in audit.positions.items()} == {0: 120, 1: 120}


async def test_a_worker_that_gets_no_partition_says_why_and_ends(bench, harness, machines):
    async with deployment(bench, harness, machines, "spare", partitions=1) as run:
        owner = await run.start()
        await owner.logged("at journal record")
        spare = await run.start(join_timeout_seconds=2)
        codes = await asyncio.wait(
            [asyncio.create_task(w.exit_code()) for w in (owner, spare)], return_when=asyncio.FIRST_COMPLETED
        )
        assert {task.result() for task in codes[0]} == {1}
        idle = spare if spare.exited.done() else owner
        assert "held no partition of events within" in only_line(idle)
        for task in codes[1]:
            task.cancel()


@pytest.mark.parametrize("seconds", [0.2, 1801.0])
async def test_a_session_that_the_broker_does_not_take_ends_the_worker(bench, harness, machines, seconds):
    async with deployment(bench, harness, machines, f"session-{seconds:g}") as run:
        worker = await run.start(session_timeout_seconds=seconds, heartbeat_seconds=0.05)
        assert await worker.exit_code() == 1
    assert f"expected the broker to accept a session of {seconds:g} s, it does not" in only_line(worker)


async def test_workers_that_share_a_folder_are_two_members_and_who_ends_leaves_the_other_everything(
    bench, harness, machines
):
    async with deployment(bench, harness, machines, "shared-folder") as run:
        first = await run.start(session_timeout_seconds=1800.0)
        await run.taken_up(first)
        second = await run.start(session_timeout_seconds=1800.0)
        await second.logged("at journal record", harness.PATIENCE_SECONDS)
        first.kill(signal.SIGTERM)
        assert await first.exit_code() == 0
        await second.logged(
            "partition 0: at journal record", harness.PATIENCE_SECONDS, "partition 1: at journal record"
        )
        await run.folded_all()


async def test_a_metrics_port_in_use_is_named(bench, harness, machines):
    port = int(bench.bootstrap.rpartition(":")[2])
    async with deployment(bench, harness, machines, "taken") as run:
        worker = await run.start(metrics_port=port)
        assert await worker.exit_code() == 1
    assert f"metrics cannot be served on 127.0.0.1 port {port}: Address already in use" in only_line(worker)


@pytest.mark.parametrize("schedule", ["live", "fixed"])
async def test_a_record_that_names_what_is_not_there_is_refused_and_its_partition_goes_on(
    bench, harness, machines, schedule
):
    left = [[1, 0], [2, 10**9], [4, 1], [8, 10**6], [16, 0]]
    logs = {
        ("left", 0): [(1_000_000 + number, machines.pack(value)) for number, value in enumerate(left)],
        ("right", 0): [(999_000, b"0"), (999_001, b"0")],
    }
    run = harness.Deployment(
        bench, f"named-{schedule}", f"{machines.__file__}:joining", {}, machines.joining(), logs, 1,
        {"schedule": schedule, "named_wait_seconds": 0.5}, {"rules": 1},
    )  # fmt: skip
    async with run:
        worker = await run.start()
        await run.ends_at_least({("joined", 0): 3})
        worker.kill(signal.SIGTERM)
        assert await worker.exit_code() == 0
        await run.audit()  # what the journal holds is folded again, without a clock and without asking
        joined = await run.values_of(("joined", 0))
        dead = await run.values_of(("dead", 0))
    assert [machines.json.loads(value)[1] for value in joined] == [0, 2, 4]
    assert [machines.json.loads(value)[2:] for value in dead] == [[1, "not_there"], [3, "not_there"]]
    lines = [line for line in worker.log.read_text(encoding="utf-8").splitlines() if "names a record of" in line]
    assert len(lines) == 1, lines
    assert "names a record of right that does not exist" in lines[0]
    assert "1000000" not in lines[0]


async def wipe_events(run: Any) -> None:
    """Make the topic of a deployment with one partition again, with fewer records than were folded."""
    admin = AIOKafkaAdminClient(bootstrap_servers=run.settings.bootstrap)
    await admin.start()
    name = run.settings.physical("events")
    await admin.delete_topics([name])
    await admin.create_topics([NewTopic(name, 1, 1)])
    await admin.close()
    await run.append({("events", 0): EVENTS[:3]})


async def test_an_input_that_is_wiped_under_a_running_worker_stops_that_partition(bench, harness, machines):
    async with deployment(bench, harness, machines, "wiped-at-work", partitions=1, schedule="live") as run:
        worker = await run.start()
        await run.folded_all()
        before = await run.output_ends()
        await wipe_events(run)
        await worker.logged("partition 0 stopped (topics_replaced): events/0: was folded up to offset 60")
        assert await run.output_ends() == before, "nothing was folded of another log"
        worker.kill(signal.SIGTERM)
        await worker.exit_code()


async def test_altered_inputs_stop_that_partition_and_nothing_is_sent_for_it(bench, harness, machines):
    async with deployment(bench, harness, machines, "altered") as run:
        await run.finish()
        before = await run.output_ends()
    # The same journal over other inputs: another set of topics, into which the journal is copied.
    altered = deployment(bench, harness, machines, "altered-copy")
    altered._logs = {("events", 0): [(t, b"k7") for t, _ in EVENTS], ("events", 1): EVENTS}
    altered.copied_journals = {p: await run.values_of(("journal-counting", p)) for p in range(2)}
    async with altered:
        worker = await altered.start()
        await worker.logged("partition 0 stopped (replay_mismatch)")
        await worker.logged("partition 1: at journal record")
        waiting = Patience(60)
        while not (sent := [v for p in range(2) for v in await altered.values_of(("counts", p))]):
            assert not waiting.over, "the other partition does not work"
            await asyncio.sleep(0.1)
        ends = await altered.output_ends()
        assert ends["journal-counting", 0] == before["journal-counting", 0]
        assert not [v for v in sent if v.startswith(b"[0,")]
        worker.kill(signal.SIGTERM)
        assert await worker.exit_code() == 0
    assert "Traceback" not in worker.log.read_text(encoding="utf-8")


async def test_wiped_topics_are_noticed_by_the_snapshot(bench, harness, machines, tmp_path):
    shared = str(tmp_path / "shared")
    async with deployment(bench, harness, machines, "wiped-a", deployment="wiped", datadir=shared, role="r") as run:
        await run.finish()
    fresh = deployment(bench, harness, machines, "wiped-b", deployment="wiped", datadir=shared, role="r")
    fresh.with_genesis = False
    async with fresh:
        worker = await fresh.start()
        assert await worker.exit_code() == 1
    assert "the topics were wiped or replaced" in only_line(worker)


async def test_a_broker_that_goes_away_and_comes_back_is_waited_for(bench, harness, machines):
    port = int(bench.bootstrap.rpartition(":")[2])
    async with (
        harness.Tunnel(port) as tunnel,
        deployment(bench, harness, machines, "away", schedule="live") as run,
    ):
        worker = await run.start(bootstrap=f"127.0.0.1:{tunnel.port}")
        await run.folded_all()
        tunnel.open = False
        tunnel.cut()
        await run.append({("events", p): EVENTS for p in range(2)})
        await asyncio.sleep(2.5)
        tunnel.open = True
        await run.folded_all()
        worker.kill(signal.SIGTERM)
        assert await worker.exit_code() == 0, worker.log.read_text(encoding="utf-8")[-3000:]
        audit = await run.audit()
    assert audit.off_chain == 0
    assert {p: places["events", p] for p, places in audit.positions.items()} == {0: 120, 1: 120}


async def test_a_worker_that_has_handed_over_ends_though_its_stream_client_does_not(bench, harness, machines):
    made = harness.Deployment(
        bench, "clinging", f"{machines.__file__}:clinging", {"targets": 1}, machines.counting(targets=1),
        {("events", 0): EVENTS}, 1,
    )  # fmt: skip
    async with made as run:
        worker = await run.start(snapshot_interval_seconds=3600)
        await run.folded_all()
        worker.kill(signal.SIGTERM)
        assert await worker.exit_code() == 0, worker.log.read_text(encoding="utf-8")[-3000:]
        assert "everything is saved and committed, ending without it" in worker.log.read_text(encoding="utf-8")
        again = await run.start()
        await run.taken_up(again)
        assert "(0 replayed" in again.log.read_text(encoding="utf-8"), "the state was saved before"
        again.kill(signal.SIGKILL)
        await run.audit()


async def test_a_worker_shows_why_it_ends_though_its_stream_client_does_not_end(bench, harness, machines):
    made = harness.Deployment(
        bench, "clinging-told", f"{machines.__file__}:clinging", {"targets": 1}, machines.counting(targets=1),
        {("events", 0): EVENTS}, 1,
    )  # fmt: skip
    port = harness.free_port()
    async with made as run:
        worker = await run.start(metrics_port=port, tell_seconds=20, schedule="live")
        await run.folded_all()
        await wipe_events(run)
        why = f'hushstream_exit_reason{{reason="topics_replaced",role="{run.values["role"]}"}} 1.0'
        waiting = Patience(60)
        while why not in await asyncio.to_thread(page, port):
            assert not waiting.over, worker.log.read_text(encoding="utf-8")[-3000:]
            await asyncio.sleep(0.1)
        assert await worker.exit_code() == 1
        said = worker.log.read_text(encoding="utf-8")
    assert "has not ended within 21 s: everything is saved and committed, ending without it" in said


async def test_two_owners_that_race_for_the_genesis_agree_on_the_first(bench, harness, machines):
    made = deployment(bench, harness, machines, "race")
    made.with_genesis = False
    async with made as run:
        # Two groups, so that both workers own all partitions at once.
        first, second = await asyncio.gather(run.start(group="one"), run.start(group="two"))
        await run.folded_all()
        # One may have folded all before the other has begun, and SIGTERM ends a Python that still starts up.
        for worker in (first, second):
            await run.taken_up(worker)
        for worker in (first, second):
            worker.kill(signal.SIGTERM)
            assert await worker.exit_code() == 0, worker.log.read_text(encoding="utf-8")[-3000:]
        audit = await run.audit()
    assert {p: places["events", p] for p, places in audit.positions.items()} == {0: 60, 1: 60}


async def test_a_working_worker_shows_its_counts_on_two_endpoints(bench, harness, machines):
    public, zone = harness.free_port(), harness.free_port()
    async with deployment(bench, harness, machines, "shown") as run:
        worker = await run.start(metrics_port=public, zone_metrics_port=zone)
        await run.folded_all()
        role = run.values["role"]
        caught_up = f'hushstream_consumer_lag_records{{partition="0",role="{role}",topic="events"}} 0.0'
        waiting = Patience(60)
        while caught_up not in (first := await asyncio.to_thread(page, public)):  # gauges are taken once a second
            assert not waiting.over, first
            await asyncio.sleep(0.2)
        pages = [await asyncio.to_thread(page, port) for port in (public, zone)]
        worker.kill(signal.SIGTERM)
        assert await worker.exit_code() == 0
    for name in ("assigned", "held"):
        assert f'hushstream_partitions_{name}{{role="{role}"}} 2.0' in pages[0]
    assert f'hushstream_journal_appends_total{{role="{role}"}} 8.0' in pages[0]
    assert caught_up in pages[0]
    assert f'hushstream_events_total{{outcome="other",role="{role}"}} 120.0' in pages[1]
    assert "hushstream_events_total" not in pages[0]


def page(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=patience(5)) as answer:
        return str(answer.read().decode())


SURROUNDINGS = Path(__file__).parents[1] / "chaos" / "harness" / "surroundings.py"


async def test_a_worker_whose_disk_is_full_lets_go_and_comes_back_when_there_is_room(bench, harness, machines):
    """No mark can be noted, so nothing may be released: a peer with another disk does the work meanwhile."""
    folder = bench.directory / "full-disk"
    disk = {"folder": str(folder), "kibibytes": 4096}
    async with deployment(bench, harness, machines, "full") as run:
        # What a snapshot gives back that could not be written would be enough for a mark: the disk is kept full.
        filled = {"stage": "released", "partition": 0, "sequence": 1, "call": f"{SURROUNDINGS}:keep_full"}
        sick = await run.start_armed(
            [{**filled, "arguments": {"folder": str(folder)}}],
            before={"call": f"{SURROUNDINGS}:small_disk", "arguments": disk},
            datadir=str(folder), let_go_seconds=0.5,
        )  # fmt: skip
        await sick.logged("observer: call")
        await run.append({("events", p): [(2_000_000, b"k1")] * 16 for p in range(2)})
        await sick.logged("left the group: nothing could be released for 0.5 s")
        assert "not released" in sick.log.read_text(encoding="utf-8")
        peer = await run.start(datadir=str(bench.directory / "other-disk"))
        await run.taken_up(peer)
        await run.folded_all()
        (Path(f"/proc/{sick.pid}/root") / folder.relative_to("/") / "filler").unlink()
        await sick.logged("the state folder has room again: joining the group")
        peer.kill(signal.SIGTERM)
        assert await peer.exit_code() == 0
        before = sick.log.read_text(encoding="utf-8").count("at journal record")
        await run.append({("events", p): [(3_000_000, b"k1")] * 16 for p in range(2)})
        await run.folded_all()
        assert sick.log.read_text(encoding="utf-8").count("at journal record") > before
        sick.kill(signal.SIGTERM)
        assert await sick.exit_code() == 0


async def test_a_state_folder_that_was_deleted_is_made_again(bench, harness, machines):
    folder = bench.directory / "deleted"
    async with deployment(bench, harness, machines, "deleted", partitions=1) as run:
        worker = await run.start(datadir=str(folder))
        await run.folded_all()
        shutil.rmtree(folder)
        await run.append({("events", 0): [(2_000_000, b"k1")] * 16})
        await run.folded_all()
        worker.kill(signal.SIGTERM)
        assert await worker.exit_code() == 0, worker.log.read_text(encoding="utf-8")[-3000:]
    assert (folder / "deleted" / "deleted" / "0.snapshot").exists()
    assert list((folder / "release-marks").glob("*.json")), "marks are noted again"
