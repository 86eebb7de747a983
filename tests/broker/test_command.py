"""The broker as a process: the ready line, a clean stop, a port in use."""

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kafka import KafkaAdminClient

from hushstream.broker import EmbeddedBroker, main
from patience import patience


@contextmanager
def broker_process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "hushstream.broker", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8")
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_listens_and_stops_cleanly_by_signal(tmp_path: Path, stop):
    ready = tmp_path / "ready"
    with broker_process("--port", "0", "--ready-file", str(ready)) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("hushstream broker listening on 127.0.0.1:")
        bootstrap = line.split()[-1]
        assert ready.read_text(encoding="utf-8") == f"{bootstrap}\n"
        client = KafkaAdminClient(bootstrap_servers=bootstrap)
        process.send_signal(stop)
        out, err = process.communicate(timeout=patience(10))
        client.close()
        assert (process.returncode, out, err) == (0, "", "")


def test_a_port_in_use_is_one_line_and_exit_code_two(taken_port):
    with broker_process("--port", str(taken_port)) as process:
        out, err = process.communicate(timeout=patience(10))
        assert (process.returncode, out) == (2, "")
        assert err == (
            f"hushstream broker: port {taken_port} on 127.0.0.1 is in use by another process; choose another port\n"
        )


@pytest.mark.parametrize(
    "arguments", [["--host", "0.0.0.0"], ["--host", "192.0.2.1"], ["--port", "70000"], ["--port", "99999999"]]
)
def test_an_address_it_may_not_or_cannot_use_is_exit_code_two(capsys, arguments):
    assert main(["--port", "0", *arguments]) == 2
    message = capsys.readouterr().err
    assert message.startswith("hushstream broker: ")
    assert message.count("\n") == 1


def test_the_cap_of_a_partition_can_be_set(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--max-bytes-per-partition", "much"])
    assert caught.value.code == 2
    assert "--max-bytes-per-partition" in capsys.readouterr().err


async def test_stopping_does_not_wait_for_a_client_that_does_not_read(
    make_topics, make_batch, make_produce, make_fetch
):
    async with asyncio.timeout(patience(10)):
        async with EmbeddedBroker() as broker:
            await make_topics(broker.bootstrap, t=1)
            reader, writer = await asyncio.open_connection("127.0.0.1", broker.port, limit=1024)
            for request, version in [(make_produce("t", make_batch([b"x" * 1_000_000])), 8)] + [
                (make_fetch("t", 0, max_bytes=1 << 21, partition_max_bytes=1 << 21), 11) for _ in range(50)
            ]:
                request.API_VERSION = version
                request.with_header(correlation_id=1)
                writer.write(bytes(request.encode(header=True, framed=True)))
            await reader.readexactly(100)
        writer.close()
