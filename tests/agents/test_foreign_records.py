"""Real workers on the embedded broker, with records of nobody in all that they follow, and with losses: all go on."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from hushstream.broker import EmbeddedBroker
from hushstream.client import connect
from patience import Patience, patience

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

COMMAND = str(Path(sys.executable).with_name("hushstream"))
NAME, PATIENCE_SECONDS = "shared", 60.0
CONFIGURATION = f"""\
deployment: {NAME}
items: {{capacity: 3}}
features: {{dimension: 4}}
expected_slots: 10000
encoder: {{codes: 2}}
partitions: {{learner: 1, shuffler: 1}}
"""
GARBAGE = {
    "60 bytes of an unknown schema": bytes.fromhex("c301") + b"\xee" * 58,
    "bytes": b"of nobody",
    "nothing": b"",
    "900 kB": bytes(900_000),
}
FOLLOWED = ("models", "decisions", "marks-edge", "state-learner", "state-aggregator")


class Worker:
    """The process of one role."""

    def __init__(self, folder: Path, bootstrap: str, role: str) -> None:
        self._log = folder / f"{role}.log"
        self._command = [
            COMMAND, "worker", role, "--deployment", str(folder / NAME), "--bootstrap", bootstrap,
            "--state", str(folder / f"state-{role}"), "--snapshot-interval", "1",
        ]  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None

    async def start(self, *options: str, says: str = "at journal record") -> None:
        known = self.said().count(says)
        with self._log.open("ab") as log:
            self.process = subprocess.Popen([*self._command, *options], stdout=log, stderr=log)  # noqa: ASYNC220
        waiting = Patience(PATIENCE_SECONDS)
        while self.said().count(says) == known:
            assert not waiting.over, self.said()
            assert self.process.poll() is None or says in self.said(), self.said()
            await asyncio.sleep(0.1)

    async def end(self, number: int = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            await asyncio.to_thread(self.process.wait)

    def said(self) -> str:
        return self._log.read_text(encoding="utf-8") if self._log.exists() else ""


@pytest_asyncio.fixture(loop_scope="module")
async def deployed(tmp_path: Path) -> AsyncIterator[tuple[str, Worker, Worker]]:
    async with EmbeddedBroker() as broker:
        (tmp_path / "shared.yaml").write_text(CONFIGURATION, encoding="utf-8")
        place = ["--deployment", str(tmp_path / NAME), "--bootstrap", broker.bootstrap]
        for arguments in (
            ["prepare", str(tmp_path / "shared.yaml"), str(tmp_path / NAME)],
            ["keys", "generate", str(tmp_path / NAME / "keys")],
            ["topics", "apply", *place, "--no-acls"],
        ):
            await asyncio.to_thread(subprocess.run, [COMMAND, *arguments], check=True, stdout=subprocess.DEVNULL)
        workers = [Worker(tmp_path, broker.bootstrap, role) for role in ("learner", "aggregator")]
        yield broker.bootstrap, workers[0], workers[1]
        for worker in workers:
            await worker.end(signal.SIGKILL)


async def put(bootstrap: str) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()
    try:
        for topic in FOLLOWED:
            for value in GARBAGE.values():
                await producer.send_and_wait(f"{NAME}.{topic}", value, key=b"of nobody", partition=0)
    finally:
        await producer.stop()


@pytest.mark.process
async def test_garbage_before_between_and_after_ends_no_worker_and_is_said(deployed):
    bootstrap, learner, aggregator = deployed
    await put(bootstrap)  # before a journal has begun
    await asyncio.gather(learner.start(), aggregator.start())
    async with connect(bootstrap, NAME) as client:

        async def asks(name: str) -> None:
            seconds = patience(PATIENCE_SECONDS)
            decision = await client.decide(name, "user", np.full(4, 0.25), timeout=seconds)
            assert decision.policy in ("model", "baseline"), learner.said()

        await asks("first")
        await put(bootstrap)  # while they work
        await asks("second")
        waiting = Patience(PATIENCE_SECONDS)
        while f"models/0 offset {2 * len(GARBAGE)}" not in aggregator.said() or "models/0 offset" not in learner.said():
            assert not waiting.over, aggregator.said() + learner.said()
            await asyncio.sleep(0.1)
        await learner.end(signal.SIGKILL)
        await aggregator.end(signal.SIGKILL)
        await asyncio.gather(learner.start(), aggregator.start())  # and when they begin again
        await asks("third")
    for worker in (learner, aggregator):
        assert worker.process is not None
        assert worker.process.poll() is None, worker.said()
    waiting = Patience(PATIENCE_SECONDS)
    while not all(f"{topic}/0 offset" in learner.said() for topic in ("decisions", "marks-edge")):
        assert not waiting.over, learner.said()
        await asyncio.sleep(0.1)
    assert "skipped a record of 60 bytes" in aggregator.said()


async def hushstream(folder: Path, bootstrap: str, *arguments: str) -> tuple[int, str]:
    return await run(*arguments, "--deployment", str(folder / NAME), "--bootstrap", bootstrap)


async def run(*arguments: str) -> tuple[int, str]:
    done = await asyncio.to_thread(
        subprocess.run, [COMMAND, *arguments], check=False, capture_output=True, text=True, encoding="utf-8"
    )
    return done.returncode, done.stdout + done.stderr


async def deleted(bootstrap: str, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.delete_records({TopicPartition(f"{NAME}.{topic}", 0): RecordsToDelete(-1)})
    finally:
        await admin.close()


async def made_again(folder: Path, bootstrap: str, topic: str, records: int) -> None:
    """Delete a topic, let the deployment make it again, and write records that nobody can read."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.delete_topics([f"{NAME}.{topic}"])
    finally:
        await admin.close()
    found, said = await hushstream(folder, bootstrap, "topics", "apply", "--no-acls")
    assert found == 0, said
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for _ in range(records):
            await producer.send_and_wait(f"{NAME}.{topic}", b"later", partition=0)


