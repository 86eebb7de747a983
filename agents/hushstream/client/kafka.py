"""The client's log on Kafka: one idempotent producer, one consumer without a group on the decisions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import ClusterAuthorizationFailedError, KafkaConnectionError, KafkaError

from hushstream.agents.errors import DENIED
from hushstream.agents.kafka.administration import READ, WRITE, check_rights, check_version, lacking, why_unreachable
from hushstream.agents.kafka.logs import as_records, batches_stay_compressed
from hushstream.agents.process import RateLimitedLog, limit_warnings
from hushstream.agents.security import Cluster, Security
from hushstream.agents.worker.deployment import load
from hushstream.client.client import Client
from hushstream.client.logs import AnswersFollowed, Linger
from hushstream.engine.declare.declaration import DECISIONS, Conversation, System, conversation_of
from hushstream.engine.records import InputRecord
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import physical

_WHY_SECONDS = 5.0
_GENESIS_SECONDS = 5.0
_START_SECONDS = 30.0
"""Timeout of the start: a broker that answers only some requests would make it wait for ever."""

_READ_MILLISECONDS = 500
_log = logging.getLogger(__name__)


class KafkaEventLog:
    """An `EventLog` on a Kafka cluster."""

    def __init__(
        self,
        bootstrap: str,
        prefix: str,
        *,
        linger_seconds: float = 0.002,
        security: Security | None = None,
        topics: Conversation = DECISIONS,
        digest: bytes | None = None,
    ) -> None:
        """Name the cluster and the deployment's topic prefix.

        Args:
            bootstrap: ``host:port`` of one or more brokers, separated by commas.
            prefix: prefix of the deployment's topic names.
            linger_seconds: how long a record may wait for others to share a batch; twice as long at a high rate.
            security: SASL and TLS; `hushstream.agents.security.read_security` reads them from a file.
            topics: topics of requests, feedback and answers.
            digest: of the application's configuration; that of the deployment must be equal.

        Raises:
            PlaintextRefused: contexts and clicks would leave this machine unencrypted.
        """
        self._cluster = Cluster(bootstrap, security or Security())
        self._cluster.require_encryption()
        self._prefix = prefix
        self._topics = topics
        self._digest = digest
        self._linger_seconds = linger_seconds
        self._lingers: dict[tuple[str, int], Linger] = {}
        self._producer: AIOKafkaProducer | None = None
        self._replacing = asyncio.Lock()
        self._replaced: set[asyncio.Task[None]] = set()
        self._consumer: AIOKafkaConsumer | None = None
        self._public: AIOKafkaConsumer | None = None
        self._public_free = asyncio.Lock()
        self._answers: AnswersFollowed | None = None
        self._reader: asyncio.Task[None] | None = None
        self._partitions = 0
        self._limited_log = RateLimitedLog(_log)

    async def start(self, on_answers: Callable[[int, int, bytes], None]) -> None:
        """Connect. From then on ``on_answers`` gets the answers of each partition that this client has asked in.

        Raises:
            AccessDenied: the client's access rules are missing.
            HushstreamError: no broker answers, the deployment's topics do not exist there, or its configuration is
                another.
        """
        limit_warnings("aiokafka")
        self._producer = self._make_producer()
        self._consumer = AIOKafkaConsumer(
            auto_offset_reset="latest",
            key_deserializer=batches_stay_compressed,
            enable_auto_commit=False,
            fetch_max_wait_ms=100,
            **self._cluster.client_options(),
        )
        try:
            async with asyncio.timeout(_START_SECONDS):
                await self._producer.start()
                await self._consumer.start()
                await check_version(self._cluster, _START_SECONDS)
                await self._assign()
        except TimeoutError:
            await self.stop()
            raise HushstreamError(
                f"client: expected {self._cluster.bootstrap} to answer within {_START_SECONDS:g} s, it did not; its "
                f"brokers may be out of reach at the addresses that they name, or a partition has no leader"
            ) from None
        except KafkaConnectionError as error:
            await self.stop()
            why = await why_unreachable(self._cluster, _WHY_SECONDS)
            raise HushstreamError(
                f"client: expected a Kafka broker at {self._cluster.bootstrap}, none answered{why}"
            ) from error
        except ClusterAuthorizationFailedError:
            # Whoever may write to no topic at all is refused already as an idempotent producer.
            await self.stop()
            requests = physical(self._prefix, self._topics.requests)
            raise lacking(self._cluster, f"topic {requests}", "Write") from None
        except BaseException:
            await self.stop()
            raise
        if self._topics.answers is not None:
            answers = physical(self._prefix, self._topics.answers)
            self._answers = AnswersFollowed(self._consumer, answers, on_answers, self._limited_log)
            self._reader = asyncio.create_task(self._answers.run())

    def append(self, topic: str, partition: int, value: bytes) -> asyncio.Future[int]:
        """Append to a logical topic; gives the offset that the broker acknowledged.

        Raises:
            HushstreamError: the broker refused the record.
        """
        if self._producer is None:
            raise HushstreamError("client: expected it to be started (use `async with`), it is not")
        linger = self._lingers.get((topic, partition))
        if linger is None:
            linger = Linger(partial(self._send, topic, partition), self._linger_seconds)
            self._lingers[topic, partition] = linger
        return linger.append(value)

    async def _send(self, topic: str, partition: int, values: Sequence[bytes]) -> tuple[int, int]:
        """Append as many of these values as fit into a batch; returns their number, and the offset of the first.

        Raises:
            HushstreamError: the broker refused them.
        """
        if self._answers is not None and topic == self._topics.requests:
            # Follow the answers before the questions are in the log: an answer may come within a millisecond, and would
            # be missed.
            await self._answers.follow(partition)
        producer = self._producer
        if producer is None:
            raise HushstreamError("client: expected it to stay open until all is appended, it was closed")
        batch, taken = producer.create_batch(), 0
        while taken < len(values) and batch.append(key=None, value=values[taken], timestamp=None) is not None:
            taken += 1
        try:
            metadata = await (await producer.send_batch(batch, physical(self._prefix, topic), partition=partition))
        except KafkaError as error:
            await self._replace(producer)
            if isinstance(error, DENIED):
                raise lacking(self._cluster, f"topic {physical(self._prefix, topic)}", "Write") from error
            raise HushstreamError(f"client: {topic}/{partition} refused the record: {type(error).__name__}") from error
        return taken, int(metadata.offset)

    async def read(self, topic: str, partition: int, low: int) -> Sequence[InputRecord]:
        """See `EventLog.read`. A second consumer reads, because the consumer of answers must keep its position.

        Raises:
            HushstreamError: the topic may not be read, or no broker answers.
        """
        place = TopicPartition(physical(self._prefix, topic), partition)
        async with self._public_free:
            try:
                async with asyncio.timeout(_START_SECONDS):
                    return await self._read_public(place, low)
            except (KafkaError, TimeoutError) as error:
                await self._drop_public()
                raise HushstreamError(
                    f"client: expected to read {topic}/{partition} from offset {low}, got {type(error).__name__}"
                ) from error

    async def _read_public(self, place: TopicPartition, low: int) -> Sequence[InputRecord]:
        if self._public is None:
            await check_rights(self._cluster, {place.topic: {READ}})
            self._public = AIOKafkaConsumer(
                auto_offset_reset="none",
                key_deserializer=batches_stay_compressed,
                enable_auto_commit=False,
                fetch_max_wait_ms=100,
                **self._cluster.client_options(),
            )
            await self._public.start()
        consumer, found = self._public, list[InputRecord]()
        end = (await consumer.end_offsets([place]))[place]
        if low < end:
            consumer.assign([place])
            consumer.seek(place, low)
            while await consumer.position(place) < end:
                fetched = await consumer.getmany(place, timeout_ms=_READ_MILLISECONDS)
                found.extend(as_records(fetched.get(place, [])))
            consumer.unsubscribe()  # or it would fetch what follows
        return found

    async def _drop_public(self) -> None:
        if self._public is not None:
            await self._public.stop()
        self._public = None

    def _make_producer(self) -> AIOKafkaProducer:
        return AIOKafkaProducer(
            acks="all",
            enable_idempotence=True,
            max_batch_size=262_144,
            **self._cluster.client_options(),
        )

    async def _replace(self, broken: AIOKafkaProducer) -> None:
        """Continue with a new producer: after a failed batch, the broker waits for its sequence numbers for ever."""
        stop = broken.stop
        async with self._replacing:
            if self._producer is not broken:
                return
            fresh = self._make_producer()
            try:
                await fresh.start()
            except KafkaError:
                self._limited_log.warning("client: no broker answers a fresh producer; the next record tries again")
                return
            self._producer = fresh
            task = asyncio.create_task(stop())
            self._replaced.add(task)
            task.add_done_callback(self._replaced.discard)

    def partitions(self) -> int:
        """Number of partitions of requests, and so of answers."""
        return self._partitions

    async def stop(self) -> None:
        """Flush and close."""
        # The pending appends still need the reader of answers: each follows its partition before it writes.
        await asyncio.gather(*(linger.flush() for linger in self._lingers.values()))
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        await asyncio.gather(*self._replaced, return_exceptions=True)
        if self._producer is not None:
            await self._producer.stop()
        if self._consumer is not None:
            await self._consumer.stop()
        await self._drop_public()
        self._answers = self._reader = self._producer = self._consumer = None

    async def _assign(self) -> None:
        assert self._consumer is not None
        assert self._producer is not None
        name = physical(self._prefix, self._topics.requests)
        answers = [] if self._topics.answers is None else [physical(self._prefix, self._topics.answers)]
        writes = {physical(self._prefix, topic): {WRITE} for topic in (self._topics.requests, *self._topics.feedback)}
        await check_rights(self._cluster, {**writes, **{answer: {READ} for answer in answers}})
        if name not in await self._consumer.topics():
            raise HushstreamError(
                f"client: expected topic {name} at {self._cluster.bootstrap}, it does not exist; "
                f"check the deployment's name, or create its topics with `hushstream topics apply`"
            )
        self._partitions = len(await self._producer.partitions_for(name))
        # Only after the check of access rights: the partitions of a topic that may not be read cannot be counted.
        await self._check_partitions()
        if answers:
            await self._check_journals(answers[0])

    async def _check_partitions(self) -> None:
        """Refuse topics with different numbers of partitions: somebody has added partitions to one of them."""
        assert self._producer is not None
        asked = self._topics.requests
        for topic in (*self._topics.feedback, *filter(None, [self._topics.answers])):
            found = len(await self._producer.partitions_for(physical(self._prefix, topic)))
            if found != self._partitions:
                raise HushstreamError(
                    f"client: expected as many partitions of {topic} as of {asked}, found {found} and "
                    f"{self._partitions}; partitions of a deployment are frozen, `hushstream topics check` names those "
                    f"that were added"
                )

    async def _check_journals(self, topic: str) -> None:
        """Ask where the journals end, so that no first request waits for it; check one journal's configuration."""
        assert self._consumer is not None
        journals = [TopicPartition(topic, partition) for partition in range(self._partitions)]
        begun = [place for place, end in (await self._consumer.end_offsets(journals)).items() if end > 0]
        if begun and self._digest is not None:
            await self._require_configuration(begun, self._digest)

    async def _require_configuration(self, begun: list[TopicPartition], digest: bytes) -> None:
        """Compare the first record of one of the journals with the application's configuration."""
        assert self._consumer is not None
        self._consumer.assign(begun[:1])
        self._consumer.seek(begun[0], (await self._consumer.beginning_offsets(begun))[begun[0]])
        found = await self._consumer.getmany(begun[0], timeout_ms=round(_GENESIS_SECONDS * 1000), max_records=1)
        self._consumer.unsubscribe()  # or it would fetch what follows
        for record in found.get(begun[0], ()):
            name, fields = codec.decode(record.value)
            if name == "Genesis" and fields["config_digest"] != digest:
                raise HushstreamError(
                    f"client: expected configuration {fields['config_digest'].hex()} of deployment "
                    f"{fields['deployment']} as its workers have it, got {digest.hex()}: read it from the folder that "
                    f"they were started with, by the same release of hushstream"
                )


