"""One request as the engine sees it: its tokens, how many of them are computed, and the KV blocks it holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

# Why an answer ended, as clients read it (vLLM's words). "stop": the model or a stop string ended it. "length": it
# reached max_tokens. "abort": the client went away, or the server shut down. "error": a step that computed it failed.
FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a request's tokens are drawn and what stops it early; how long it may get is in Request itself.

    temperature 0 is greedy. top_k 0 and top_p 1.0 are off. seed None draws one. logprobs: None for none, else how many
    alternatives are wanted beside the drawn token. A stop string or stop token ends the answer and is no part of it.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    logprobs: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()


GREEDY = SamplingParams()
Rank = tuple[int, int]


class Logprobs(NamedTuple):
    """The natural-log probability of a drawn token and those of the likeliest tokens, best first."""

    token_id: int
    logprob: float
    top: list[tuple[int, float]]


@dataclass(slots=True, eq=False)
class Request:
    """`token_ids` is the prompt followed by the output so far; the last of them is not computed yet.

    priority: lower goes first, under the policy "priority" only. rank: (priority or 0, place in the order of arrival),
    given by the scheduler; lower goes first. end_token_ids: tokens that end the answer and are no part of it, once
    there are min_tokens; the scheduler adds the end of sequence. num_computed_tokens: tokens whose keys and values are
    in the KV cache; back to 0 when preempted. num_registered_blocks: its blocks that the prefix cache knows.
    num_cached_tokens: tokens found in the prefix cache at the first admission. num_draft_tokens and
    num_accepted_tokens: guesses that were verified, and those of them that were right. logprobs: filled by the
    executor, one for each output token, where `sampling.logprobs` asks for them. error: what the step raised, where
    finish_reason is "error". The `*_at_s` are on the clock of the EngineCore; None means that it has not happened.
    """

    request_id: str
    prompt_token_ids: list[int]
    max_tokens: int
    ignore_eos: bool = False
    min_tokens: int = 0
    sampling: SamplingParams = GREEDY
    priority: int = 0
    rank: Rank = (0, -1)
    num_computed_tokens: int = 0
    num_registered_blocks: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    block_ids: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    error: str | None = None
    arrived_at_s: float | None = None
    first_scheduled_at_s: float | None = None
    first_token_at_s: float | None = None
    finished_at_s: float | None = None
    end_token_ids: frozenset[int] = field(init=False)
    token_ids: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.end_token_ids = self.sampling.stop_token_ids
        self.token_ids = list(self.prompt_token_ids)

    @property
    def num_tokens_asked(self) -> int:
        """Its length when it has reached max_tokens: the most work that it can make."""
        return len(self.prompt_token_ids) + self.max_tokens

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
        return self.may_end_after(self.num_output_tokens)

    def may_end_after(self, num_output_tokens: int) -> bool:
        """Whether the answer may end once it has so many tokens, as far as min_tokens and ignore_eos are concerned."""
        return not self.ignore_eos and num_output_tokens >= self.min_tokens


@dataclass(slots=True, eq=False)
class TokenOutput:
    """What one step did for one request: visible tokens (several under speculation), an end, or both."""

    request: Request
    token_ids: list[int]
    finish_reason: FinishReason | None

    @property
    def request_id(self) -> str:
        """The request's id."""
        return self.request.request_id
