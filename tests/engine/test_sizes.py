"""The meter of sizes sees what makes a reader's way longer, and no more."""

from pathlib import Path

from modules import module_at

sizes = module_at(Path(__file__).with_name("sizes.py"), "sizes_meter")


def test_imports_are_code_lines_and_words_for_people_are_not(tmp_path):
    file = tmp_path / "some.py"
    file.write_text(
        '"""A page\nof words."""\n\nimport os\nfrom sys import (\n    path,\n)\n\n# why\nx = [os, path]\n',
        encoding="utf-8",
    )
    assert sizes.code_lines(file) == 5


def test_what_is_taken_from_a_library_or_defined_for_one_is_a_private_name(tmp_path, monkeypatch):
    (tmp_path / "some.py").write_text(
        "class Mine(Base):\n"
        "    def __init__(self, other):\n"
        "        self._own = other._theirs\n"
        "        self._call()\n"
        "    def _call(self):\n"
        "        return self._own._replace(a=1)\n"
        "    def _called_by_the_library(self):\n"
        "        return 0\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(sizes, "PRODUCT", (tmp_path,))
    assert sizes.private_names() == {"_theirs", "_called_by_the_library"}


def test_every_file_of_the_product_is_in_at_most_one_part():
    files = [path for files in sizes.Parts().files.values() for path in files]
    assert len(files) == len(set(files))
    assert len(files) > 300
