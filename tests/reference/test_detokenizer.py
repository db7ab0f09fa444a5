"""Text from tokens: the pieces make the whole, no character is split, and a tokenizer.json speaks its chat format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_adapters.reference import tokenizer
from engine_adapters.reference.detokenizer import MAX_HELD_TOKENS, Detokenizer
from engine_adapters.reference.hf_config import ModelError
from engine_adapters.reference.hf_tokenizer import HfTokenizer, load_tokenizer

pytest.importorskip("tokenizers", reason="the package tokenizers is not installed: pip install 'openloop[test]'")

SPECIALS = ["<|end|>", "<|im_start|>", "<|im_end|>"]


def backend(specials: list[str] = SPECIALS) -> object:
    """A byte-level BPE with every byte as a token and a few merges."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(["the cat and the dog and the end"] * 3, trainer)
    return made


TEXT = HfTokenizer(backend(), 300, [0])


@given(st.text(max_size=40), st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_the_pieces_make_the_whole_and_none_ends_within_a_character(text: str, sizes: list[int]) -> None:
    token_ids, reader = TEXT.encode(text), Detokenizer(TEXT)
    pieces, at = [], 0
    for size in sizes * (len(token_ids) + 1):
        pieces.append(reader.push(token_ids[at : at + size]))
        at += size
    assert "".join(pieces) == text
    assert reader.finish() == ""


def test_bytes_that_never_become_a_character_are_let_go() -> None:
    broken = TEXT.encode("é")[0]
    reader = Detokenizer(TEXT)
    pieces = [reader.push([broken]) for _ in range(3 * MAX_HELD_TOKENS)]
    assert "".join(pieces) == "\ufffd" * 3 * MAX_HELD_TOKENS
    assert reader.push([broken]) == ""
    assert reader.finish() == "\ufffd"


class Words(tokenizer.ByteTokenizer):
    """As SentencePiece does: every token is a word with a space before it, which is left out where a text begins."""

    @staticmethod
    def decode(token_ids: Sequence[int]) -> str:
        return "".join(f" {token_id}" for token_id in token_ids)[1:]


def test_a_token_reads_as_it_does_behind_those_before_it() -> None:
    behind_a_prompt, alone = Detokenizer(Words(), prompt_end=[7]), Detokenizer(Words())
    assert [behind_a_prompt.push([1]), behind_a_prompt.push([2, 3])] == [" 1", " 2 3"]
    assert [alone.push([1]), alone.push([2, 3])] == ["1", " 2 3"]


def test_every_token_of_the_byte_tokenizer_is_text_at_once() -> None:
    reader = Detokenizer(tokenizer.BYTES, prompt_end=[65])
    assert [reader.push([i]) for i in (66, 300, 67)] == ["B", "<300>", "C"]


def test_chat_is_written_in_the_format_of_the_vocabulary() -> None:
    messages = [("system", "be brief"), ("user", "the cat")]
    written = "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nthe cat<|im_end|>\n<|im_start|>assistant\n"
    assert TEXT.encode_chat(messages) == TEXT.encode(written)
    plain = HfTokenizer(backend(["<|end|>"]), 300, [0])
    assert plain.decode(plain.encode_chat(messages)) == "system: be brief\nuser: the cat\nassistant:"


def test_special_tokens_are_never_emitted_and_the_ends_are_known() -> None:
    assert TEXT.eos_token_ids == {0, 2}
    assert [TEXT.is_visible(i) for i in range(4)] == [False, False, False, True]
    assert not TEXT.is_visible(299)


def test_a_tokenizer_json_that_can_not_be_used_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    with pytest.raises(ModelError, match="not a tokenizer"):
        load_tokenizer(path, 300, [])
    backend().save(str(path))  # type: ignore[attr-defined]
    with pytest.raises(ModelError, match="vocab_size 100"):
        load_tokenizer(path, 100, [])
    assert load_tokenizer(path, 300, [0]).encode("the end") == TEXT.encode("the end")
