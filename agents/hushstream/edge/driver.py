"""Drives a `Device`: its state lies in a file, which is written before a slot leaves; its clock is this machine's.

`DeviceDriver.decide`, `shown` and `reward` answer from memory. What they changed is written by `sync` before anything
leaves, by `flush`, and at the end of a ``with`` block; a crash before that forgets it, and never gives a second slot.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from hushstream.edge.transport import Answer, Transport, Unreachable
from hushstream.feedback.join import JoinOutcome
from hushstream.privacy.key_files import sync_folder
from hushstream.systems.p2b.device.agreement import Agreement
from hushstream.systems.p2b.device.device import Device, Outgoing
from hushstream.systems.p2b.device.errors import BadAgreement, BadModel
from hushstream.systems.p2b.edge.terms import Choice

FIRST_WAIT_MS, LONGEST_WAIT_MS = 1_000, 600_000
"""Between two attempts to send the same: doubled each time, and multiplied by a number drawn from 0.5 to 1.5."""

_OK, _NO_CONTENT = 200, 204

_FAULTS = frozenset({"bad-slot", "identifying-header", "body-too-large", "unsupported-media-type"})
"""What to send again ends alike."""


class DeviceDriver:
    """One user's device, on one machine. One process at a time; not thread-safe."""

    def __init__(
        self,
        agreement: str | Path,
        state: str | Path,
        gateway: str | Transport,
        *,
        agree_anew: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Go on with the state, or begin where there is none.

        Args:
            agreement: the file that the application ships.
            state: where the device's state is kept, readable by its owner alone. It holds the user's key.
            gateway: its URL, or a transport to it.
            agree_anew: whether to go over to another agreement than the state's, which must promise no less.
            clock: seconds since 1970.

        Raises:
            WeakerAgreement: another agreement promises less.
            BadAgreement: it is another one, and ``agree_anew`` is false; or it does not hold together.
            DeviceError: the state is damaged. Begin anew only if its user may be counted once more.
        """
        self._path, self._clock = Path(state), clock
        self._transport = gateway if isinstance(gateway, Transport) else Transport(gateway)
        self.agreement = Agreement.read(Path(agreement).read_bytes())
        self._waits: tuple[int, int] = (0, FIRST_WAIT_MS)
        self._asked_ms = 0
        self.faults: list[str] = []
        """Codes of problems with slots that are kept and not sent again."""
        self._stuck: set[bytes] = set()
        self._ended = False
        try:
            known = self._path.read_bytes()
        except FileNotFoundError:
            self.device = Device.begun(self.agreement, secrets.token_bytes)
            self._write()
            return
        try:
            self.device = Device.load(self.agreement, known, secrets.token_bytes)
        except BadAgreement:
            if not agree_anew:
                raise
            self.device = Device.agreed_anew(self.agreement, known, secrets.token_bytes)
            self._write()

    # What the application calls.

    def decide(self, event_id: str, values: Mapping[str, Any], eligible: Any = None) -> Choice:
        """See `Device.decide`."""
        return self.device.decide(event_id, values, self._now_ms(), eligible)

    def shown(self, event_id: str, item: int) -> JoinOutcome:
        """See `Device.shown`."""
        return self.device.shown(event_id, item, self._now_ms())

    def reward(self, event_id: str, item: int, reward: float) -> JoinOutcome:
        """See `Device.reward`."""
        return self.device.reward(event_id, item, reward, self._now_ms())

    def flush(self) -> None:
        """Write what was decided and learned; call it where a visit ends, or `sync`."""
        self._write()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()

    def sync(self) -> None:
        """Fetch a newer model if there is one, and send the slots whose time has come; call it now and then.

        What the gateway does not answer, and what it refuses for now, is tried again by a later call. A model that must
        not be taken is not, and the device goes on with the one that it has. The state is written first, in any case.
        """
        self.flush()
        now_ms = self._now_ms()
        if now_ms < self._waits[0]:
            return
        self._asked_ms = 0
        try:
            self.fetch()
            good = self.send()
        except Unreachable:
            good = False
        wait = self._waits[1]
        drawn = max(wait // 2 + secrets.randbelow(wait), self._asked_ms)
        self._waits = (0, FIRST_WAIT_MS) if good else (now_ms + drawn, min(2 * wait, LONGEST_WAIT_MS))

    def fetch(self) -> bool:
        """Fetch a newer model; whether one was taken.

        Raises:
            Unreachable: the gateway did not answer.
        """
        answer = self._transport.fetch_model(self.device.tag)
        if answer.status != _OK:
            return False
        with contextlib.suppress(BadModel), self._written():
            self.device.take(answer.body, self._now_ms())
            return True
        return False

    def send(self) -> bool:
        """Send the slots whose time has come; whether none of them has to be tried again.

        Raises:
            Unreachable: the gateway did not answer; what was sent may have arrived, and is sent again.
        """
        if self._ended:
            return True
        with self._written():
            outgoing = self.device.outgoing(self._now_ms())
        sent = [self._sent(one) for one in outgoing if one.report_id not in self._stuck]
        return all(sent)

    def _sent(self, one: Outgoing, sealed_again: bool = False) -> bool:
        answer = self._transport.send_slot(one.body)
        code = _code(answer)
        if answer.status == _NO_CONTENT:
            with self._written():
                self.device.handed_in(one.report_id)
            return True
        if code == "stale-period" and answer.time_ms is not None and not sealed_again:
            with self._written():
                self.device.seal_again(one.report_id, answer.time_ms)
                again = self.device.outgoing(self._now_ms())
            return all(self._sent(other, True) for other in again if other.report_id == one.report_id)
        if code == "other-configuration":
            self._ended = True
            return True
        if code in _FAULTS or code == "stale-period":
            self.faults.append(code)
            self._stuck.add(one.report_id)
            return True
        self._asked_ms = max(self._asked_ms, answer.retry_ms)
        return False

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    # The state's file.

    @contextlib.contextmanager
    def _written(self) -> Iterator[None]:
        """Write the state behind what is done: nothing leaves that a restart would not know."""
        yield
        self._write()

    def _write(self) -> None:
        beside = self._path.with_name(f".{self._path.name}.new")
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(self.device.dump())
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._path)
        sync_folder(self._path.parent)


def _code(answer: Answer) -> str:
    """The code of a problem; empty where it is none."""
    if not answer.headers.get("content-type", "").startswith("application/problem+json"):
        return ""
    try:
        found = json.loads(answer.body)
        return str(found["code"])
    except (ValueError, KeyError, TypeError):
        return ""
