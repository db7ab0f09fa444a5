"""The page is self-contained, safe, complete and honest about what is missing."""

from __future__ import annotations

import itertools
import json
import math
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import synthetic_summary as synthetic

from reports.figures import curve, curve_png
from reports.marks import Run
from reports.multiples import time_lines
from reports.page import NARROW, points_rows, run_figures, write_report
from reports.readings import percent
from reports.svg import WIDE

BUILDERS = {
    "open": synthetic.open_loop, "closed": synthetic.closed_loop, "unknown": synthetic.unknown_bound,
    "far": synthetic.far_bound, "failed": synthetic.all_failed, "nulls": synthetic.nulls_everywhere,
    "overloaded": synthetic.overloaded_knee,
}  # fmt: skip
VOID = {"meta", "link", "br", "img", "input", "hr"}
LOADING = {"src", "href", "xlink:href", "srcset", "data", "action", "poster"}


class Page(HTMLParser):
    """A strict reader: every tag is closed in order, ids are unique; collects attributes and visible text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        assert len(found) == len(attrs), f"an attribute twice on {tag}"
        self.tags.append((tag, found))
        if "id" in found:
            self.ids.append(str(found["id"]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style", "pre"):
            self.text.append(data)

    def words(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.text))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("pages")
    for name, build in BUILDERS.items():
        write_report(build(), folder / f"{name}.html")
    return {name: (folder / f"{name}.html").read_text(encoding="utf-8") for name in BUILDERS}


@pytest.mark.parametrize("name", BUILDERS)
def test_a_page_is_well_formed_and_loads_nothing(sources: dict[str, str], name: str) -> None:
    page = Page(sources[name])
    assert len(page.ids) == len(set(page.ids))
    for tag, attributes in page.tags:
        for key in LOADING & attributes.keys():
            assert str(attributes[key]).startswith(("#", "data:")), (tag, key, attributes[key])
        assert tag not in ("iframe", "object", "embed", "base")
    assert not re.search(r"@import|url\(\s*['\"]?(?!#)|fetch\(|XMLHttpRequest|import\(", sources[name])


@pytest.mark.parametrize("name", BUILDERS)
def test_references_inside_a_drawing_point_to_something(sources: dict[str, str], name: str) -> None:
    ids = set(Page(sources[name]).ids)
    wanted = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', sources[name]))
    assert {a or b for a, b in wanted} <= ids


@pytest.mark.parametrize("name", BUILDERS)
def test_no_reader_meets_nan_none_or_infinity(sources: dict[str, str], name: str) -> None:
    assert not re.search(r"\b(nan|NaN|None|inf|Infinity|undefined|null%)\b", Page(sources[name]).words())


@pytest.mark.parametrize("name", BUILDERS)
def test_every_drawing_has_a_name_a_caption_and_conditions(sources: dict[str, str], name: str) -> None:
    figures = re.findall(r"<figure>.*?</figure>", sources[name], flags=re.S)
    for figure in figures:
        caption = figure[figure.index("<figcaption>") :]
        for variable in ("input lengths", "output lengths", "load", "latency target"):
            assert f"<b>{variable}</b>" in caption
        for svg in re.findall(r"<svg[^>]*>.{0,40}<g[^>]*>", figure, flags=re.S):
            assert svg.count("aria-label=") == 2
            assert 'role="img"' in svg
    assert len(figures) == (0 if name == "failed" else 4)


def test_the_first_screen_says_identity_verdicts_answer_and_curve_in_this_order(sources: dict[str, str]) -> None:
    text = Page(sources["open"]).words()
    facts = [
        "rag llama-3.1-8b bf16 · vLLM 0.8.5 · 1 x H100 SXM 80 GB, TP 1",
        "2026-12-01 13:00 UTC",
        "6 valid, 1 warn, 1 overloaded, 1 invalid",
        "Within the SLO (TTFT p95 < 500 ms, ITL p95 < 50 ms) it serves 30 users: 5 requests/s, 1,215 output tokens/s, "
        "35% of the memory-bandwidth bound. Past the knee at 58 users (1,507 output tokens/s) the queue grows.",
    ]  # fmt: skip
    places = [text.index(fact) for fact in facts]
    assert places == sorted(places)
    curve = text[places[-1] : text.index("input lengths")]
    for fact in ("compute bound", "memory-bandwidth bound", "KV cache full at 142", "SLO met up to 30", "knee at 58"):
        assert fact in curve


def test_the_figure_says_of_the_knee_what_the_sentence_says() -> None:
    def curve_text(summary: dict[str, Any], *size: float) -> str:
        drawn = curve([Run(summary)], *size)
        assert drawn is not None
        return " ".join(text.get_text() for text in drawn.axes.texts).replace("\n", " ")

    reached = synthetic.overloaded_knee()
    for size in ((), NARROW):
        assert "past 30 users only overload gives more" in curve_text(reached, *size)
        assert "knee at" not in curve_text(reached, *size)
        assert "knee at 58 users" in curve_text(synthetic.open_loop(), *size)
    assert "No knee is marked, for only overloaded points" in run_figures(reached)["curve"][0].says
    assert "The ring marks the knee" in run_figures(synthetic.open_loop())["curve"][0].says


@pytest.mark.parametrize("size", [(), NARROW])
@pytest.mark.parametrize("name", [name for name in BUILDERS if name not in ("failed", "nulls")])
def test_no_label_of_the_curve_lies_on_another_or_on_a_point(name: str, size: tuple[float, ...]) -> None:
    drawn = curve([Run(BUILDERS[name]())], *size)
    assert drawn is not None
    drawn.figure.draw_without_rendering()
    labels = [(t.get_text(), t.get_window_extent()) for t in drawn.axes.texts if t.get_text()]
    assert len(labels) >= 2
    for (first, box), (second, other) in itertools.combinations(labels, 2):
        assert not box.overlaps(other), (first, second)
    for mark in drawn.marks:
        x, y = drawn.axes.transData.transform((mark.x, mark.y))
        assert not [text for text, box in labels if box.contains(x, y)], mark.text


@pytest.mark.parametrize("width", [WIDE, NARROW[0]])
def test_every_load_point_has_a_time_line_with_its_own_scale_and_its_window_shaded(width: float) -> None:
    drawn = time_lines(Run(synthetic.open_loop()), width)
    assert drawn is not None
    titles = [axes.get_title(loc="left") for axes in drawn.figure.axes]
    assert titles == [
        "0.25 requests/s", "0.50 requests/s", "1.00 requests/s", "2.00 requests/s, invalid", "4.00 requests/s",
        "5.00 requests/s", "6.20 requests/s, warn", "6.60 requests/s", "8.00 requests/s, overloaded",
    ]  # fmt: skip
    for axes, mark in zip(drawn.figure.axes, drawn.marks, strict=True):
        [shaded] = axes.patches
        assert (shaded.get_x(), shaded.get_x() + shaded.get_width()) == (10.0, 250.0)
        assert mark.axes is axes
        assert axes.get_ylim()[1] == pytest.approx(1.1 * max(axes.lines[0].get_ydata()))
        assert axes.get_position().x1 <= 1
    growing = drawn.figure.axes[-1].lines[0].get_ydata()
    assert growing[95] > 5 * growing[10]
    panels = [axes.get_tightbbox() for axes in drawn.figure.axes]
    assert not [1 for one, other in itertools.combinations(panels, 2) if one.overlaps(other)]


def test_a_point_whose_counter_was_lost_has_no_time_line_and_the_page_says_so() -> None:
    summary = synthetic.open_loop()
    summary["points"][0]["time_line"]["in_flight"] = []
    del summary["points"][1]["time_line"]  # a summary of an earlier version
    [figure] = run_figures(summary)["time"]
    assert figure.missing == ("2 of 9 points n/a: the counter was not kept",)
    assert str(figure.wide).count('class="pt"') == 7


def test_a_drawing_follows_the_theme_and_keeps_its_text_searchable(sources: dict[str, str]) -> None:
    drawing = re.search(r'<svg class="plot".*?</svg>', sources["open"], flags=re.S)
    assert drawing is not None
    assert set(re.findall(r"#[0-9a-f]{6}\b(?!\")", drawing[0])) == set()
    assert "var(--ink)" in drawing[0]
    assert "font-family" not in drawing[0]
    assert "overloaded: the queue grows" in drawing[0]


def test_a_far_bound_does_not_flatten_the_measured_curve(sources: dict[str, str]) -> None:
    summary = synthetic.far_bound()
    curve = re.search(r'<svg class="plot".*?</svg>', sources["far"], flags=re.S)
    assert curve is not None
    heights = [float(y) for y in re.findall(r'class="hit" cx="[\d.]+" cy="([\d.]+)"', curve[0])]
    total = float(str(re.search(r'viewBox="0 0 \S+ (\S+)"', curve[0])[1]))  # type: ignore[index]
    assert max(heights) - min(heights) > 0.4 * total
    assert f"{max(row['compute_tps'] for row in summary['roofline']['curve']):,.0f}" in curve[0]


def test_an_unknown_bound_is_asked_for_and_the_rest_is_drawn(sources: dict[str, str]) -> None:
    text = Page(sources["unknown"]).words()
    assert "Bound unknown: tell me the hardware (--hardware, --model-config)." in text
    assert sources["unknown"].count('<svg class="plot"') == sources["open"].count('<svg class="plot"')
    assert "compute bound" not in text


def test_all_failed_shows_errors_with_counts_and_neither_curve_nor_zeros(sources: dict[str, str]) -> None:
    text = Page(sources["failed"]).words()
    assert "Nothing was measured: not one of 180 requests was answered." in text
    assert "503 Service Unavailable: model is loading 172" in text
    assert "<svg" not in sources["failed"]
    assert '<table class="points">' not in sources["failed"]


def test_one_point_where_all_failed_is_not_drawn_as_a_zero(tmp_path: Path) -> None:
    summary = synthetic.open_loop()
    summary["points"][0]["output_tps"] = 0.0
    summary["points"][0]["counts"].update(ok=0, failed=60)
    write_report(summary, tmp_path / "x.html")
    source = (tmp_path / "x.html").read_text(encoding="utf-8")
    assert "1 of 9 points n/a: no answers: not one request was answered" in source
    # It keeps its place where no throughput is drawn: the spreads and, wide and narrow, the time lines.
    assert len(re.findall(r'class="pt" data-point="0"', source)) == source.count('id="spread-') + 2


def test_a_missing_number_says_why_on_hover_and_in_print(sources: dict[str, str]) -> None:
    assert '<td class="na" title="needs 72 samples, has 60">n/a, needs 72</td>' in sources["open"]
    assert 'title="withheld: the queue grows (NONSTATIONARY)">n/a, withheld</td>' in sources["open"]
    assert re.search(r"1 of 9 points n/a: withheld: the queue grows", Page(sources["open"]).words())


def test_closed_loop_says_that_latencies_count_from_sent(sources: dict[str, str]) -> None:
    assert "latencies count from sent, not from intended" in Page(sources["closed"]).words()


def test_an_interrupted_run_and_a_scaled_one_say_so_prominently(sources: dict[str, str]) -> None:
    assert "The run was interrupted" in Page(sources["nulls"]).words()
    assert sources["far"].index("Scaled to what a CPU serves") < sources["far"].index("<figure>")


def test_hostile_texts_stay_texts(tmp_path: Path) -> None:
    summary = synthetic.all_failed()
    hostile = '<script>alert("x")</script>&</pre>$a_b$'
    summary["scenario"]["name"] = hostile
    summary["notes"] = [hostile]
    summary["conditions"]["engine"] = hostile
    summary["points"][0]["errors"][0]["message"] = hostile
    summary["points"][0]["validity"]["checks"][0]["text"] = hostile
    summary["definitions"] = {hostile: hostile}
    write_report(summary, tmp_path / "x.html")
    text = (tmp_path / "x.html").read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert [tag for tag, _ in Page(text).tags].count("script") == 1


def test_every_point_shows_all_its_numbers_and_is_the_same_point_everywhere(sources: dict[str, str]) -> None:
    page = Page(sources["open"])
    for index in range(9):
        assert f"numbers-{index}" in page.ids
        places = [tag for tag, found in page.tags if found.get("data-point") == str(index)]
        assert "tr" in places
        assert places.count("g") >= 2  # at least in both drawings of the curve
    first = [found for tag, found in page.tags if found.get("class") == "pt" and found.get("tabindex") == "0"]
    assert len(first) == sources["open"].count('<svg class="plot"')  # one tab stop a drawing


def test_the_fluidity_index_stands_in_the_table_or_says_why_not(sources: dict[str, str]) -> None:
    assert ">fluidity<small>share</small>" in sources["open"]
    assert "<td>84%</td>" in sources["open"]
    summary = synthetic.open_loop()
    for one in summary["points"]:
        one["fluidity"] = {"share": None, "reason": "no ITL objective: tokens have no deadlines"}
    cells = [row["cells"][11] for row in points_rows(Run(summary))]
    assert {cell.text for cell in cells} == {"n/a, no ITL objective"}


@pytest.mark.parametrize(
    ("share", "text"), [(0, "0%"), (0.05, "5.0%"), (0.5, "50%"), (0.98, "98%"), (0.9996, "99.9%"), (1, "100%")]
)
def test_only_all_of_it_is_100_percent(share: float, text: str) -> None:
    assert percent(share) == text


def test_the_raw_numbers_are_in_the_page(sources: dict[str, str]) -> None:
    raw = re.search(r'<pre id="raw-json"[^>]*>(.*?)</pre>', sources["open"], flags=re.S)
    assert raw is not None
    assert json.loads(raw[1].replace("&#34;", '"').replace("&gt;", ">").replace("&lt;", "<").replace("&#39;", "'"))


def test_a_png_of_the_curve_is_written_and_refused_without_a_curve(tmp_path: Path) -> None:
    curve_png(synthetic.open_loop(), tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="no curve to draw"):
        curve_png(synthetic.nulls_everywhere(), tmp_path / "none.png")


def _numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [x for one in value.values() for x in _numbers(one)]
    if isinstance(value, list):
        return [x for one in value for x in _numbers(one)]
    return [float(value)] if isinstance(value, int | float) else []


@pytest.mark.parametrize("name", ["open", "failed"])
def test_the_stored_summaries_are_those_of_the_builder(name: str) -> None:
    path = Path(__file__).parent.parent / "data" / f"summary_{name}.json"
    stored, built = (json.loads(text) for text in (path.read_text(), json.dumps(BUILDERS[name]())))
    pairs = zip(_numbers(stored), _numbers(built), strict=True)
    assert all(math.isclose(a, b, rel_tol=1e-9) for a, b in pairs)
    assert stored["conditions"] == built["conditions"]


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def title_when_shown(path: Path, *flags: str) -> tuple[str, str]:
    """(title of the page after two virtual seconds in a browser, the browser's log)."""
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={path.parent}/profile",
               "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--dump-dom",
               "--virtual-time-budget=2000", *flags, path.as_uri()]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert title is not None
    return title[1], done.stderr


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium: the page's script is not run")
def test_the_script_runs_without_an_error_and_focus_marks_the_point_in_every_figure(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(synthetic.open_loop(), path)
    probe = """<script>
      const p = document.querySelector('.wide .pt[data-point="6"]'); p.focus();
      p.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight", bubbles: true}));
      document.title = ["errors", window.failures, "tip", document.querySelector("#tip b").textContent,
        "on", document.querySelectorAll(".on").length,
        "all", document.querySelectorAll('[data-point="7"]').length].join("|");
    </script></body>"""
    text = path.read_text(encoding="utf-8").replace("</body>", probe)
    watch = "<script>window.failures = 0; addEventListener('error', () => { window.failures += 1; });</script>"
    path.write_text(text.replace("<style>", watch + "<style>", 1), encoding="utf-8")
    title, log = title_when_shown(path)
    _, failures, _, tip, _, on, _, everywhere = title.split("|")
    assert failures == "0"
    assert tip == "6.20 requests/s, warn"
    assert int(on) == int(everywhere) >= 8
    assert "CONSOLE" not in log


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium: the page's script is not run")
def test_a_table_that_is_wider_than_the_screen_says_so_and_one_that_fits_does_not(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(synthetic.open_loop(), path)
    probe = """<script>
      setTimeout(() => document.querySelectorAll("details").forEach((fold) => { fold.open = true; }), 100);
      setTimeout(() => { document.title = [...document.querySelectorAll(".scroll")].slice(0, 3)
        .map((box) => [box.scrollWidth > box.clientWidth + 1, box.previousElementSibling.hidden].join("-")).join("|");
      }, 500);
    </script></body>"""
    path.write_text(path.read_text(encoding="utf-8").replace("</body>", probe), encoding="utf-8")
    # Load points, a fold that was opened later, the certificate.
    assert title_when_shown(path, "--window-size=500,900")[0].split("|") == ["true-false"] * 3
    assert title_when_shown(path, "--window-size=1440,900")[0].split("|") == ["false-true"] * 3
