"""Owns a Hugging Face tokenizer.json as the engine's tokenizer, with a minimal chat template."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from engine_adapters.reference.hf_config import ModelError

# (what shows that a vocabulary is made for it, how a message reads, what opens the answer)
CHAT_FORMATS = (
    ("<|im_start|>", "<|im_start|>{role}\n{content}<|im_end|>\n", "<|im_start|>assistant\n"),
    (
        "<|start_header_id|>",
        "<|start_header_id|>{role}<|end_header_id|>\n\n{content}<|eot_id|>",
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
)
PLAIN_FORMAT = ("", "{role}: {content}\n", "assistant:")
CHAT_ENDS = ("<|im_end|>", "<|eot_id|>")


class HfTokenizer:
    """A tokenizer.json. Its special tokens are never emitted but those that end an answer, as `decode` drops them."""

    def __init__(self, backend: Any, vocab_size: int, eos_token_ids: Iterable[int]) -> None:
        self._backend = backend
        ends = [backend.token_to_id(text) for text in CHAT_ENDS]
        self.eos_token_ids = frozenset(eos_token_ids) | {i for i in ends if i is not None}
        special = {i for i, token in backend.get_added_tokens_decoder().items() if token.special}
        self._visible = set(backend.get_vocab(with_added_tokens=True).values()) - special
        self._format = next((f for f in CHAT_FORMATS if backend.token_to_id(f[0]) is not None), PLAIN_FORMAT)
        if too_large := [i for i in self._visible if i >= vocab_size]:
            raise ModelError(f"tokenizer.json has token {max(too_large)}, and config.json says vocab_size {vocab_size}")

    def encode(self, text: str) -> list[int]:
        """The tokens of `text`, with those that the tokenizer itself puts around it."""
        ids: list[int] = self._backend.encode(text).ids
        return ids

    def encode_chat(self, messages: Iterable[tuple[str, str]]) -> list[int]:
        """ChatML or Llama 3's format if the vocabulary has its tokens, else "role: content" lines."""
        _, message, opening = self._format
        text = "".join(message.format(role=role, content=content) for role, content in messages) + opening
        return self.encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, special ones dropped."""
        text: str = self._backend.decode(list(token_ids), skip_special_tokens=True)
        return text

    def is_visible(self, token_id: int) -> bool:
        """Whether it is a token of the vocabulary and no special one."""
        return token_id in self._visible


def load_tokenizer(path: Path, vocab_size: int, eos_token_ids: Iterable[int]) -> HfTokenizer:
    """Read a tokenizer.json; raises ModelError, also when the package `tokenizers` is missing."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise ModelError(f"{path} needs the package tokenizers: pip install 'openloop[tokenizers]'") from None
    try:
        backend = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"{path}: not a tokenizer.json ({error})") from None
    return HfTokenizer(backend, vocab_size, eos_token_ids)
