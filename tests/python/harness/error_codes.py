"""The codes of errors, read from their only list: docs/reference/errors.md."""

from pathlib import Path

_PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "errors.md"
#: All codes of the module's own errors.
CODES = frozenset(row.split("`")[1] for row in _PAGE.read_text().splitlines() if row.startswith("| `"))
