"""One request as the engine sees it: its tokens, how many of them are computed, and the KV blocks it holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(slots=True, eq=False)
class Request:
    """`token_ids` is the prompt followed by the output so far; the last of them is not computed yet.

    num_computed_tokens: tokens whose keys and values are in the KV cache; back to 0 when preempted.
    """

    request_id: str
    prompt_token_ids: list[int]
    max_tokens: int
    ignore_eos: bool = False
    min_tokens: int = 0
    num_computed_tokens: int = 0
    num_preemptions: int = 0
    block_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    token_ids: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - len(self.prompt_token_ids)

    @property
    def output_token_ids(self) -> list[int]:
        """The generated tokens."""
        return self.token_ids[len(self.prompt_token_ids) :]

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens that the model has yet to see: the rest of a prompt, or 1 for a decode."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def eos_allowed(self) -> bool:
        """Whether the next token may end the answer."""
        return not self.ignore_eos and self.num_output_tokens >= self.min_tokens


@dataclass(frozen=True, slots=True)
class TokenOutput:
    """What one step did for one request: a visible token, an end, or both."""

    request_id: str
    token_id: int | None
    finish_reason: FinishReason | None
