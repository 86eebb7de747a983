"""The faults, one function each: what is done, and what there is to remark on it."""

from __future__ import annotations

import asyncio
import re
import resource
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.protocol.group import MemberAssignment
from aiokafka.structs import TopicPartition

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "deploy" / "kafka"), str(Path(__file__).parent)]

import local  # noqa: E402
from bomb import gzip_bomb, produce  # noqa: E402
from scene import COMMAND, DIMENSION, NAME, PARTITIONS, Learner, Scene  # noqa: E402

from hushstream.agents.kafka.logs import LogReader  # noqa: E402
from hushstream.ops.connection import Connection  # noqa: E402
from hushstream.schemas import codec  # noqa: E402
from hushstream.schemas.batches import encode_context_batch  # noqa: E402

PUBLISHED_SECONDS = 15.0
"""Of small states that change all the time, several are published by then."""
DEAD_SECONDS = 5.0
SUPERVISOR_SECONDS = 1.0
"""After which one starts again what has ended."""


@dataclass(frozen=True)
class Fault:
    """What is done, and how long the answers may stay away."""

    name: str
    aim_seconds: float
    act: Callable[[Scene], Awaitable[str]]


async def killed(scene: Scene) -> str:
    await scene.first.end(signal.SIGKILL)
    return ""


async def restarted(scene: Scene) -> str:
    """As every supervisor does; what the other worker has stays its own meanwhile."""
    others = await partitions_of(scene, scene.second)
    await scene.first.end(signal.SIGKILL)
    await asyncio.sleep(SUPERVISOR_SECONDS)
    await scene.first.start()
    dark = await scene.questions.dark_since(scene.moved, partitions=others)
    scene.further.append(("the same: partitions of the healthy peer", 1, dark))
    return (
        f"it had {PARTITIONS - len(others)} of {PARTITIONS} partitions, and starts again after {SUPERVISOR_SECONDS:g} s"
    )


async def partitions_of(scene: Scene, learner: Learner) -> set[int]:
    """Which partitions the group has given to a learner."""
    (member_id,) = [path.read_text(encoding="utf-8") for path in learner.state.glob("members/*/*.member")]
    admin = AIOKafkaAdminClient(bootstrap_servers=scene.bootstrap)
    await admin.start()
    try:
        (answer,) = await admin.describe_consumer_groups([f"{NAME}.learner"])
    finally:
        await admin.close()
    (group,) = answer.to_object()["groups"]
    given = {member["member_id"]: member["member_assignment"] for member in group["members"]}[member_id]
    return {partition for _, found in MemberAssignment.decode(given).assignment for partition in found}


async def rolled(scene: Scene) -> str:
    for learner in (scene.first, scene.second):
        await learner.end()
        await learner.start()
    return ""


async def only_broker_killed(scene: Scene) -> str:
    began = time.monotonic()
    await asyncio.to_thread(local.kill, scene.kafka, 1)
    await asyncio.sleep(DEAD_SECONDS)
    await asyncio.to_thread(local.start, scene.kafka, 1)
    return f"it took a record again {time.monotonic() - began:.1f} s after it was killed: what is more is ours"


async def leader_killed(scene: Scene) -> str:
    leaders, coordinator = await _roles_of_brokers(scene)
    one = leaders[0]
    await asyncio.to_thread(local.kill, scene.kafka, one)
    await asyncio.sleep(DEAD_SECONDS)
    await asyncio.to_thread(local.start, scene.kafka, one)
    others = " and coordinated the group" if one == coordinator else ""
    return f"it led {leaders.count(one)} of {len(leaders)} inputs and journals{others}"


async def _roles_of_brokers(scene: Scene) -> tuple[Sequence[int], int]:
    """Who leads each partition of inputs and journal, and who coordinates the learners' group."""
    admin = AIOKafkaAdminClient(bootstrap_servers=scene.bootstrap)
    await admin.start()
    try:
        topics = await admin.describe_topics([scene.topic(name) for name in ("contexts", "clicks", "decisions")])
        leaders = [partition["leader"] for topic in topics for partition in topic["partitions"]]
        return leaders, await admin.find_coordinator(f"{NAME}.learner")
    finally:
        await admin.close()


async def state_deleted(scene: Scene) -> str:
    for learner in (scene.first, scene.second):
        shutil.rmtree(learner.state, ignore_errors=True)
        await learner.end(signal.SIGKILL)
    await asyncio.gather(scene.first.start(), scene.second.start())
    return "both learners, the group's session included"


async def impossible(scene: Scene) -> str:
    fields = {"line": "private", "eligible": b"", "baseline": -1, "after_click": 10**9}
    for partition in range(PARTITIONS):
        context = {"event_id": f"bad-{partition}", "user": "nobody", "context": bytes(4 * DIMENSION), **fields}
        await scene.log.append("contexts", partition, codec.encode("Context", context))
    return "one in each partition"


