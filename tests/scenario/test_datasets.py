"""Prompts from files: what is read, what is refused and where, and what happens when they run out."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.scenario.datasets import Dataset, load_dataset, take
from loadgen.scenario.errors import ScenarioError

# Case B88 of the shared cases: five rows, of which one is empty and one longer than 20 words.
B88_LINES = [
    '{"prompt":"a b c"}',
    '{"prompt":""}',
    '{"prompt":"d e f"}',
    json.dumps({"prompt": "long " * 50}),
    '{"prompt":"g h"}',
]
# Case B89: byte order mark, CRLF, a blank line, a quoted newline, an extra column, an accent.
B89_BASE64 = "77u/cHJvbXB0LG91dA0KImhpLCB0aGVyZSIsNQ0KDQoidHdvCmxpbmVzIiw2DQpow6lsbG8sNw0K"


def write(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


@pytest.fixture
def b88(tmp_path):
    return load_dataset(write(tmp_path, "b88.jsonl", "\n".join(B88_LINES)), max_prompt_tokens=20)


def test_b88_counts_what_it_leaves_out(b88):
    assert b88.prompts == ("a b c", "d e f", "g h")
    assert (b88.n_empty, b88.n_too_long) == (1, 1)


def test_b88_error_names_both_numbers(b88):
    with pytest.raises(
        ScenarioError, match=r"3 usable prompts for 10 requests \(1 empty and 1 too long were left out\)"
    ):
        take(b88, 10, "error")


def test_b88_repeat_sends_10_and_marks_7(b88):
    taken = take(b88, 10, "repeat")
    assert len(taken) == 10
    assert sum(repeat for _, repeat in taken) == 7
    assert taken[3] == ("a b c", True)


def test_b88_stop_sends_3(b88):
    assert take(b88, 10, "stop") == [("a b c", False), ("d e f", False), ("g h", False)]


def test_b89_csv_with_every_nuisance_gives_its_three_prompts(tmp_path):
    dataset = load_dataset(write(tmp_path, "b89.csv", base64.b64decode(B89_BASE64)))
    assert dataset.prompts == ("hi, there", "two\nlines", "héllo")


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_jsonl_takes_a_bom_any_line_end_blank_lines_and_unicode_separators(tmp_path, line_end):
    lines = ['{"q": "one\u2028still one"}', "", '{"q": "two", "other": 5}', "   "]
    dataset = load_dataset(write(tmp_path, "a.jsonl", "\ufeff" + line_end.join(lines)), field="q")
    assert dataset.prompts == ("one\u2028still one", "two")


@pytest.mark.parametrize(
    ("name", "content", "line", "complaint"),
    [
        ("a.jsonl", '{"prompt": "x"}\n\n{"prompt": ', 3, "not JSON"),
        ("a.jsonl", '{"prompt": "x"}\n[1]\n', 2, "not a JSON object"),
        ("a.jsonl", '{"promt": "x"}', 1, "no field 'prompt'; did you mean 'promt'?"),
        ("a.jsonl", '{"prompt": "x"}\n{"prompt": 5}', 2, "not a text but int"),
        ("a.jsonl", '{"prompt": "\\ud800"}', 1, "surrogate"),
        ("a.jsonl", b'{"prompt": "x"}\n{"prompt": "\xe9"}', 2, "not UTF-8"),
        ("a.csv", "text,n\nhello,1\n", 1, "no column 'prompt'; known: text, n"),
        ("a.csv", 'prompt,n\n"a\nb",1\nhi, there,5\n', 4, "3 cells under a header of 2"),
        ("a.csv", 'prompt,n\nx,1\n"open,2\n', 3, "not CSV"),
        ("a.csv", b"prompt\nok\n\xff\n", 3, "not UTF-8"),
    ],
)
def test_errors_name_file_and_line(tmp_path, name, content, line, complaint):
    path = write(tmp_path, name, content)
    with pytest.raises(ScenarioError) as caught:
        load_dataset(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_an_unknown_kind_are_one_line_each(tmp_path):
    with pytest.raises(ScenarioError, match=r"nope\.jsonl: cannot read"):
        load_dataset(str(tmp_path / "nope.jsonl"))
    with pytest.raises(ScenarioError, match=r"\.jsonl or \.csv"):
        load_dataset("prompts.parquet")


def test_a_file_without_a_usable_prompt_is_refused_under_every_policy(tmp_path):
    empty = load_dataset(write(tmp_path, "a.csv", "prompt\n"))
    for policy in ("error", "repeat", "stop"):
        with pytest.raises(ScenarioError, match="no usable prompt"):
            take(empty, 1, policy)


def test_a_csv_prompt_may_be_longer_than_the_csv_modules_limit(tmp_path):
    dataset = load_dataset(write(tmp_path, "a.csv", "prompt\n" + "word " * 40_000 + "\n"))
    assert len(dataset.prompts[0]) == 200_000


def test_the_hash_follows_the_content(tmp_path):
    one, two = (load_dataset(write(tmp_path, f"{n}.csv", f"prompt\n{n}\n")) for n in (1, 2))
    assert one.sha256 != two.sha256


@settings(max_examples=50)
@given(n_usable=st.integers(1, 20), n_wanted=st.integers(0, 60))
def test_repeats_are_marked_exactly_when_a_prompt_comes_again(n_usable, n_wanted):
    dataset = Dataset("d", tuple(str(i) for i in range(n_usable)), 0, 0, "")
    seen: set[str] = set()
    for text, repeat in take(dataset, n_wanted, "repeat"):
        assert repeat == (text in seen)
        seen.add(text)
