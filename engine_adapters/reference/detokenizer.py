"""Owns the text of one answer as its tokens arrive: whole characters only."""

from __future__ import annotations

from collections.abc import Sequence

from engine_adapters.reference.tokenizer import Tokenizer

INCOMPLETE = "\ufffd"  # what the bytes of an unfinished character read as
MAX_HELD_TOKENS = 8  # no character has more: these are no valid text and are let go as they are


class Detokenizer:
    """Tokens in, text out. `prompt_end`: the prompt's last tokens, as some tokenizers write a text's first differently.

    Only a few tokens are decoded each time: those since the last whole character, behind those that made it.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_end: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._context = list(prompt_end)  # has been text; how the next tokens read may depend on it
        self._unread: list[int] = []

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens complete; empty while they end within a character."""
        return "".join(self._push_one(token_id) for token_id in token_ids)

    def _push_one(self, token_id: int) -> str:
        self._unread.append(token_id)
        text = self._text_of_unread()
        if text.endswith(INCOMPLETE) and len(self._unread) < MAX_HELD_TOKENS:
            return ""
        return self._take(text)

    def finish(self) -> str:
        """The rest, however incomplete, once no token follows."""
        return self._take(self._text_of_unread())

    def _text_of_unread(self) -> str:
        before = self._tokenizer.decode(self._context)
        return self._tokenizer.decode(self._context + self._unread)[len(before) :]

    def _take(self, text: str) -> str:
        if self._unread:
            self._context, self._unread = self._unread, []
        return text
