"""Faust's types, imported without the HTTP client that they name.

``faust.types.web`` names the client of aiohttp, with which an application of Faust may call others. A worker calls
nobody, and importing aiohttp takes a fifth of the CPU time of its start: it reads all certificates of the system twice.
So `object` stands for the client while Faust's types are imported. Who imports aiohttp later, as a gateway does,
gets aiohttp.
"""

from __future__ import annotations

import sys
from types import ModuleType

_CLIENT = ModuleType("aiohttp.client")
vars(_CLIENT)["ClientSession"] = object
_STANDS_FOR = {"aiohttp": ModuleType("aiohttp"), _CLIENT.__name__: _CLIENT}
_imported = {name: module for name, module in sys.modules.items() if name in _STANDS_FOR}
sys.modules.update(_STANDS_FOR)
try:
    from faust.exceptions import ProducerSendError as ProducerSendError
    from faust.types import TP as TP
finally:
    del sys.modules["aiohttp"], sys.modules["aiohttp.client"]
    sys.modules.update(_imported)
