"""What a call of the gateway is: where it is, what it takes and gives, and who answers it."""

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
    """A body that is taken: exactly these keys, of exactly these types, and numbers that are finite."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Answered(BaseModel):
    """A body that is given."""

    model_config = ConfigDict(frozen=True)


def _short(text: str) -> str:
    if id_fault(text) is not None:
        raise ValueError(f"expected 1 to {MAX_ID_BYTES} bytes of UTF-8")
    return text


EventId: TypeAlias = Annotated[
    str,
    Field(min_length=1, max_length=MAX_ID_BYTES, description="Names this request, of this user alone; any new name."),
    AfterValidator(_short),
]
User: TypeAlias = Annotated[
    str,
    Field(min_length=1, max_length=MAX_ID_BYTES, description="The account, by a name that stays the same."),
    AfterValidator(_short),
]


class Taken(Answered):
    """Feedback that is in the log."""

    logged: bool = Field(description="Always true: the log holds it.")


@dataclass(frozen=True, slots=True)
class Call:
    """One call that is POSTed, which has a batch form, too.

    Attributes:
        name: below ``/v1``, and in metrics.
        summary: a line.
        about: what else is to be known.
        asked, answered: of one request.
        problems: codes that it may be answered with, beside those of every call.
        tells: whether it is feedback: how many there are of it follows from content.
    """

    name: str
    summary: str
    about: str
    asked: type[Asked]
    answered: type[Answered]
    problems: tuple[str, ...]
    tells: bool = False

    @property
    def path(self) -> str:
        """Of one request."""
        return f"/v1/{self.name}"

    @property
    def batch_path(self) -> str:
        """Of many."""
        return f"/v1/{self.name}/batch"


Answer: TypeAlias = Callable[[Any], Awaitable[Answered]]


class Answers(ABC):
    """Answers the calls of one conversation, over a client.

    Attributes:
        calls: which calls those are.
    """

    calls: tuple[Call, ...]
    _client: AbstractAsyncContextManager[Any]
    _by_call: Mapping[Call, Answer]

    def answer_of(self, call: Call) -> Answer:
        """Who answers a call: from its body to the answer.

        The answer raises `Problem`, or an error of the client.
        """
        return self._by_call[call]

    @abstractmethod
    def items(self) -> list[dict[str, Any]]:
        """What may be asked for."""

    @abstractmethod
    def schema(self) -> Mapping[str, Any]:
        """What the deployment takes."""

    async def __aenter__(self) -> Self:
        """Connect."""
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Flush and close."""
        await self._client.__aexit__(kind, error, trace)
