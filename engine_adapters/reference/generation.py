"""One HTTP request on its way through the engine: its choices, their text as it comes, and their counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from engine_adapters.reference.answers import Piece, Usage
from engine_adapters.reference.api import GenerationParams
from engine_adapters.reference.detokenizer import Detokenizer
from engine_adapters.reference.engine import EngineThread, TokenStream
from engine_adapters.reference.request import FinishReason, Request
from engine_adapters.reference.stop_strings import StopStrings
from engine_adapters.reference.tokenizer import Tokenizer

PROMPT_END = 4  # tokens of the prompt that a tokenizer may need to write the first one of the answer


@dataclass(slots=True)
class Running:
    """One choice: what the engine computes and what has become of it."""

    index: int
    request: Request
    stream: TokenStream
    text: Detokenizer
    stop: StopStrings
    echo: str  # the prompt's text where it was asked for, until it has been told
    n_tokens: int = 0


class Generation:
    """The choices of one HTTP request, submitted together. Raises what EngineThread.submit raises, and submits none."""

    def __init__(self, thread: EngineThread, number: str, params: GenerationParams, tokenizer: Tokenizer) -> None:
        self.params = params
        self.is_cut_off = asyncio.Event()  # the client is gone
        self._thread = thread
        self._running: list[Running] = []
        try:
            for index, request in enumerate(_requests(number, params)):
                text = Detokenizer(tokenizer, request.prompt_token_ids[-PROMPT_END:])
                stop = StopStrings(params.sampling.stop)
                echo = tokenizer.decode(request.prompt_token_ids) if params.echo else ""
                self._running.append(Running(index, request, thread.submit(request), text, stop, echo))
        except BaseException:
            self.abort()
            raise

    @property
    def usage(self) -> Usage:
        """Tokens so far, over all choices; a prompt counts once, however many choices it has."""
        prompts = self._running[:: self.params.n]
        return Usage(
            sum(len(each.request.prompt_token_ids) for each in prompts),
            sum(each.request.num_cached_tokens for each in prompts),
            sum(each.n_tokens for each in self._running),
        )

    @property
    def error(self) -> str | None:
        """What a step that computed one of its choices raised."""
        return next((each.request.error for each in self._running if each.request.error), None)

    def abort(self) -> None:
        """Stop computing whatever has not ended."""
        for each in self._running:
            self._thread.abort(each.request.request_id)

    def cut_off(self) -> None:
        """The client is gone: end all choices as aborted, so that `pieces` comes to its end."""
        self.is_cut_off.set()
        for each in self._running:
            each.stream.push([], "abort")

    async def pieces(self) -> AsyncIterator[Piece]:
        """What comes of each step, until every choice has ended; a choice that failed or was aborted ends them all."""
        if len(self._running) == 1:
            source = _alone(self._running[0])
        else:
            source = _merged(self._running)
        async for each, token_ids, reason in source:
            yield self._piece(each, token_ids, reason)
            if reason in ("error", "abort"):
                return

    def _piece(self, each: Running, token_ids: Sequence[int], reason: FinishReason | None) -> Piece:
        first = each.n_tokens
        each.n_tokens += len(token_ids)
        text = each.text.push(token_ids)
        logprobs = None
        if self.params.sampling.logprobs is not None:
            logprobs = each.request.logprobs[first : each.n_tokens]
        if reason is not None:
            text += each.text.finish()
        echo, each.echo = each.echo, ""
        text = echo + each.stop.feed(text, may_stop=each.n_tokens >= self.params.min_tokens)
        if each.stop.matched is not None:
            self._thread.abort(each.request.request_id, "stop")
            return Piece(each.index, text, token_ids, logprobs, "stop", each.stop.matched)
        if reason is not None:
            text += each.stop.rest()
        return Piece(each.index, text, token_ids, logprobs, reason)


def _requests(number: str, params: GenerationParams) -> list[Request]:
    """`n` requests a prompt. With a seed each choice has one of its own, as in vLLM, or they would all be equal."""
    requests: list[Request] = []
    for prompt in params.prompts:
        for choice in range(params.n):
            sampling = params.sampling
            if sampling.seed is not None and choice:
                sampling = replace(sampling, seed=sampling.seed + choice)
            request_id = number if len(requests) == 0 else f"{number}-{len(requests)}"
            requests.append(
                Request(
                    request_id,
                    prompt,
                    params.max_tokens,
                    params.ignore_eos,
                    params.min_tokens,
                    sampling=sampling,
                    priority=params.priority,
                )
            )
    return requests


Step = tuple[Running, list[int], FinishReason | None]


async def _alone(each: Running) -> AsyncIterator[Step]:
    reason = None
    while reason is None and each.stop.matched is None:
        token_ids, reason = await each.stream.next()
        yield each, token_ids, reason


async def _merged(running: Sequence[Running]) -> AsyncIterator[Step]:
    """The steps of several choices in the order in which they come."""
    steps: asyncio.Queue[Step | None] = asyncio.Queue()

    async def forward(each: Running) -> None:
        async for step in _alone(each):
            steps.put_nowait(step)
        steps.put_nowait(None)

    tasks = [asyncio.create_task(forward(each)) for each in running]
    try:
        n_open = len(tasks)
        while n_open:
            step = await steps.get()
            if step is None:
                n_open -= 1
            elif step[0].stop.matched is None:
                yield step
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