async def bomb(scene: Scene) -> str:
    batch = await asyncio.to_thread(gzip_bomb, 1000 << 20)
    scene.moved = time.monotonic()
    taken = []
    for partition in range(PARTITIONS):
        began = time.monotonic()
        await produce(scene.bootstrap, scene.topic("contexts"), partition, batch)
        taken.append(time.monotonic() - began)
    await asyncio.sleep(5)
    peak = max(learner.peak_megabytes() for learner in (scene.first, scene.second))
    return (
        f"one in each partition, {len(batch) >> 10} KiB on the wire: the broker unpacked one for up to "
        f"{max(taken):.1f} s before it took it; a learner's peak: {peak} MB"
    )


async def garbage(scene: Scene) -> str:
    draw = np.random.default_rng(1)
    good = encode_context_batch(["a"], ["b"], np.eye(1, DIMENSION), track="private")
    bad_phase = codec.encode("Seal", {"phase": -3, "origin": -1, "config_digest": bytes(16)})
    kinds = [b"", b"\0", b"\xc3\x01", good[:-1], good + b"x", good[:12], bad_phase, codec.COMPRESSED, bytes(500_000)]
    kinds += [draw.bytes(length) for length in (10, 1000, 900_000)]
    for kind in kinds:
        for topic in ("contexts", "clicks"):
            for partition in range(PARTITIONS):
                await scene.log.append(topic, partition, kind)
    return f"{len(kinds)} kinds on both inputs"


async def foreign_records(scene: Scene) -> str:
    """In all that learners follow; whoever takes a partition up meets them again."""
    unknown = bytes.fromhex("c301") + b"\xee" * 58
    for topic, partitions in (("models", 1), ("decisions", PARTITIONS)):
        for partition in range(partitions):
            for value in (unknown, b"of nobody", bytes(500_000)):
                await scene.log.append(topic, partition, value)
    for learner in (scene.first, scene.second):
        await learner.end()
        await learner.start()
    noted = await command(scene, "logs", "repair", "foreign", "--role", "learner", "--write")
    return (
        f"60 bytes of an unknown schema, and others, in models and decisions; both learners started again; "
        f"`logs repair foreign`: {noted.splitlines()[-1]}"
    )


async def command(scene: Scene, *arguments: str) -> str:
    """What an operator's command says.

    Raises:
        RuntimeError: it failed.
    """
    return await _ran(*arguments, "--deployment", str(scene.folder / NAME), "--bootstrap", scene.bootstrap)


async def printed(words: str, *more: str) -> str:
    """What a command says that a worker has printed; it is run as it was printed, but for what is added to it.

    Raises:
        RuntimeError: it failed.
    """
    return await _ran(*shlex.split(words), *more)


