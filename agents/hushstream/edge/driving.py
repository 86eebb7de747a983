"""Drives a device of any system: keeps its state in a file, sends its slots, and fetches models.

The device's clock is this machine's. `sync` writes the state before a slot leaves; `flush`, `close` and the end of a
``with`` block write it too. A crash before that loses the newest decisions and feedback, but never makes a device send
a second slot.

*Transport.* HTTP as devices use it: no cookie, no credentials, no id, and a new connection for each request.

`http.client` imports `ssl` and `email`, which takes a tenth of a device's start. So it is imported with the first
request: a device makes its first decisions before it sends anything.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Generic, NamedTuple, Protocol, Self, TypeVar
from urllib.parse import urlsplit
from weakref import WeakSet

from hushstream.engine.devices.kept import BadAgreement, BadModel, DeviceError, Drawn, Outgoing
from hushstream.feedback.join import JoinOutcome
from hushstream.privacy.key_files import sync_folder
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.edge.agent import Choice
from hushstream.systems.p2b.edge.device import Agreement, Device

if TYPE_CHECKING:
    import ssl


MOST_ANSWER_BYTES = 16 * 1024 * 1024


class Unreachable(HushstreamError):
    """The gateway did not answer; the request may have arrived all the same."""


class Answer(NamedTuple):
    """The gateway's answer.

    Attributes:
        status: of HTTP.
        headers: by lower-case name.
        body: all of it.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def time_ms(self) -> int | None:
        """The gateway's clock from the header `Date`, in milliseconds since 1970; None if it is missing or invalid."""
        from email.utils import parsedate_to_datetime

        try:
            return round(parsedate_to_datetime(self.headers["date"]).timestamp() * 1000)
        except (KeyError, ValueError, TypeError, OverflowError):
            return None

    @property
    def retry_ms(self) -> int:
        """The shortest wait before the same request, from the header `Retry-After`; 0 without one."""
        text = self.headers.get("retry-after", "")
        return 1000 * int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 0


class Transport:
    """Sends the two requests of a device to one gateway."""

    def __init__(self, gateway: str, *, timeout_seconds: float = 30.0, context: ssl.SSLContext | None = None) -> None:
        """Name the gateway.

        Args:
            gateway: its URL, for instance https://devices.shop.example.
            timeout_seconds: how long to wait for an answer.
            context: the settings of TLS; by default with the authorities that this machine trusts.

        Raises:
            HushstreamError: it is not a URL, or one of plain HTTP to another machine.
        """
        parts = urlsplit(gateway)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise HushstreamError("gateway: expected a URL like https://devices.shop.example, got another text")
        if parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
            raise HushstreamError("gateway: expected https to another machine, got http")
        self._host, self._port, self._path = parts.hostname, parts.port, parts.path.rstrip("/")
        self._secure, self._timeout, self._context = parts.scheme == "https", timeout_seconds, context

    def send_slot(self, body: bytes) -> Answer:
        """Hand in a slot.

        Raises:
            Unreachable: the gateway did not answer.
        """
        return self._ask("POST", "/v1/slots", {"Content-Type": "application/octet-stream"}, body)

    def fetch_model(self, tag: str | None) -> Answer:
        """Ask for the newest model, unless it is the one with this tag.

        Raises:
            Unreachable: the gateway did not answer.
        """
        return self._ask("GET", "/v1/model", {} if tag is None else {"If-None-Match": tag}, None)

    def _ask(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        import http.client

        made = (
            http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout, context=self._context)
            if self._secure
            else http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)
        )
        try:
            made.request(method, self._path + path, body, {**headers, "Connection": "close"})
            response = made.getresponse()
            content = response.read(MOST_ANSWER_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"gateway: expected an answer, got {type(error).__name__}") from None
        finally:
            made.close()
        if len(content) > MOST_ANSWER_BYTES:
            raise Unreachable(f"gateway: expected an answer of at most {MOST_ANSWER_BYTES} bytes, got a longer one")
        return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, content)


FIRST_WAIT_MS, LONGEST_WAIT_MS = 1_000, 600_000
"""The wait between two attempts to send the same: doubled each time, and multiplied by a random number from 0.5 to
1.5."""

_OK, _NO_CONTENT = 200, 204

_FAULTS = frozenset({"bad-slot", "identifying-header", "body-too-large", "unsupported-media-type"})
"""Codes of problems that the gateway would answer again if the same slot was sent again."""


