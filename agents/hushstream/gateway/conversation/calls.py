"""Defines a call of the gateway: its path, its request and answer, and the object that answers it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Annotated, Any, Self, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from hushstream.schemas.rows import MAX_ID_BYTES, id_fault


class Asked(BaseModel):
    """The body of a request: only these keys, with values of exactly these types, and finite numbers."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @property
    def counted_for(self) -> str:
        """Whom the limit for each user counts: the user, or the event where feedback names nobody."""
        fields = self.__dict__
        return str(fields["user"] or fields["event_id"])


class Answered(BaseModel):
    """The body of an answer."""

    model_config = ConfigDict(frozen=True)


def _short(text: str) -> str:
    if id_fault(text) is not None:
        raise ValueError(f"expected 1 to {MAX_ID_BYTES} bytes of UTF-8 in one line, and not only blanks")
    return text


EventId: TypeAlias = Annotated[
    str,
    Field(min_length=1, max_length=MAX_ID_BYTES, description="Names this request: a new name, unique over all users."),
    AfterValidator(_short),
]
User: TypeAlias = Annotated[
    str,
    Field(min_length=1, max_length=MAX_ID_BYTES, description="The account: any name that stays the same."),
    AfterValidator(_short),
]


class Taken(Answered):
    """The answer to feedback: it is in the log."""

    logged: bool = Field(description="Always true: the log holds it.")


@dataclass(frozen=True, slots=True)
class Call:
    """One call by POST, which also has a batch form unless it is for operators.

    Attributes:
        name: the name below ``/v1``, and in metrics.
        summary: one line about the call.
        about: further explanation.
        asked, answered: the models of a request and of its answer; a call that asks nothing is a GET.
        problems: the codes of its problems, besides those of every call.
        is_feedback: whether it is feedback. The number of such requests is content, so public metrics must not count
            them.
        for_operators: whether only operators may call it; it has no batch form.
    """

    name: str
    summary: str
    about: str
    asked: type[Asked] | None
    answered: type[Answered]
    problems: tuple[str, ...]
    is_feedback: bool = False
    for_operators: bool = False

    @property
    def path(self) -> str:
        """The path of the call with one request."""
        return f"/v1/{self.name}"

    @property
    def batch_path(self) -> str:
        """The path of the call with many requests."""
        return f"/v1/{self.name}/batch"


Answer: TypeAlias = Callable[[Any], Awaitable[Answered]]


class Answers(ABC):
    """Answers the calls of one conversation, by a client.

    A call is answered by the method of its name: it takes the body and returns the answer, or raises `Problem` or an
    error of the client.

    Attributes:
        calls: the calls of the conversation.
    """

    calls: tuple[Call, ...]
    _client: AbstractAsyncContextManager[Any]

    @abstractmethod
    def items(self) -> list[dict[str, Any]]:
        """The content of ``GET /v1/items``: the items that requests may name."""

    def looks(self) -> Mapping[str, Callable[[], Any]]:
        """What GET shows, by path: at that of a call for operators, what the call changes."""
        return {"/v1/items": lambda: {"items": self.items()}}

    @abstractmethod
    def schema(self) -> Mapping[str, Any]:
        """The content of ``GET /v1/schema``: what the deployment accepts."""

    async def __aenter__(self) -> Self:
        """Connect."""
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Flush and close."""
        await self._client.__aexit__(kind, error, trace)
