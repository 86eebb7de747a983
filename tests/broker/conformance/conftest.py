"""The broker under test: an embedded one, or the one whose address HUSHSTREAM_TEST_BOOTSTRAP names."""

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.admin import NewTopic


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    given = os.environ.get("HUSHSTREAM_TEST_BOOTSTRAP")
    if given:
        yield given
        return
    command = [sys.executable, "-m", "hushstream.broker", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8") as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()


@pytest.fixture(scope="session")
def admin(bootstrap: str) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    yield client
    client.close()


@pytest.fixture
def unique() -> Callable[[str], str]:
    """A name that no other test, and no earlier run, has used."""
    return lambda prefix: f"{prefix}-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def reader(bootstrap: str) -> Iterator[KafkaConsumer]:
    client = KafkaConsumer(bootstrap_servers=bootstrap)
    yield client
    client.close()


@pytest.fixture
def make_topic(
    admin: KafkaAdminClient, reader: KafkaConsumer, unique: Callable[[str], str]
) -> Iterator[Callable[..., str]]:
    made: list[str] = []

    def make(partitions: int = 1, **configs: str) -> str:
        name = unique("conformance")
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        admin.create_topics([NewTopic(name, partitions, 1, topic_configs=settings)], wait_for_metadata=True)
        made.append(name)
        # Metadata names a leader before that leader serves: its offsets are asked for until it does.
        reader.end_offsets([TopicPartition(name, partition) for partition in range(partitions)])
        return name

    yield make
    if made:
        admin.delete_topics(made, raise_errors=False)
