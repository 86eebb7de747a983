"""Reading a YAML file of settings: plain values, each key once, and errors that repeat nothing of its content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from hushstream.engine.values import ConfigurationError


def read_yaml(path: Path) -> dict[str, Any]:
    """Keys and values of a file.

    Raises:
        ConfigurationError: it is missing, unreadable, not YAML, or says a key twice.
    """
    try:
        # A loader made from the safe one; it builds plain values only.
        values = yaml.load(path.read_text(encoding="utf-8-sig"), _EachKeyOnce)
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigurationError(f"{path}: expected a configuration file, got none") from None
    except yaml.YAMLError as error:
        # The problem itself may repeat a piece of a secret (a password that begins with * reads as an alias).
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f", line {mark.line + 1}"
        raise ConfigurationError(
            f"{path}{where}: expected YAML with each key once, got {type(error).__name__}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: expected readable UTF-8, got {type(error).__name__}") from None
    if not isinstance(values, dict):
        raise ConfigurationError(f"{path}: expected keys and values, got {type(values).__name__}")
    return values


class _EachKeyOnce(yaml.SafeLoader):
    """YAML as it is specified: a key that occurs twice is an error, not the last one's value."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Build one mapping."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(problem_mark=key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)
