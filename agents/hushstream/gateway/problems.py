"""Lists every error of the gateway in one table, with a stable code, a status and a meaning; served as RFC 9457 says.

The served documents, the responses in the OpenAPI document and the page of codes are made from this table. A detail
repeats no user, no event id and nothing of a context, so that a log of answers contains no content.
"""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hushstream.client import (
    BadContext,
    BadReward,
    BaselineMissing,
    DecisionTimeout,
    NoGuardrail,
    PredictionTimeout,
    RequestRefused,
    UnknownArm,
    UnknownEvent,
    UnknownTrack,
    UnknownUser,
)
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.bgt.records import BadRatings

_log = logging.getLogger(__name__)

CONTENT_TYPE = "application/problem+json"
URN = "urn:hushstream:problem:"
"""What a problem's ``type`` begins with; its code follows."""


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """One row of the table.

    Attributes:
        code: for programs; its meaning never changes.
        status: the HTTP status.
        title: for people.
        meaning: what happened, and what the caller can do.
        retry_seconds: how long to wait before the same request; None if a retry would give the same problem.
    """

    code: str
    status: int
    title: str
    meaning: str
    retry_seconds: int | None = None


_TABLE = (
    ProblemKind(
        "malformed-http", 400, "The request is not HTTP", "The request line or a header cannot be read, or is too long."
    ),
    ProblemKind("malformed-json", 400, "The body is not JSON", "The body cannot be read as one JSON text in UTF-8."),
    ProblemKind(
        "invalid-request",
        400,
        "The body does not fit this call",
        "Each place is named as a JSON pointer, with what was expected there.",
    ),
    ProblemKind(
        "bad-slot",
        400,
        "The body is no report of this deployment",
        "A report has one size and one format, which the agreement states. The same body would be refused again.",
    ),
    ProblemKind(
        "identifying-header",
        400,
        "The request says who sends it",
        'Devices send no cookie and no credentials: `credentials: "omit"` in a browser.',
    ),
    ProblemKind(
        "unauthorized", 401, "No valid credential came with the request", "Send `Authorization: Bearer TOKEN`."
    ),
    ProblemKind(
        "not-an-operator",
        403,
        "The caller is no operator",
        "Send `Authorization: Bearer TOKEN` with a token of the gateway's `operators_file`.",
    ),
    ProblemKind(
        "not-attested",
        403,
        "The request has no valid attestation",
        "The header `Hushstream-Attestation` must hold what the deployment's check requires.",
    ),
    ProblemKind("no-model", 404, "There is no model yet", "The first release makes it; devices begin without one.", 60),
    ProblemKind("not-found", 404, "There is no such call", "The OpenAPI document lists the calls of this deployment."),
    ProblemKind(
        "unknown-event",
        404,
        "This gateway remembers no such event",
        "Another gateway answered it, or the wait for its feedback is over. Name `user` and `item` if another gateway "
        "may have answered it.",
    ),
    ProblemKind("method-not-allowed", 405, "The call takes another method", "The header `Allow` names it."),
    ProblemKind(
        "slow-request", 408, "The request did not come in time", "The connection is closed; send the request again.", 0
    ),
    ProblemKind(
        "event-conflict",
        409,
        "The event id stands for another request",
        "An event id names one request of one user. Take a new id.",
    ),
    ProblemKind(
        "feedback-conflict",
        409,
        "This event has different feedback",
        "The first feedback of each kind counts. Equal feedback is accepted again, different feedback is refused.",
    ),
    ProblemKind(
        "not-logged",
        409,
        "The answer to this event is not in the log",
        "It had `logged: false`, or there is none yet. Learners do not learn from it, so its feedback is refused.",
    ),
    ProblemKind(
        "other-configuration",
        409,
        "The report is of another configuration",
        "The report's deployment is not here any more. `GET /v1/agreement` has the agreement of the present one.",
    ),
    ProblemKind("body-too-large", 413, "The body is too large", "The gateway's settings limit it."),
    ProblemKind(
        "unsupported-media-type",
        415,
        "The body is of another type",
        "Send `Content-Type: application/json` (a report: `application/octet-stream`), without a content encoding.",
    ),
    ProblemKind(
        "wrong-host",
        421,
        "The request names another host",
        "A gateway without tokens answers only under the names of this machine, so that no web site can reach it "
        "through a browser.",
    ),
    ProblemKind(
        "stale-period",
        422,
        "The report names a period that is past or future",
        "The header `Date` has the gateway's time: seal the same content again, under the same id, for its period.",
    ),
    ProblemKind("bad-context", 422, "The deployment does not accept this context", "`detail` says what it accepts."),
    ProblemKind(
        "baseline-missing",
        422,
        "The request names no baseline",
        "The deployment is in shadow mode (`mode: shadow`): name your own choice as `baseline`, or set one in the "
        "gateway's settings.",
    ),
    ProblemKind("unknown-item", 422, "There is no such item", "`GET /v1/items` lists them."),
    ProblemKind("bad-item", 422, "The deployment does not accept this item", "`detail` says what it accepts."),
    ProblemKind(
        "catalogue-full",
        422,
        "There is no room for a new item",
        "All rows have items (`items.capacity`). Retire one (`hushstream items retire`); its row becomes free later.",
    ),
    ProblemKind("catalogue-changed", 409, "Somebody else changed the catalogue at the same time", "Send it again."),
    ProblemKind("unknown-user", 422, "The deployment has no such user", "Its users are those of a public graph."),
    ProblemKind("unknown-track", 422, "There is no such track", "`GET /v1/schema` lists them."),
    ProblemKind("bad-reward", 422, "The deployment does not accept this reward", "`detail` says what it accepts."),
    ProblemKind(
        "no-guardrail",
        422,
        "The deployment counts no harm",
        "A new deployment does that names one (`measurement.guardrail`).",
    ),
    ProblemKind("bad-record", 422, "The deployment does not accept this record", "`detail` says what it accepts."),
    ProblemKind("bad-ratings", 422, "The deployment does not accept these ratings", "`detail` says what it accepts."),
    ProblemKind(
        "refused-by-learner",
        422,
        "The learner refused the request",
        "What may be shown may have changed at this moment: ask again. If it stays, an operator finds why in "
        "`hushstream dead-letters list edge`.",
    ),
    ProblemKind(
        "too-many-requests", 429, "Too many requests of a caller or user", "The gateway's settings limit the rate.", 1
    ),
    ProblemKind("too-busy", 429, "Too many requests are in progress", "No request waits in a queue; try again.", 1),
    ProblemKind("internal", 500, "The gateway failed", "The gateway's log names the kind of the error."),
    ProblemKind(
        "log-unavailable",
        503,
        "The log did not acknowledge it",
        "No broker answers, or it refused the record. The record may be in the log: ask again under the same event id.",
        1,
    ),
    ProblemKind(
        "no-answer",
        503,
        "No worker answered in time",
        "No learner runs or it is behind, and there was no baseline. Ask again under the same event id.",
        1,
    ),
    ProblemKind("stopping", 503, "The gateway is being stopped", "Another gateway answers.", 1),
)