async def _ran(*arguments: str) -> str:
    ran = await asyncio.create_subprocess_exec(
        str(COMMAND), *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await ran.communicate()
    if ran.returncode:
        raise RuntimeError(f"{' '.join(arguments)}: {said.decode()}")
    return said.decode().strip()


async def inputs_lost(scene: Scene) -> str:
    """Input that nobody has folded is gone: one command, which the refusal names."""
    await asyncio.gather(scene.first.end(), scene.second.end())
    await asyncio.sleep(1)
    await inputs_deleted(scene)
    words = scene.first.accepting(await scene.first.refused())
    scene.moved = time.monotonic()
    await asyncio.gather(scene.first.start(), scene.second.start())
    return f"{len(words)} times --accept-loss, from when both learners were started with it"


async def topics_made_again(scene: Scene) -> str:
    """Inputs are deleted and made again, empty: the refusal names a command for each partition, and what follows it."""
    await asyncio.sleep(PUBLISHED_SECONDS)  # more is folded than the new topic holds when it is asked for
    await asyncio.gather(scene.first.end(), scene.second.end())
    await made_again(scene, "contexts")
    named = set(re.findall(r"`hushstream (logs repair input [^`]*)`", await scene.first.refused()))
    for arguments in sorted(named):
        await printed(arguments)
    words = scene.first.accepting(await scene.first.refused())
    scene.moved = time.monotonic()
    await asyncio.gather(scene.first.start(), scene.second.start())
    return (
        f"contexts; {len(named)} times `logs repair input` and {len(words)} times --accept-loss, from when both "
        f"learners were started with it"
    )


async def made_again(scene: Scene, topic: str) -> None:
    """Delete a topic, and let the deployment make it again."""
    admin = AIOKafkaAdminClient(bootstrap_servers=scene.bootstrap)
    await admin.start()
    try:
        await admin.delete_topics([scene.topic(topic)])
    finally:
        await admin.close()
    await command(scene, "topics", "apply", "--no-acls")


async def marks_made_again(scene: Scene) -> str:
    """The topic of marks is deleted and made again, empty: a word for each partition, which the refusal names."""
    await asyncio.gather(scene.first.end(), scene.second.end())
    await made_again(scene, "marks-edge")
    words = scene.first.accepting(await scene.first.refused())
    scene.moved = time.monotonic()
    await asyncio.gather(scene.first.start(), scene.second.start())
    return f"{len(words)} times --accept-loss, from when both learners were started with it"


async def marks_lost(scene: Scene) -> str:
    """Records of nobody under the keys of marks, as compaction would leave them: one command, which is named."""
    await asyncio.gather(scene.first.end(), scene.second.end())
    places = [("marks-edge", partition) for partition in range(PARTITIONS)]
    async with LogReader(Connection(scene.bootstrap, f"{NAME}.").settings()) as reader:
        ends = await reader.end_offsets(places)
        reader.open(dict.fromkeys(places, 0))
        keys = {place: {one.key for one in await reader.fetched(place, 0, ends[place])} for place in places}
    async with AIOKafkaProducer(bootstrap_servers=scene.bootstrap) as producer:
        for (topic, partition), of_marks in keys.items():
            for key in sorted(of_marks):
                await producer.send_and_wait(scene.topic(topic), b"of nobody", key, partition)
    refusal = await scene.first.refused()
    named = set(re.findall(r"`hushstream (logs repair marks [^`]*)`", refusal))
    if not named:
        raise RuntimeError(f"expected a refusal that names `logs repair marks`, got {refusal}")
    for arguments in named:
        await printed(arguments, "--write")
    scene.moved = time.monotonic()
    await asyncio.gather(scene.first.start(), scene.second.start())
    return f"{len(named)} times `logs repair marks`, from when both learners were started again"


async def stopped(scene: Scene) -> str:
    scene.first.signal(signal.SIGSTOP)
    await asyncio.sleep(60)
    scene.first.signal(signal.SIGCONT)
    return "two owners at its end"


async def disk_full(scene: Scene) -> str:
    whole = resource.prlimit(scene.first.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
    await asyncio.sleep(15)
    resource.prlimit(scene.first.pid, resource.RLIMIT_FSIZE, whole)
    return "no file of one worker takes a byte for 15 s"


async def retention(scene: Scene) -> str:
    # Without its state, so that it must bring what it takes over.
    await scene.second.end()
    shutil.rmtree(scene.second.state, ignore_errors=True)
    await scene.second.start()
    await scene.questions.dark_since(time.monotonic())
    await inputs_deleted(scene)
    scene.moved = time.monotonic()
    await scene.first.end()
    return "to a peer that has never held it"


async def retention_and_start(scene: Scene) -> str:
    await scene.first.revive()
    await scene.second.end()
    await scene.questions.dark_since(time.monotonic())
    await inputs_deleted(scene)
    scene.moved = time.monotonic()
    await scene.first.end()
    shutil.rmtree(scene.second.state, ignore_errors=True)
    await scene.second.start()
    return "all partitions, to a worker that is only started then, without its state"


async def inputs_deleted(scene: Scene, partitions: Sequence[int] = range(PARTITIONS)) -> None:
    """As retention does with what is days old: all of it was folded, and lies in a state that was published since."""
    connection = Connection(scene.bootstrap, f"{NAME}.")
    async with LogReader(connection.settings()) as reader:
        ends = await reader.end_offsets([(topic, p) for topic in ("contexts", "clicks") for p in partitions])
    await asyncio.sleep(PUBLISHED_SECONDS)
    admin = AIOKafkaAdminClient(bootstrap_servers=scene.bootstrap)
    await admin.start()
    try:
        places = {TopicPartition(scene.topic(t), p): RecordsToDelete(end) for (t, p), end in ends.items()}
        await admin.delete_records(places)
    finally:
        await admin.close()


AS_KAFKA_COMES = (
    Fault("kill -9 of a worker, a peer alive (session 6 s)", 5, killed),
    Fault("kill -9 of a worker that a supervisor starts again after 1 s", 8, restarted),
    Fault("rolling restart", 3, rolled),
    Fault("the only broker killed for 5 s (broker session 9 s)", 10, only_broker_killed),
    Fault("state folders deleted, then kill -9", 10, state_deleted),
    Fault("context with an impossible `after_click`", 2, impossible),
    Fault("1 GB gzip value", 5, bomb),
    Fault("garbage of 12 kinds", 2, garbage),
    Fault("records of nobody in what learners follow", 5, foreign_records),
    Fault("SIGSTOP 60 s", 15, stopped),
    Fault("disk of one worker full, a peer healthy", 15, disk_full),
)
LAST = (
    Fault("partition moves after retention", 10, retention),
    Fault("partitions move after retention, no peer", 10, retention_and_start),
    Fault("topic of marks deleted and made again", 10, marks_made_again),
    Fault("records of nobody under the keys of marks", 10, marks_lost),
    Fault("inputs deleted before they were folded", 10, inputs_lost),
    Fault("an input deleted and made again", 10, topics_made_again),
)
"""Where they are not outlived nothing works after them."""
AS_THREE_COME = (Fault("one of three brokers, which leads, killed for 5 s (broker session 9 s)", 10, leader_killed),)
AS_ONE_OF_A_DEPLOYMENT = (Fault("the only broker killed for 5 s (broker session 1 s)", 10, only_broker_killed),)
AS_A_DEPLOYMENT_HAS_IT = (
    Fault("kill -9 of a worker, a peer alive (session 3 s)", 5, killed),
    Fault("one of three brokers, which leads, killed for 5 s (broker session 4 s)", 10, leader_killed),
)
"""Three brokers, three copies, and the sessions that deploy/docs/drills.md names."""
