"""The byte-level tokenizer: a prompt is its UTF-8 bytes, and every token the model emits is visible text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

N_BYTES = 256
EOS_ID, USER_ID, ASSISTANT_ID, SYSTEM_ID, TOOL_ID, END_ID = range(N_BYTES, N_BYTES + 6)
FIRST_TEXT_ID = 264  # 262 and 263 are spare
ROLE_IDS = {"user": USER_ID, "assistant": ASSISTANT_ID, "system": SYSTEM_ID, "developer": SYSTEM_ID, "tool": TOOL_ID}


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