async def end_of(bootstrap: str, topic: str) -> int:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap)
    await consumer.start()
    try:
        at = TopicPartition(f"{NAME}.{topic}", 0)
        return int((await consumer.end_offsets([at]))[at])
    finally:
        await consumer.stop()


@pytest.mark.process
async def test_every_loss_names_the_command_that_mends_it_and_that_command_does(deployed, tmp_path):
    bootstrap, learner, _ = deployed
    await learner.start()
    async with connect(bootstrap, NAME) as client:

        async def asks(name: str) -> None:
            seconds = patience(PATIENCE_SECONDS)
            decision = await client.decide(name, "user", np.full(4, 0.25), timeout=seconds)
            assert decision.policy in ("model", "baseline"), learner.said()

        await asks("first")
        await put(bootstrap)
        await asks("second")
        # The worker names the command; what is foreign is listed, and verify minds it until a note names it.
        waiting = Patience(PATIENCE_SECONDS)
        while "`hushstream logs check --role learner --deployment " not in learner.said():
            assert not waiting.over, learner.said()
            await asyncio.sleep(0.1)
        await learner.end()
        found, said = await hushstream(tmp_path, bootstrap, "logs", "check", "--role", "shuffler")
        assert found == 0, said
        assert "Read journal-shuffler, marks-shuffler, state-shuffler: nothing foreign is there." in said
        assert re.search("Not read: window-sums, ledger.*`hushstream topics check --deployment ", said), said
        assert "0 records" not in said
        found, said = await hushstream(tmp_path, bootstrap, "logs", "check", "--role", "learner")
        assert (found, said.count("skipped by readers: no record of the journal's chain")) == (0, len(GARBAGE)), said
        assert (await hushstream(tmp_path, bootstrap, "verify", "--role", "learner"))[0] == 1
        found, said = await hushstream(tmp_path, bootstrap, "budget")
        assert found == 0, said
        found, said = await hushstream(tmp_path, bootstrap, "logs", "repair", "foreign", "--role", "learner", "--write")
        written = re.search(r"Done: (\d+) change", said)
        assert written is not None, said
        assert found == 0
        found, said = await hushstream(tmp_path, bootstrap, "verify", "--role", "learner")
        assert found == 0, said
        assert f"{len(GARBAGE) + int(written[1])} noted" in said
        found, said = await hushstream(tmp_path, bootstrap, "verify", "--role", "learner", "--from", "last-checkpoint")
        assert found == 0, said  # which asks the marks, too
        found, said = await hushstream(tmp_path, bootstrap, "logs", "check", "--role", "learner")
        assert said.count("noted before: no mark of this place") == len(GARBAGE)

        # Marks that are lost.
        await deleted(bootstrap, "marks-edge")
        refusal = "`hushstream logs repair marks --role learner --write --deployment "
        await learner.start(says=refusal)
        await learner.end()
        found, said = await hushstream(tmp_path, bootstrap, "logs", "repair", "marks", "--role", "learner", "--write")
        assert (found, "mark on marks-edge/0: " in said) == (0, True), said
        await learner.start()
        await asks("third")
        await learner.end()

        # Input that nobody has folded.
        await asyncio.gather(client.decide("lost", "user", np.full(4, 0.25), timeout=0.5), return_exceptions=True)
        await deleted(bootstrap, "contexts")
        await learner.start(says="--accept-loss 0:contexts/0:")
        await learner.end()
        word = learner.said().split("with --accept-loss ")[1].split(" ")[0]
        assert "the log begins at 4; 1 record was deleted before it was folded" in learner.said()
        assert "give the words of all partitions in one start" in learner.said()
        await learner.start("--accept-loss", word, "--accept-loss", "0:contexts/0:90-91")
        needless = [line for line in learner.said().splitlines() if "nothing was refused that --accept-loss" in line]
        assert [line.split("--accept-loss ")[1].split(" ")[0] for line in needless] == ["0:contexts/0:90-91"]
        await asks("fourth")
        await learner.end()
        await learner.start()  # and without the word
        await asks("fifth")
        await learner.end()
    found, said = await hushstream(tmp_path, bootstrap, "verify", "--role", "learner", "--from", "last-checkpoint")
    assert found == 0, said
    assert "an operator has accepted the loss of contexts/0 offsets 3 to 3 (1 record, appended between 20" in said

    # Both losses are shown to whoever asks what the deployment promises, with what each changes.
    folder, reading = tmp_path / NAME, ["--bootstrap", bootstrap, "--json"]
    for arguments in (["guarantee", str(folder)], ["statement", "--deployment", str(folder)]):
        _, said = await run(*arguments, *reading)
        marks, contexts = json.loads(said)["accepted_losses"]["found"]
        assert (marks["kind"], marks["guarantee_changed"], marks["checked"]) == ("journal", True, True)
        lost = contexts["note"]
        assert (lost["source"][0], lost["low"], lost["high"]) == ("contexts", 3, 4)
        assert (contexts["guarantee_changed"], contexts["erasures_to_repeat"], contexts["checked"]) == (
            False,
            True,
            True,
        )
    _, said = await run("guarantee", str(folder), "--bootstrap", bootstrap, "--keys", str(tmp_path / "none"))
    assert "learner 0 went on without contexts/0 offsets 3 to 3 (1 record" in said
    assert "The privacy guarantee is unchanged: nothing was released from them" in said
    assert said.count("not checked: the key of its zone was not given") == 2


