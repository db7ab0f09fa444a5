"""Prompts have the wanted size, share what they should, and nothing else."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.scenario.prompts import TextUnit, fit_text_unit, render_prompt, unit_probes
from loadgen.scenario.schedule import PlannedRequest
from loadgen.scenario.words import WORDS

WORD = TextUnit("word", 1.0, 0.0)
CHAR = TextUnit("char", 1.0, 0.0)


def planned(index: int, tokens: int, prefix: int = 0, group: int | None = None) -> PlannedRequest:
    return PlannedRequest(index, 0.0, "measured", tokens, 16, prefix, group)


def render(request: PlannedRequest, unit: TextUnit = WORD, seed: int = 7, point: int = 0, salt: str = "run") -> str:
    return render_prompt(request, unit, seed, point, salt)


def test_the_words_are_many_short_and_distinct():
    assert len(WORDS) == len(set(WORDS)) >= 400
    assert max(map(len, WORDS)) <= 10
    assert all(word.isascii() and word.isalpha() and word.islower() for word in WORDS)


@given(
    tokens=st.integers(1, 3000), overhead=st.integers(0, 40), prefix=st.integers(0, 600), index=st.integers(0, 10**6)
)
def test_a_byte_level_prompt_is_exact_to_the_character(tokens, overhead, prefix, index):
    text = render(planned(index, tokens, prefix, 3), TextUnit("char", 1.0, overhead))
    assert len(text) == max(1, tokens - overhead)
    assert text == text.strip()  # a chat template may strip, and would change the count


@given(tokens=st.integers(1, 3000), per_word=st.floats(0.5, 3), overhead=st.floats(0, 40), prefix=st.integers(0, 600))
def test_a_prompt_of_words_is_within_half_a_word_of_the_wanted_tokens(tokens, per_word, overhead, prefix):
    n_words = len(render(planned(0, tokens, prefix, 1), TextUnit("word", per_word, overhead)).split(" "))
    wanted = (tokens - overhead) / per_word
    assert abs(n_words - wanted) <= 0.5 + 1e-9 or (wanted < 1 and n_words == 1)


@pytest.mark.parametrize("unit", [WORD, CHAR])
def test_requests_of_a_group_share_exactly_their_prefix(unit):
    size = len if unit is CHAR else lambda text: len(text.split())
    first, second, other = (
        render(planned(index, tokens, 500, group), unit)
        for index, tokens, group in [(0, 900, 2), (1, 700, 2), (2, 900, 3)]
    )
    # A letter or two more may agree by chance: the first own words are different words.
    assert 500 <= size(common_prefix(first, second)) <= 508
    assert size(common_prefix(first, other)) <= 8


def common_prefix(a: str, b: str) -> str:
    n = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return a[:n]


def test_the_prefix_is_the_same_at_every_load_point_and_the_rest_is_not():
    first, second = (render(planned(0, 300, 100, 0), point=point).split() for point in (0, 1))
    assert first[:100] == second[:100]
    assert first[100:104] != second[100:104]


def test_no_two_requests_of_a_run_begin_with_the_same_four_words():
    heads = [tuple(render(planned(i, 8), point=point).split()[:4]) for point in range(3) for i in range(1000)]
    assert len(set(heads)) == len(heads)
    assert len({head[0] for head in heads[:400]}) == 400  # neighbours differ in the first word already


def test_the_salt_changes_every_word_run_and_nothing_else_does():
    request = planned(5, 200, 50, 1)
    assert render(request) == render(request)
    salted = render(request, salt="again").split()
    assert len(salted) == 200
    same = sum(a == b for a, b in zip(salted, render(request).split(), strict=True))
    assert same < 10  # 200/531 expected; P(10 or more) is below 1e-10
    assert render(request, seed=8) != render(request)


def test_a_data_sets_prompt_is_sent_as_it_is():
    request = PlannedRequest(0, 0.0, "measured", 3, 16, text="so be it ")
    assert render(request) == "so be it "


def counted(text: str, tokens: int) -> tuple[int, int, int]:
    return len(text.split()), len(text), tokens


def test_a_byte_level_tokenizer_is_recognised_by_its_usage():
    samples = [counted(text, len(text) + 21) for text in unit_probes()]
    assert fit_text_unit(samples) == TextUnit("char", 1.0, 21.0)


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_a_bpe_tokenizer_is_fitted_by_words_and_template_without_sampling_error(share):
    # A tokenizer that cuts each word into pieces of three letters: 1 to 4 tokens a word, 12 for the template.
    def tokens(text: str) -> int:
        return sum(-(-len(word) // 3) for word in text.split()) + 12

    probes = unit_probes(share)
    unit = fit_text_unit([counted(text, tokens(text)) for text in probes])
    assert unit.kind == "word"
    assert unit.overhead_tokens == 12
    assert unit.tokens_per_unit == pytest.approx((tokens(probes[2]) - 12) / len(probes[2].split()))
    if share == 1:
        rendered = [tokens(render(planned(i, 280), unit)) for i in range(200)]
        assert sum(rendered) / 200 == pytest.approx(280, rel=0.01)  # standard error 0.3%


@pytest.mark.parametrize(
    "samples", [[], [(12, 60, 20)], [(12, 60, 20), (12, 63, 20)], [(12, 60, 20), (60, 301, 20), (72, 361, 20)]]
)
def test_probes_that_say_nothing_are_refused(samples):
    with pytest.raises(ValueError, match="prompt_tokens"):
        fit_text_unit(samples)


def test_rendering_costs_well_under_a_millisecond_for_3000_tokens():
    started = time.process_time()
    for index in range(100):
        render(planned(index, 3000, 512, index % 8))
    assert time.process_time() - started < 0.5  # measured 0.02 s; the limit only catches a per-word loop in Python


def test_the_unique_beginning_does_not_bias_the_words():
    heads = [render(planned(i, 4)).split() for i in range(2000)]
    assert len({tuple(head) for head in heads}) == 2000
    for place in range(4):
        assert len({head[place] for head in heads}) > 0.9 * len(WORDS)