class DrivenDevice(Protocol):
    """A device, as a driver uses it."""

    @classmethod
    def begun(cls, agreement: Any, draw: Drawn) -> Self:
        """A new device under an agreement."""

    @classmethod
    def load(cls, agreement: Any, dumped: bytes, draw: Drawn) -> Self:
        """The device of a dumped state; raises `BadAgreement` if the state belongs to another agreement."""

    @classmethod
    def agreed_anew(cls, agreement: Any, dumped: bytes, draw: Drawn) -> Self:
        """The device of a dumped state, which changes to another agreement; raises `WeakerAgreement`."""

    @property
    def tag(self) -> str | None:
        """The entity tag of the newest model that the device has taken; None before the first."""

    def take(self, body: bytes, now_ms: int) -> object:
        """Take a model as the gateway answers it; raises `BadModel` if the device must not take it."""

    def outgoing(self, now_ms: int) -> list[Outgoing]:
        """The slots that may leave by now."""

    def handed_in(self, report_id: bytes) -> None:
        """Note that the log holds a slot."""

    def dump(self) -> bytes:
        """The whole state, to be given to `load`."""


DeviceT = TypeVar("DeviceT", bound=DrivenDevice)


class AgreementClass(Protocol):
    """The class of a device's agreements."""

    @classmethod
    def read(cls, content: bytes) -> Any:
        """Parse an agreement as it is shipped; raises `BadAgreement`."""


class Driver(Generic[DeviceT]):
    """One user's device of any system, on one machine; the only open driver of its state, and not thread-safe."""

    _agreement: type[AgreementClass]
    _device: type[DeviceT]
    device: DeviceT

    def __init__(
        self,
        agreement: str | Path,
        state: str | Path,
        gateway: str | Transport,
        *,
        agree_anew: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Continue from the state; without one, begin a new device.

        Args:
            agreement: the file that the application ships.
            state: the file of the device's state, readable by its owner only. It holds the user's key.
            gateway: its URL, or a transport to it.
            agree_anew: whether the device may change to an agreement that is not the state's; what is left of
                it must fit into the life first agreed to.
            clock: seconds since 1970.

        Raises:
            WeakerAgreement: the slots of another agreement would pass the life first agreed to.
            BadAgreement: it is another one, and ``agree_anew`` is false; or it does not hold together.
            DeviceError: another driver works on the state; or it is damaged. Begin anew only if its user may be counted
                once more.
        """
        # Resolved: a link to a state must share its lock, and a process that changes its folder must keep its state's
        # path.
        self._path, self._clock = Path(state).resolve(), clock
        self._transport = gateway if isinstance(gateway, Transport) else Transport(gateway)
        self._waits: tuple[int, int] = (0, FIRST_WAIT_MS)
        self._asked_ms = 0
        self.faults: list[str] = []
        """Codes of problems that the gateway has found with slots; these slots are kept, but not sent again."""
        self._stuck: set[bytes] = set()
        self._sealed_again: set[bytes] = set()
        self._ended = False
        self._lock = _locked(self._path.with_name(f".{self._path.name}.lock"))
        try:
            self.device = self._opened(self._agreement.read(Path(agreement).read_bytes()), agree_anew)
        except BaseException:
            self._lock.close()
            raise

    def _opened(self, agreed: Any, agree_anew: bool) -> DeviceT:
        try:
            known = self._path.read_bytes()
        except FileNotFoundError:
            device = self._device.begun(agreed, secrets.token_bytes)
        else:
            try:
                return self._device.load(agreed, known, secrets.token_bytes)
            except BadAgreement:
                if not agree_anew:
                    raise
                device = self._device.agreed_anew(agreed, known, secrets.token_bytes)
        self._write(device)
        return device

    def _again(self, report_id: bytes, time_ms: int | None) -> bool:
        """Whether a later `sync` may send a slot again that the gateway refused because it names another period."""
        return True

    def flush(self) -> None:
        """Write the state. Call this or `sync` when a visit ends."""
        self._write()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write the state and release its lock, so that another driver may open it; this one then writes no more."""
        if not self._lock.closed:
            with self._lock:
                self.flush()

    def sync(self) -> None:
        """Send the slots whose time has come, then fetch a newer model if there is one; call it now and then.

        From the first request to the last answer this writes nothing, and computes nothing whose time depends on what
        the device holds, so that the times of requests do not show it. A slot that a new model asks for is sent by a
        later call.

        A later call tries again what the gateway did not answer, or refused for now. The device ignores a model that it
        must not take, and keeps its own. In any case the state is written first.
        """
        now_ms = self._now_ms()
        waits = now_ms < self._waits[0]
        due = [] if waits or self._ended else self.device.outgoing(now_ms)
        self._write()
        if waits:
            return
        with self._written():
            found, good = self._asked(one for one in due if one.report_id not in self._stuck)
            wait = self._waits[1]
            drawn = max(wait // 2 + secrets.randbelow(wait), self._asked_ms)
            self._waits = (0, FIRST_WAIT_MS) if good else (now_ms + drawn, min(2 * wait, LONGEST_WAIT_MS))
            if found is not None and found.status == _OK:
                with contextlib.suppress(BadModel):
                    self.device.take(found.body, self._now_ms())
                    # Make the slot that the model asks for now: its random delay must begin here, not with the next
                    # call.
                    self.device.outgoing(self._now_ms())

    def _asked(self, due: Iterable[Outgoing]) -> tuple[Answer | None, bool]:
        """Send slots and ask for a model; returns its answer (None: there was none), and whether all went well."""
        self._asked_ms = 0
        try:
            sent = [self._sent(one) for one in due]
            return self._transport.fetch_model(self.device.tag), all(sent)
        except Unreachable:
            return None, False

    def _sent(self, one: Outgoing) -> bool:
        answer = self._transport.send_slot(one.body)
        code = _code(answer)
        if answer.status == _NO_CONTENT:
            self.device.handed_in(one.report_id)
            return True
        if code == "other-configuration":
            self._ended = True
            return True
        if code in _FAULTS or (code == "stale-period" and not self._again(one.report_id, answer.time_ms)):
            self.faults.append(code)
            self._stuck.add(one.report_id)
            return True
        self._asked_ms = max(self._asked_ms, answer.retry_ms)
        return False

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    # The file of the state.

    @contextlib.contextmanager
    def _written(self) -> Iterator[None]:
        """Write the state at the end of the block, so that later calls send only slots whose state is on disk."""
        yield
        self._write()

    def _write(self, device: DeviceT | None = None) -> None:
        if self._lock.closed:
            raise DeviceError("driver: expected one that this process opened and that was not closed, got another")
        beside = self._path.with_name(f".{self._path.name}.new")
        beside.unlink(missing_ok=True)
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write((device or self.device).dump())
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._path)
        sync_folder(self._path.parent)


_LOCKS = WeakSet[BinaryIO]()


def _leave_to_parent() -> None:
    """Close all drivers in a forked child, because those of the parent go on with the same states."""
    for file in _LOCKS:
        file.close()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_leave_to_parent)


