"""Every audit, made once: most of the time that the tests of their table take goes into that."""

from functools import cache

from hushstream.replay.audits.catalogue import audit_names, make_audit
from hushstream.replay.audits.row import Audit


@cache
def all_audits() -> tuple[Audit, ...]:
    """In the order of the table."""
    return tuple(map(make_audit, audit_names()))
