"""Dead letters say which record was refused and why, without any byte of its content.

The digest is keyed with the zone's key: the operator of that zone can find the record again, and nobody else can learn
its content by guessing (PRIVACY rule 10).
"""

from __future__ import annotations

from hushstream.engine.journal.chain import Digester, Encode
from hushstream.engine.records import Output

WHOLE_RECORD = -1
"""Value in place of a row number when a whole record was refused."""


class Refused(Exception):
    """A record is refused, for a reason of `hushstream.engine.declare.outcomes.Refusal`."""

    def __init__(self, reason: str) -> None:
        """Keep the reason."""
        super().__init__(reason)
        self.reason = reason


class DeadLetters:
    """Makes the dead letters of one role in one zone."""

    def __init__(self, zone: str, role: str, home: int, digester: Digester, encode: Encode) -> None:
        """Make letters for the zone whose operator may read them, and for the home partition of the role."""
        self.home = home
        self._zone = zone
        self._role = role
        self._digester = digester
        self._encode = encode

    def rotate_to(self, digester: Digester) -> None:
        """Use another key for digests from now on."""
        self._digester = digester

    def letter(
        self,
        reason: str,
        topic: str,
        partition: int,
        offset: int,
        row: int = WHOLE_RECORD,
        value: bytes = b"",
    ) -> Output:
        """Make one dead letter. It holds only a keyed digest of ``value``."""
        fields = {
            "zone": self._zone,
            "role": self._role,
            "reason": str(reason),
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "row": row,
            "digest": self._digester.digest("dead-letter", value),
        }
        return Output(f"dead-letters-{self._zone}", self.home, self._encode("DeadLetter", fields))
