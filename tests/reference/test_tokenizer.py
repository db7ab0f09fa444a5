"""The byte-level tokenizer: exact prompt lengths, visible output."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from engine_adapters.reference import tokenizer
from engine_adapters.reference.answers import text_json


@given(st.text())
def test_a_prompt_is_exactly_its_utf8_bytes(text: str) -> None:
    assert bytes(tokenizer.encode(text)) == text.encode("utf-8", "surrogatepass")


@given(st.text(), st.text())
def test_the_chat_template_adds_a_constant_number_of_tokens(system: str, user: str) -> None:
    messages = [("system", system), ("user", user)]
    n_text = len(tokenizer.encode(system)) + len(tokenizer.encode(user))
    assert len(tokenizer.encode_chat(messages)) == n_text + 5
    assert len(tokenizer.encode_chat(messages[1:])) == len(tokenizer.encode(user)) + 3


def test_each_token_the_model_may_emit_is_printable_text_of_its_own() -> None:
    visible = [i for i in range(4096) if tokenizer.is_visible(i)]
    texts = [tokenizer.token_text(i) for i in visible]
    assert all(text.isprintable() and text for text in texts)
    assert len(set(texts)) == len(texts) == 95 + 4096 - tokenizer.FIRST_TEXT_ID
    assert not tokenizer.is_visible(tokenizer.EOS_ID)
    assert not any(tokenizer.is_visible(i) for i in tokenizer.ROLE_IDS.values())
    assert [json.loads(text_json(text)) for text in texts] == texts