@pytest.mark.process
async def test_an_input_is_resumed_only_if_it_was_made_again_and_only_where_it_was_folded(deployed, tmp_path):
    """One mistyped offset wrote a thousand empty records into a whole topic, and its learner stopped for good."""
    bootstrap, learner, _ = deployed
    await learner.start()
    async with connect(bootstrap, NAME) as client:

        async def asks(name: str) -> None:
            seconds = patience(PATIENCE_SECONDS)
            decision = await client.decide(name, "user", np.full(4, 0.25), timeout=seconds)
            assert decision.policy in ("model", "baseline"), learner.said()

        await asks("first")
        await asks("second")
        resume = ("logs", "repair", "input", "contexts", "--partition", "0", "--write", "--at")
        for at in ("1200", "1"):
            found, said = await hushstream(tmp_path, bootstrap, *resume, at)
            assert found == 1, said
            assert "expected contexts/0 to be deleted and created again, got the log that was folded" in said
        assert await end_of(bootstrap, "contexts") == 2
        await learner.end()
        await made_again(tmp_path, bootstrap, "contexts", records=8)  # it is longer now than what was folded
        await learner.start(says="topics_replaced")
        await learner.end()
        found, said = await hushstream(tmp_path, bootstrap, *resume, "1200")
        assert (found, "was folded (2 by decisions/0), got 1200" in said) == (1, True), said
        assert await end_of(bootstrap, "contexts") == 8
        found, said = await hushstream(tmp_path, bootstrap, *resume, "2")
        assert found == 0, said
        await learner.start("--accept-loss", "0:contexts/0:2-3")
        await asks("third")
