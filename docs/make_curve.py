"""Draws the README's picture from a real run: `python docs/make_curve.py RUN_FOLDER`.

Without a folder it draws the run that is kept in docs/curve.json again.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from reports.figures import curve_png

HERE = Path(__file__).parent


def main() -> None:
    """Keep the run's summary and draw it."""
    if len(sys.argv) > 1:
        shutil.copyfile(Path(sys.argv[1]) / "summary.json", HERE / "curve.json")
    curve_png(json.loads((HERE / "curve.json").read_text(encoding="utf-8")), HERE / "curve.png")


if __name__ == "__main__":
    main()
