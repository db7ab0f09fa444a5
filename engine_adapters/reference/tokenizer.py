"""What a tokenizer is to the engine, and the byte-level one: a prompt is its UTF-8 bytes, and each token is visible."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

N_BYTES = 256
EOS_ID, USER_ID, ASSISTANT_ID, SYSTEM_ID, TOOL_ID, END_ID = range(N_BYTES, N_BYTES + 6)
FIRST_TEXT_ID = 264  # 262 and 263 are spare
ROLE_IDS = {"user": USER_ID, "assistant": ASSISTANT_ID, "system": SYSTEM_ID, "developer": SYSTEM_ID, "tool": TOOL_ID}


class Tokenizer(Protocol):
    """Text to tokens and back; the module's functions are the byte-level one, `BYTES`."""

    eos_token_ids: frozenset[int]  # any of these ends an answer

    def encode(self, text: str) -> list[int]:
        """A prompt's tokens."""
        ...

    def encode_chat(self, messages: Iterable[tuple[str, str]]) -> list[int]:
        """The tokens of (role, content) pairs, and what opens the answer."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of tokens; bytes that are no complete character yet read as U+FFFD."""
        ...

    def is_visible(self, token_id: int) -> bool:
        """Whether the model may emit this token."""
        ...


def encode(text: str) -> list[int]:
    """The UTF-8 bytes of `text`, one token each; nothing is added."""
    return list(text.encode("utf-8", "surrogatepass"))


def encode_chat(messages: Iterable[tuple[str, str]]) -> list[int]:
    """The tokens of (role, content) pairs: two more than the bytes for each message, and one to open the answer."""
    token_ids: list[int] = []
    for role, content in messages:
        token_ids += [ROLE_IDS[role], *encode(content), END_ID]
    return [*token_ids, ASSISTANT_ID]


def is_visible(token_id: int) -> bool:
    """Whether the model may emit this token as text: printable ASCII, or one of the ids beyond the specials."""
    return 32 <= token_id < 127 or token_id >= FIRST_TEXT_ID


def token_text(token_id: int) -> str:
    """The text of one token; ids from 256 up read as `<300>`."""
    return chr(token_id) if token_id < N_BYTES else f"<{token_id}>"


def decode(token_ids: Sequence[int]) -> str:
    """The text of an answer."""
    return "".join(map(token_text, token_ids))


class ByteTokenizer:
    """This module's functions as a Tokenizer."""

    eos_token_ids = frozenset({EOS_ID})
    encode = staticmethod(encode)
    encode_chat = staticmethod(encode_chat)
    decode = staticmethod(decode)
    is_visible = staticmethod(is_visible)


BYTES: Tokenizer = ByteTokenizer()