def _locked(path: Path) -> BinaryIO:
    """Lock a file: two drivers on one state would send two slots with the same number and different contents.

    Raises:
        DeviceError: another driver has locked it, in this or another running process.
    """
    file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb")
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise DeviceError(f"state: expected one driver at a time, got another at work: {error.strerror}") from None
    _LOCKS.add(file)
    return file


def _code(answer: Answer) -> str:
    """The code of a problem document; empty for any other answer."""
    if not answer.headers.get("content-type", "").startswith("application/problem+json"):
        return ""
    try:
        found = json.loads(answer.body)
        return str(found["code"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""


class DeviceDriver(Driver[Device]):
    """One user's device, on one machine; the only open driver of its state, and not thread-safe."""

    _agreement, _device = Agreement, Device

    @property
    def agreement(self) -> Agreement:
        """The agreement that the application shipped."""
        return self.device.agreement

    def decide(self, event_id: str, values: Mapping[str, Any], eligible: Any = None) -> Choice:
        """See `Device.decide`."""
        return self.device.decide(event_id, values, self._now_ms(), eligible)

    def shown(self, event_id: str, item: int) -> JoinOutcome:
        """See `Device.shown`."""
        return self.device.shown(event_id, item, self._now_ms())

    def reward(self, event_id: str, item: int, reward: float) -> JoinOutcome:
        """See `Device.reward`."""
        return self.device.reward(event_id, item, reward, self._now_ms())

    def _again(self, report_id: bytes, time_ms: int | None) -> bool:
        """Seal the slot once more for the gateway's time, because this machine's clock is wrong."""
        if time_ms is None or report_id in self._sealed_again:
            return False
        self._sealed_again.add(report_id)
        self.device.seal_again(report_id, time_ms)
        return True
