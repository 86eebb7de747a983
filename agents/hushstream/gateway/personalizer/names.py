"""Which item an action of a request is."""

from __future__ import annotations

from collections.abc import Sequence

from hushstream.engine.values import ConfigurationError
from hushstream.gateway.problems import Problem


class ActionNames:
    """Ids of actions, and the items that they name."""

    def __init__(self, actions: Sequence[str], items: int) -> None:
        """Of one deployment.

        Args:
            actions: the id of each item, from item 0.
            items: how many the deployment has.

        Raises:
            ConfigurationError: there are more ids than items.
        """
        if len(actions) > items:
            raise ConfigurationError(f"personalizer.actions: expected at most {items}, the items, got {len(actions)}")
        self._items = {action: item for item, action in enumerate(actions)}

    def item(self, action: str) -> int:
        """The item of an action.

        Raises:
            Problem: there is no such action.
        """
        item = self._items.get(action)
        if item is None:
            raise Problem("unknown-item", "actions: expected ids of the deployment's items alone, got another")
        return item