PROBLEMS: Mapping[str, ProblemKind] = {kind.code: kind for kind in _TABLE}


class Problem(Exception):
    """Ends a request with a problem document."""

    def __init__(
        self, code: str, detail: str | None = None, *, errors: Sequence[Mapping[str, str]] = (), close: bool = False
    ) -> None:
        """Name one of `PROBLEMS`.

        Args:
            code: the code of the problem.
            detail: what happened this time; it must repeat nothing of the user or the request.
            errors: the places in the body, and what was expected there.
            close: whether the connection is closed after the answer.
        """
        super().__init__(code)
        self.kind = PROBLEMS[code]
        self.detail = detail
        self.errors = errors
        self.close = close

    def document(self) -> dict[str, Any]:
        """The members of RFC 9457, and ``code``."""
        kind = self.kind
        found: dict[str, Any] = {
            "type": URN + kind.code,
            "title": kind.title,
            "status": kind.status,
            "code": kind.code,
            "detail": self.detail or kind.meaning,
        }
        if self.errors:
            found["errors"] = list(self.errors)
        return found

    def body(self) -> bytes:
        """The document as JSON."""
        return json.dumps(self.document()).encode()


class LogBusy(HushstreamError):
    """Too many records wait for their acknowledgement."""


_OF_ERRORS: tuple[tuple[type[HushstreamError], str], ...] = (
    (BaselineMissing, "baseline-missing"),
    (BadContext, "bad-context"),
    (UnknownArm, "unknown-item"),
    (UnknownUser, "unknown-user"),
    (UnknownTrack, "unknown-track"),
    (BadReward, "bad-reward"),
    (NoGuardrail, "no-guardrail"),
    (BadRatings, "bad-ratings"),
    (UnknownEvent, "event-conflict"),
    (RequestRefused, "refused-by-learner"),
    (DecisionTimeout, "no-answer"),
    (PredictionTimeout, "no-answer"),
    (LogBusy, "too-busy"),
)
"""The code of each error type; the first matching type counts. Any other error means that the log is unavailable."""

_SAID = frozenset({"bad-context", "bad-reward", "bad-ratings", "unknown-track"})
"""The problems whose error messages may be sent: they tell what the deployment accepts, and nothing of the request but
its size."""


def problem_of(error: HushstreamError) -> Problem:
    """The problem for an error of the client."""
    code = next((code for kind, code in _OF_ERRORS if isinstance(error, kind)), "log-unavailable")
    return Problem(code, str(error) if code in _SAID else None)


def any_problem_of(error: Exception) -> Problem:
    """The problem for any error; for an unexpected one, its type and place are logged."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, HushstreamError):
        return problem_of(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    _log.error("a request failed: %s at %s:%s", type(error).__name__, place.filename, place.lineno)
    return Problem("internal")


def table() -> str:
    """The page's table of all problems, in Markdown."""
    rows = ["| code | status | try again | meaning |", "| --- | --- | --- | --- |"]
    for kind in _TABLE:
        again = "no" if kind.retry_seconds is None else f"after {kind.retry_seconds} s" if kind.retry_seconds else "yes"
        rows.append(f"| `{kind.code}` | {kind.status} | {again} | {kind.title}. {kind.meaning} |")
    return "\n".join(rows)
