"""A driver writes before anything leaves: killed at any writing, it hands in one slot of one content."""

from __future__ import annotations

import contextlib
import os
import random
import stat
import subprocess
import sys
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from hushstream.edge import Answer, DeviceDriver, Transport
from hushstream.edge.driving import LONGEST_WAIT_MS
from hushstream.engine.devices.kept import DeviceError
from hushstream.engine.devices.sealing import period_of, read_slot
from hushstream.systems.p2b.edge.device import Device
from hushstream.systems.p2b.prepared import agreement_of

DAY_SECONDS = 86_400


class Killed(BaseException):
    """The process ends."""


class Gateway(Transport):
    """Takes slots, but for `refusals` first, and offers a model; nobody reaches it over a network."""

    def __init__(self, model: bytes) -> None:
        super().__init__("http://localhost")
        self.model, self.slots, self.refusals = model, list[bytes](), list[Answer]()

    def send_slot(self, body: bytes) -> Answer:
        self.slots.append(body)
        return self.refusals.pop(0) if self.refusals else Answer(204, {}, b"")

    def fetch_model(self, tag: str | None) -> Answer:
        return Answer(200 if tag is None else 304, {}, self.model)


class Life:
    """One user and their device's clock."""

    def __init__(self, folder: Path, devices: Any, gateway: Gateway) -> None:
        self.devices, self.gateway, self.now = devices, gateway, devices.NOW_MS / 1000
        self.where = folder / "agreement.json", folder / "state"

    def driver(self) -> DeviceDriver:
        return DeviceDriver(*self.where, self.gateway, clock=lambda: self.now)

    def live(self, driver: DeviceDriver, source: random.Random, parts: int, name: str) -> None:
        for part in range(parts):
            for number in range(3):
                event = f"{name}-{part}-{number}"
                item = driver.decide(event, {"country": source.choice(["de", "fr"])}).arm
                driver.shown(event, item)
                driver.reward(event, item, 1.0)
            driver.flush()
            self.now += DAY_SECONDS / 4
            driver.sync()


@pytest.fixture
def gateway(devices: Any, system: Any) -> Gateway:
    return Gateway(devices.model_of(system).as_bytes())


@pytest.fixture
def life(tmp_path: Path, devices: Any, system: Any, gateway: Gateway) -> Life:
    (tmp_path / "agreement.json").write_bytes(agreement_of(system.core))
    return Life(tmp_path, devices, gateway)


