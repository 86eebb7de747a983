"""The wheel holds every schema and template, marks its types, and puts nothing but hushstream into site-packages."""

import sys
import zipfile
from pathlib import Path

names = zipfile.ZipFile(sys.argv[1]).namelist()
top = {name.split("/")[0] for name in names if ".dist-info" not in name.split("/")[0]}
assert top == {"hushstream"}, f"expected hushstream alone, got {sorted(top)}"
for root in ("pipeline", "schemas", "agents", "replay"):
    for path in Path(root).rglob("*"):
        if path.is_file() and path.suffix in {".py", ".avsc", ".j2", ".typed", ".html", ".css"}:
            assert str(path.relative_to(root)) in names, f"expected {path} in the wheel, it is missing"
assert "hushstream/__init__.py" not in names, "expected a namespace without __init__.py"
print(f"wheel: {len(names)} files, as expected")
