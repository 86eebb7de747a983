"""What a request calls a context and an item, as the client's arguments: the one place where the two meet.

Here a context is the vector that the deployment's configuration asks for, and an item is the number of an arm. Whoever
gives items names, or describes contexts by features, changes this module and no other: the types below are in the
OpenAPI document as they stand here, and the calls hold nothing else of contexts and items.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

from pydantic import Field

from hushstream.engine.declare.requests import ContextRules
from hushstream.gateway.problems import Problem

MAX_ITEMS = 65_536
MAX_NUMBERS = 65_536

Context: TypeAlias = Annotated[
    list[float],
    Field(max_length=MAX_NUMBERS, description="As many numbers as `GET /v1/schema` says.", examples=[[0.7, 0.2, 0.1]]),
]
Item: TypeAlias = Annotated[
    int, Field(ge=0, lt=MAX_ITEMS, description="An item of `GET /v1/items`: its number, from 0.", examples=[1])
]
Items: TypeAlias = Annotated[
    list[Item],
    Field(min_length=1, max_length=MAX_ITEMS, description="Items that may be shown; all of them where it is left out."),
]


class Translation:
    """Between the words of a request and the arguments of a client of decisions."""

    def __init__(self, rules: ContextRules) -> None:
        """Of one deployment."""
        self._rules = rules

    def vector(self, context: Context) -> list[float]:
        """The vector of a context, as `hushstream.client.Client.decide` takes it."""
        return context

    def arm(self, item: Item) -> int:
        """The arm of an item.

        Raises:
            Problem: there is no such item.
        """
        if not 0 <= item < self._rules.arms:
            raise Problem("unknown-item", f"item: expected one of the {self._rules.arms} items, numbered from 0")
        return item

    def arms(self, items: Items | None) -> Sequence[int] | None:
        """The arms of the items that may be shown; None for all.

        Raises:
            Problem: one of them does not exist.
        """
        return None if items is None else [self.arm(item) for item in items]

    def item(self, arm: int) -> Item:
        """The item of an arm."""
        return arm

    def items(self) -> list[dict[str, Any]]:
        """Every item."""
        return [{"item": self.item(arm)} for arm in range(self._rules.arms)]

    def schema(self) -> dict[str, Any]:
        """What a context must be."""
        return {"context": {"numbers": self._rules.width, "expected": self._rules.expected}}