def test_killed_at_any_writing_it_hands_in_one_slot_of_one_content(
    life: Life, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, is_killed, resent, at = Path.replace, True, 0, 0
    while is_killed:
        at += 1
        left, is_killed = at, False

        def killing(path: Path, target: Path) -> Path:
            nonlocal left
            left -= 1
            if not left:
                raise Killed
            return put(path, target)

        gateway.slots.clear()
        life.where[1].unlink(missing_ok=True)
        monkeypatch.setattr(Path, "replace", killing)
        driver = None
        try:
            driver = life.driver()
            life.live(driver, random.Random(1), 5, "first")
        except Killed:
            is_killed = True
        if driver is not None:
            driver._lock.close()  # as the end of its process does
        monkeypatch.undo()
        with life.driver() as driver:
            life.live(driver, random.Random(2), 8, "second")
        life.now += DAY_SECONDS
        with life.driver() as driver:
            driver.sync()
        assert len(set(gateway.slots)) == 1, f"killed at writing {at}"
        resent += len(gateway.slots) > 1
    assert at > 15, "writings of a life that is not killed"
    assert resent, "the crash between a slot and the note that it was handed in"


def test_no_work_on_what_a_device_holds_stands_between_two_of_its_requests(
    life: Life, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever sees the requests' times would see how long that work took, and from it how much a device holds."""
    driver, done = life.driver(), list[str]()
    for number in range(10):
        driver.decide(f"visit-{number}", {"country": "fr"})
    life.now += DAY_SECONDS

    def noted(owner: Any, name: str) -> None:
        call = getattr(owner, name)

        def noting(*arguments: Any) -> Any:
            done.append(name)
            return call(*arguments)

        monkeypatch.setattr(owner, name, noting)

    for name in ("outgoing", "take", "dump"):
        noted(driver.device, name)
    for name in ("send_slot", "fetch_model"):
        noted(gateway, name)
    driver.sync()
    assert done == ["outgoing", "dump", "send_slot", "fetch_model", "take", "outgoing", "dump"]
    assert (driver.device.version, len(gateway.slots)) == (1, 1)
    driver.close()


def test_a_slot_of_another_period_than_the_gateways_is_sealed_again_written_and_sent_after_a_wait(
    life: Life, gateway: Gateway
) -> None:
    driver = life.driver()
    for number in range(10):
        driver.decide(f"visit-{number}", {"country": "fr"})
    life.now += DAY_SECONDS
    date = {"date": formatdate(life.now + 5 * DAY_SECONDS, usegmt=True), "content-type": "application/problem+json"}
    gateway.refusals = [Answer(422, date, b'{"code": "stale-period"}')] * 2
    driver.sync()
    driver.sync()
    assert len(gateway.slots) == 1, "it waits"
    life.now += LONGEST_WAIT_MS / 1000
    written = Device.load(driver.agreement, life.where[1].read_bytes(), random.Random(9).randbytes)
    assert written.outgoing(int(life.now * 1000)) == driver.device.outgoing(int(life.now * 1000))
    driver.sync()
    first, second = (read_slot(body, driver.agreement.body_bytes) for body in gateway.slots)
    assert period_of(second) == period_of(first) + 5
    assert first["report_id"] == second["report_id"]
    assert driver.faults == ["stale-period"], "once"
    life.now += LONGEST_WAIT_MS / 1000
    driver.sync()
    assert len(gateway.slots) == 2
    driver.close()


def test_a_state_is_its_owners_alone_whatever_lies_where_it_is_written(life: Life, tmp_path: Path) -> None:
    (tmp_path / ".state.new").write_bytes(b"")
    (tmp_path / ".state.new").chmod(0o644)
    with life.driver() as driver:
        life.live(driver, random.Random(1), 1, "life")
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o600


def test_a_loss_of_power_behind_a_slot_does_not_bring_the_file_before_it_back(
    life: Life, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that was put in place is there for sure once its folder was forced to disk, too."""
    sync, put, hand_in, unsafe, seen = os.fsync, Path.replace, gateway.send_slot, [0], list[int]()

    def syncing(descriptor: int) -> None:
        sync(descriptor)
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            unsafe[0] = 0

    def putting(path: Path, target: Path) -> Path:
        unsafe[0] += 1
        return put(path, target)

    def sending(body: bytes) -> Answer:
        seen.append(unsafe[0])
        return hand_in(body)

    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(Path, "replace", putting)
    monkeypatch.setattr(gateway, "send_slot", sending)
    with life.driver() as driver:
        life.live(driver, random.Random(1), 8, "life")
    assert seen == [0]


def test_what_was_not_written_is_forgotten_and_nothing_else(life: Life) -> None:
    with life.driver() as driver:
        driver.decide("written", {})
    driver.decide("lost", {})
    with life.driver() as again:
        assert again.device.dump() != driver.device.dump()
        assert again.decide("written", {}).repeated
        assert not again.decide("lost", {}).repeated


def test_a_state_is_one_drivers_until_that_is_closed(life: Life) -> None:
    first = life.driver()
    with pytest.raises(DeviceError, match="one driver at a time"):
        life.driver()
    first.decide("visit", {})
    first.close()
    with life.driver() as second:
        assert second.decide("visit", {}).repeated
        with pytest.raises(DeviceError, match="not closed"):
            first.sync()
    life.where[1].write_bytes(b"")
    with pytest.raises(DeviceError, match="expected what a device wrote"):
        life.driver()
    life.where[1].unlink()
    life.driver().close()


_HOLDS = """
import sys
from hushstream.edge import DeviceDriver
driver = DeviceDriver(*sys.argv[1:], "http://localhost")
print("holds", flush=True)
sys.stdin.read()
"""


def test_a_process_that_was_killed_leaves_its_state_to_the_next(life: Life) -> None:
    command = [sys.executable, "-c", _HOLDS, *map(str, life.where)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"holds\n"
        with pytest.raises(DeviceError, match="one driver at a time"):
            life.driver()
        process.kill()
    life.driver().close()


def test_a_link_to_a_state_is_that_state_and_so_is_its_path_from_another_folder(
    life: Life, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreement, state = life.where
    (tmp_path / "link").symlink_to(state)
    monkeypatch.chdir(tmp_path)
    driver = DeviceDriver(agreement, state.name, life.gateway, clock=lambda: life.now)
    life.where = agreement, tmp_path / "link"
    with pytest.raises(DeviceError, match="one driver at a time"):
        life.driver()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    driver.decide("visit", {})
    driver.close()
    with life.driver() as again:
        assert again.decide("visit", {}).repeated
    assert (tmp_path / "link").is_symlink()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_fork_leaves_the_state_to_its_parent(life: Life) -> None:
    driver = life.driver()
    (ends, begins), (hears, tells) = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        # What raises here is told to nobody: the status says it.
        status = 1
        with contextlib.suppress(BaseException):
            os.close(begins)
            with contextlib.suppress(DeviceError), driver:
                driver.sync()
                status = 2
            status = 0 if status == 1 else status
            os.write(tells, b"tried")
            os.read(ends, 1)  # it lives until its parent has closed the driver
        os._exit(status)
    os.close(ends)
    os.close(tells)
    try:
        assert os.read(hears, 5) == b"tried"
        driver.decide("visit", {})
        driver.close()
        driver.close()
        with life.driver() as again:
            assert again.decide("visit", {}).repeated
    finally:
        os.close(begins)
        os.close(hears)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, "the child's driver wrote nothing and sent nothing"


@pytest.mark.parametrize(
    "answer",
    [
        Answer(400, {"content-type": "application/problem+json"}, b"[" * 100_000),
        Answer(
            422,
            {"content-type": "application/problem+json", "date": "Mon, 01 Jan 99999999999 00:00:00 GMT"},
            b'{"code": "stale-period"}',
        ),
    ],
)
def test_no_answer_of_a_gateway_ends_a_device(life: Life, gateway: Gateway, answer: Answer) -> None:
    with life.driver() as driver:
        for number in range(10):
            driver.decide(f"visit-{number}", {})
        life.now += DAY_SECONDS
        gateway.refusals = [answer]
        driver.sync()
        assert (len(gateway.slots), driver.device.version) == (1, 1)


_WITHOUT = """
import sys
sys.modules["fcntl"] = None
import hushstream.edge.ratings
"""


def test_a_device_is_imported_where_there_is_no_fcntl_as_on_windows() -> None:
    subprocess.run([sys.executable, "-c", _WITHOUT], check=True)


_IMPORTED = """
import importlib, sys
before = set(sys.modules)
importlib.import_module(sys.argv[1])
files = {name.split(".")[0]: getattr(sys.modules[name], "__file__", None) or "" for name in set(sys.modules) - before}
print(*(name for name, file in files.items() if "site-packages" in file))
"""


@pytest.mark.parametrize("module", ["hushstream.edge", "hushstream.edge.ratings"])
def test_a_device_needs_numpy_and_cryptography_alone(module: str) -> None:
    said = subprocess.run([sys.executable, "-c", _IMPORTED, module], capture_output=True, encoding="utf-8", check=True)
    assert {"numpy", "cryptography"} <= set(said.stdout.split()) <= {"numpy", "cryptography", "_cffi_backend"}
