"""Servers x situations: every cell is read right, and docs/endpoints.md says so."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from support.matrix import COLUMNS, ROWS, Row, cell_of

ROOT = Path(__file__).parents[2]
CELLS = [
    pytest.param(row, column, id=f"{row.server}:{row.api}:{column}")
    for row in ROWS
    for column in COLUMNS
    if cell_of(row, column) is not None
]


@pytest.mark.parametrize(("row", "column"), CELLS)
def test_a_cell_of_the_matrix_is_read_right(row: Row, column: str) -> None:
    cell = cell_of(row, column)
    assert cell is not None
    assert cell.problem == ""


def test_the_endpoints_page_is_what_the_matrix_finds() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "make_endpoints.py"))["page"]()
    assert (ROOT / "docs" / "endpoints.md").read_text(encoding="utf-8") == page
    assert "**wrong**" not in page
