"""What benchmarks compare with, each in a process of its own, which does nothing else.

    python -m hushstream.replay.bench.baselines vowpal PORT ARMS
    python -m hushstream.replay.bench.baselines aiohttp PORT ARMS
    python -m hushstream.replay.bench.baselines STREAM BOOTSTRAP SOURCE TARGET FOLDER

*Of the gateway.* Vowpal Wabbit behind aiohttp in one process, as a team may write it in a day. It answers the same call
as a gateway, ``POST /v1/decide``, with the same number of arms and features, and learns from ``POST /v1/reward``. It
has no log, no durability and no privacy, and forgets everything when it ends. It needs the package vowpalwabbit. Beside
it aiohttp alone, which answers every call with arm 0.

*Of streams.* ``forward`` is a bare Faust agent that copies every record, with the settings that make Faust fast
(uvloop, a linger, no web server, no sensor). All others (`STREAMS`) read the records of a learner's worker, contexts
and rewards one to a record, by the same codec, and decide and learn with the same kernel (`Answering`).
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterable, Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import web
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from hushstream.learners.linucb import LinUCB, LinUCBModel
from hushstream.schemas import codec

ARMS = DIMENSION = 25
"""The sizes of `Answering`."""

COMMIT_SECONDS, LINGER_MS = 0.5, 20
EXPLORED = 0.05


class Answering:
    """LinUCB, one model for all users: answers a context with its arm, learns a reward."""

    def __init__(self) -> None:
        """Start untrained."""
        self._kernel = LinUCB(ARMS, DIMENSION)
        self._state = LinUCBModel.cold(ARMS, DIMENSION).state()
        self._open: dict[str, tuple[Any, int]] = {}

    def __call__(self, value: bytes) -> bytes | None:
        """The answer to a record of Context; None to one of Feedback."""
        name, fields = codec.decode(value)
        event = fields["event_id"]
        if name == "Feedback":
            context, arm = self._open.pop(event)
            self._kernel.learn(self._state, context, arm, fields["reward"])
            return None
        context = np.frombuffer(fields["context"], np.float32)
        arm, _ = self._kernel.choose(self._state, context)
        self._open[event] = context, arm
        return f"{event} {arm}".encode()


class Policy:
    """An epsilon-greedy policy by Vowpal Wabbit's doubly robust learner of contextual bandits."""

    def __init__(self, arms: int, seed: int) -> None:
        """Make an untrained policy over ``arms`` arms."""
        options = f"--cb_explore {arms} --cb_type dr --epsilon {EXPLORED} --quiet --random_seed {seed}"
        self._workspace: Any = import_module("vowpalwabbit").Workspace(options)
        self._draws = random.Random(seed)
        self._asked: dict[str, tuple[str, int, float]] = {}

    def decide(self, event_id: str, context: list[float]) -> tuple[int, float]:
        """The arm for a context, and the probability with which it was drawn."""
        features = " ".join(f"{place}:{value:.6g}" for place, value in enumerate(context))
        chances = self._workspace.predict(f"| {features}")
        (arm,) = self._draws.choices(range(len(chances)), chances)
        self._asked[event_id] = (features, arm, chances[arm])
        return arm, chances[arm]

    def reward(self, event_id: str, reward: float) -> None:
        """Learn from a decision's reward; Vowpal Wabbit numbers arms from 1, and learns costs."""
        features, arm, chance = self._asked.pop(event_id)
        self._workspace.learn(f"{arm + 1}:{-reward}:{chance} | {features}")


class Constant:
    """A policy that has learned nothing and never will: arm 0."""

    def decide(self, event_id: str, context: list[float]) -> tuple[int, float]:
        """Arm 0, with certainty."""
        return 0, 1.0

    def reward(self, event_id: str, reward: float) -> None:
        """Nothing is learned."""


def application(policy: Policy | Constant) -> web.Application:
    """The web application with both calls of a policy."""

    async def decide(request: web.Request) -> web.Response:
        asked = await request.json()
        arm, chance = policy.decide(asked["event_id"], asked["context"])
        answer = {"event_id": asked["event_id"], "item": arm, "propensity": chance, "logged": True}
        return web.json_response(answer)

    async def reward(request: web.Request) -> web.Response:
        body = await request.json()
        policy.reward(body["event_id"], body["reward"])
        return web.json_response({"logged": True})

    made = web.Application()
    made.add_routes([web.post("/v1/decide", decide), web.post("/v1/reward", reward)])
    return made


