"""Translates contexts and items of requests into the client's arguments.

A context is the vector that the deployment's configuration requires, or the values of its declared features by name. An
item is the number of an arm, or its id if items have names. The OpenAPI document contains the types below unchanged,
and no other module of the calls knows anything about contexts and items.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, TypeAlias

from pydantic import Discriminator, Field, Tag

from hushstream.client.decisions import Decision
from hushstream.client.items import Items as Catalogue
from hushstream.engine.declare.requests import ContextRules
from hushstream.features.kinds import Outcome
from hushstream.gateway.problems import Problem
from hushstream.schemas.rows import MAX_ID_BYTES

MAX_ITEMS = 65_536
MAX_NUMBERS = 65_536

Numbers: TypeAlias = Annotated[
    list[float],
    Field(max_length=MAX_NUMBERS, description="As many numbers as `GET /v1/schema` says.", examples=[[0.7, 0.2, 0.1]]),
]
Values: TypeAlias = Annotated[
    dict[str, Any],
    Field(
        max_length=MAX_ITEMS,
        description="Values of declared features by name, as `GET /v1/schema` says; what is absent or null is missing. "
        "Or, where a context has the features of each item and items have names, these by the item's id.",
        examples=[{"country": "fr", "age": 31}],
    ),
]


def _form(context: Any) -> str:
    return "values" if isinstance(context, dict) else "numbers"


FORMS = frozenset({"numbers", "values"})
"""Names of alternatives that pydantic inserts after `context` into the path of a faulty value; requests do not have
them."""

Context: TypeAlias = Annotated[
    Annotated[Numbers, Tag("numbers")] | Annotated[Values, Tag("values")], Discriminator(_form)
]
Number: TypeAlias = Annotated[int, Field(ge=0, lt=MAX_ITEMS)]
Id: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_ID_BYTES)]
Item: TypeAlias = Annotated[
    Number | Id,
    Field(
        description="An item of `GET /v1/items`: its id if items have names, else its number, from 0.",
        examples=["winter-boots", 1],
    ),
]
Items: TypeAlias = Annotated[
    list[Item],
    Field(min_length=1, max_length=MAX_ITEMS, description="Items that may be shown; by default all."),
]


class Situation(NamedTuple):
    """What a request says of a visit.

    Attributes:
        context: for the client.
        key: equal for equal contexts; bytes, as numbers -1 and -2 have one hash.
        unknown: declared features with a value outside of their vocabulary.
    """

    context: Context
    key: bytes
    unknown: tuple[str, ...] = ()


class Translation:
    """Translates between requests and the arguments of a client of decisions."""

    def __init__(self, rules: ContextRules, catalogue: Catalogue | None = None) -> None:
        """Translate for one deployment, with its catalogue if items have names."""
        self._rules = rules
        self._catalogue = catalogue if catalogue is not None and catalogue.named else None

    def situation(self, context: Context) -> Situation:
        """A context for `hushstream.client.Client.decide`, and what else is known of it.

        Raises:
            BadContext: the context has names, and its values are not those of declared features. The client checks
                all others.
        """
        if isinstance(context, dict) and self._rules.item_numbers is not None:
            return Situation(context, repr(sorted(context.items())).encode())
        if isinstance(context, dict):
            found = self._rules.encoded(context)
            unknown = tuple(name for name, outcome in found.outcomes.items() if outcome is Outcome.UNKNOWN)
            return Situation(context, found.row, unknown)
        return Situation(context, array("d", context).tobytes())

    def arm(self, item: Item) -> int | str:
        """The client's argument for an item; the client checks whether an id is in the catalogue.

        Raises:
            Problem: there is no such item.
        """
        if self._catalogue is not None:
            if not isinstance(item, str):
                raise Problem("unknown-item", "item: expected the id of an item, got a number")
        elif isinstance(item, str) or not 0 <= item < self._rules.arms:
            raise Problem("unknown-item", f"item: expected one of the {self._rules.arms} items, numbered from 0")
        return item

    def eligible(self, items: Items | None, context: Context) -> Sequence[Any] | None:
        """The client's argument for the items that may be shown: those of the request, otherwise those of the context.

        None means all. Raises as `arms`.
        """
        if items is None and isinstance(context, dict) and self._rules.item_numbers is not None:
            return self.arms(list(context))
        return self.arms(items)

    def arms(self, items: Items | None) -> Sequence[Any] | None:
        """The client's argument for a list of items; None means all.

        Raises:
            Problem: one of them does not exist.
        """
        return None if items is None else [self.arm(item) for item in items]

    def item(self, decision: Decision) -> Item:
        """The item that was decided."""
        return decision.arm if decision.item is None else decision.item

    def items(self) -> list[dict[str, Any]]:
        """Every item that may be shown."""
        if self._catalogue is None:
            return [{"item": arm} for arm in range(self._rules.arms)]
        return [
            {"item": one.item, "title": one.title, "features": dict(one.features)} for one in self._catalogue.offered()
        ]

    def schema(self) -> dict[str, Any]:
        """The required form of a context, for ``GET /v1/schema``."""
        if self._rules.features is not None:
            return {"context": {"features": self._rules.features.plain, "expected": self._rules.expected}}
        if self._catalogue is not None:
            return {"context": {"numbers_of_each_item": self._rules.item_numbers, "expected": self._rules.expected}}
        return {"context": {"numbers": self._rules.width, "expected": self._rules.expected}}