def connect(
    bootstrap: str,
    deployment: str | Path,
    *,
    prefix: str | None = None,
    track: str | None = None,
    security: Security | None = None,
    party: str = "",
) -> Client:
    """A client of one deployment on a Kafka cluster; use it with ``async with``.

    Args:
        bootstrap: ``host:port`` of one or more brokers, separated by commas.
        deployment: the deployment's folder, as workers have it but without keys (only the configuration and the
            prepared files are read, and these are public): invalid requests are then refused before they are sent. Or
            the deployment's name: invalid requests are then refused by its learner.
        prefix: what its topic names begin with; by default the deployment's name and a dot.
        track: the shared model that new users start from; by default "private", or the party's.
        security: SASL and TLS.
        party: the party of the users, if each party of the deployment has its own users: a vendor of P-DAP.

    Raises:
        HushstreamError: the folder's system makes no decisions, or a file is missing in the folder.
    """
    topics = DECISIONS.of(party)
    name, digest, rules = str(deployment), None, None
    if isinstance(deployment, Path):
        system = read_deployment(deployment, topics, party)
        name, digest, rules = system.config.deployment, system.digest, system.requests
    prefix = f"{name}." if prefix is None else prefix
    log = KafkaEventLog(bootstrap, prefix, security=security, topics=topics, digest=digest)
    return Client(log, track=track, rules=rules, party=party)


def read_deployment(folder: Path, topics: Conversation, party: str = "") -> System:
    """Read the deployment in a folder, for a client that uses these topics, and of this party if each has its own.

    Raises:
        HushstreamError: it uses other topics, has no such party, or a file is missing.
    """
    system = load(folder)
    own = conversation_of(system, party)
    if own != topics:
        raise HushstreamError(
            f"client: expected a deployment whose applications write {topics.requests}, got "
            f"{system.config.deployment}, where they write {own.requests}"
        )
    return system