def faust_app(send: str, bootstrap: str, source: str, target: str, folder: str) -> Any:
    """Make an app of Faust that works off partition 0 of a topic.

    Args:
        send: ``forward`` copies records by ``producer.send``; ``producer`` and ``topic`` answer them by that send.
        bootstrap, source, target: the broker and both topics.
        folder: for its files.
    """
    import faust

    app = faust.App(
        f"peer-{target}",
        broker=f"kafka://{bootstrap}",
        datadir=folder,
        store="memory://",
        consumer_auto_offset_reset="earliest",
        broker_commit_interval=COMMIT_SECONDS,
        producer_linger=LINGER_MS / 1000,
        stream_wait_empty=False,
        topic_allow_declare=False,
        topic_disable_leader=True,
        web_enabled=False,
    )
    topic, output = (
        app.topic(name, key_serializer="raw", value_serializer="raw", value_type=bytes) for name in (source, target)
    )
    answer: Callable[[bytes], bytes | None] = bytes if send == "forward" else Answering()

    async def work(stream: AsyncIterable[bytes]) -> None:
        by_topic, by_producer = output.send, app.producer.send
        async for value in stream:
            found = answer(value)
            if found is None:
                continue
            if send == "topic":
                await by_topic(value=found, partition=0)
            else:
                await by_producer(target, None, found, 0, None, None)

    app.agent(topic)(work)
    return app


def run_faust(send: str, *given: str) -> None:
    """Run Faust until the process is stopped."""
    import faust
    import uvloop

    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    app = faust_app(send, *given)
    app.finalize()
    faust.Worker(app, loglevel="info", override_logging=False).execute_from_commandline()


def run_quixstreams(bootstrap: str, source: str, target: str, folder: str) -> None:
    """Run Quix Streams until the process is stopped."""
    quix = import_module("quixstreams")
    app = quix.Application(
        bootstrap,
        consumer_group=f"peer-{target}",
        auto_offset_reset="earliest",
        commit_interval=COMMIT_SECONDS,
        state_dir=folder,
        auto_create_topics=False,
        producer_extra_config={"linger.ms": LINGER_MS},
    )
    into = app.topic(target, key_serializer="bytes", value_serializer="bytes")
    frame = app.dataframe(app.topic(source, key_deserializer="bytes", value_deserializer="bytes"))
    frame.apply(Answering()).filter(lambda found: found is not None).to_topic(into)
    app.run()


def run_bytewax(bootstrap: str, source: str, target: str, folder: str) -> None:
    """Run bytewax with recovery until the process is stopped."""
    from datetime import timedelta

    kafka, operators = import_module("bytewax.connectors.kafka"), import_module("bytewax.operators")
    recovery, answer = import_module("bytewax.recovery"), Answering()
    flow = import_module("bytewax.dataflow").Dataflow("peer")

    def answered(message: Any) -> Any:
        found = answer(message.value)
        return None if found is None else kafka.KafkaSinkMessage(None, found)

    read = operators.input("read", flow, kafka.KafkaSource([bootstrap], [source], tail=True, batch_size=1000))
    made = operators.filter_map("answer", read, answered)
    operators.output("write", made, kafka.KafkaSink([bootstrap], target, {"linger.ms": str(LINGER_MS)}))
    place = Path(folder, "recovery")
    place.mkdir()
    recovery.init_db_dir(place, 1)
    import_module("bytewax.testing").run_main(
        flow, epoch_interval=timedelta(seconds=COMMIT_SECONDS), recovery_config=recovery.RecoveryConfig(place)
    )


async def run_aiokafka(bootstrap: str, source: str, target: str) -> None:
    """Fetch, answer, flush and commit by hand, until the process is stopped."""
    answer, place = Answering(), TopicPartition(source, 0)
    reading = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=f"peer-{target}",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    async with reading as consumer, AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=LINGER_MS) as producer:
        consumer.assign([place])
        due = asyncio.get_running_loop().time()
        while True:
            for records in (await consumer.getmany(timeout_ms=LINGER_MS)).values():
                for record in records:
                    found = answer(record.value)
                    if found is not None:
                        await producer.send(target, found, partition=0)
            if due < asyncio.get_running_loop().time():
                await producer.flush()
                await consumer.commit()
                due = asyncio.get_running_loop().time() + COMMIT_SECONDS


def _run_aiokafka(bootstrap: str, source: str, target: str, folder: str) -> None:
    import uvloop

    uvloop.run(run_aiokafka(bootstrap, source, target))


STREAMS: Mapping[str, Callable[..., None]] = {
    "forward": partial(run_faust, "forward"),
    "faust-topic": partial(run_faust, "topic"),
    "faust-producer": partial(run_faust, "producer"),
    "quixstreams": run_quixstreams,
    "bytewax": run_bytewax,
    "aiokafka": _run_aiokafka,
}


def main(name: str, *given: str) -> None:
    """Serve or work on loopback until the process is stopped."""
    if name in STREAMS:
        STREAMS[name](*given)
        return
    port, arms = map(int, given)
    policy = Policy(arms, 1) if name == "vowpal" else Constant()
    web.run_app(application(policy), host="127.0.0.1", port=port, print=None, access_log=None)


if __name__ == "__main__":
    main(*sys.argv[1:])
