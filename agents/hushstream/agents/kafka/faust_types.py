"""Faust's types, imported without the HTTP client that they name.

``faust.types.web`` names the client of aiohttp, with which an application of Faust may call others. A worker calls
nobody, and importing aiohttp takes a fifth of the CPU time of its start: it reads all certificates of the system twice.
So another class stands for the client while Faust's types are imported. Who imports aiohttp later, as a gateway does,
gets aiohttp.
"""

from __future__ import annotations

import sys
from types import ModuleType


class NoHttpClient:
    """The class that Faust's types and settings name in place of aiohttp's client; nobody makes one."""


_CLIENT = ModuleType("aiohttp.client")
vars(_CLIENT)["ClientSession"] = NoHttpClient
_STANDS_FOR = {"aiohttp": ModuleType("aiohttp"), _CLIENT.__name__: _CLIENT}
_imported = {name: module for name, module in sys.modules.items() if name in _STANDS_FOR}
sys.modules.update(_STANDS_FOR)
try:
    from faust.exceptions import ProducerSendError
    from faust.types import TP
finally:
    for _name in _STANDS_FOR:
        del sys.modules[_name]
    sys.modules.update(_imported)

__all__ = ["TP", "NoHttpClient", "ProducerSendError"]
