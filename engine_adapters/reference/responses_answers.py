"""The bytes of answers in OpenAI's Responses API: typed events, numbered through, around one text item."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine_adapters.reference.answers import Choice, Heading, Piece, Usage, compact, text_json
from engine_adapters.reference.api import GenerationParams


class ResponsesWriter:
    """One response with one message, which has one part."""

    def __init__(self, heading: Heading, params: GenerationParams) -> None:
        self._heading, self._params = heading, params
        self._response_id, self._item_id = f"resp_{heading.number}", f"msg_{heading.number}"
        self._text: list[str] = []
        self._finish_reason: str | None = None
        self._n_events = 0
        place = {"content_index": 0, "item_id": self._item_id, "output_index": 0, "logprobs": []}
        self._delta = b"event: response.output_text.delta\ndata: " + compact(place)[:-1] + b',"delta":'

    def opening(self, usage: Usage) -> bytes:
        """The response begins, and in it an item with an empty part of text."""
        begun = {"response": self._response("in_progress", [], None, None)}
        item = self._item("in_progress", [])
        part = {"content_index": 0, "item_id": self._item_id, "output_index": 0, "part": _part("")}
        return (
            self._event("response.created", begun)
            + self._event("response.in_progress", begun)
            + self._event("response.output_item.added", {"item": item, "output_index": 0})
            + self._event("response.content_part.added", part)
        )

    def plain(self, index: int, text: str) -> bytes:
        """One delta of text."""
        self._text.append(text)
        event = b'%b%b,"sequence_number":%d,"type":"response.output_text.delta"}\n\n'
        line = event % (self._delta, text_json(text), self._n_events)
        self._n_events += 1
        return line

    def piece(self, piece: Piece, usage: Usage) -> bytes:
        """A delta; this API tells neither tokens nor counts before the end."""
        self._finish_reason = piece.finish_reason
        return self.plain(piece.index, piece.text) if piece.text else b""

    def closing(self, usage: Usage) -> bytes:
        """What was opened is done; the response repeats the text and has the counts."""
        text = "".join(self._text)
        place = {"content_index": 0, "item_id": self._item_id, "output_index": 0}
        item = self._item("completed", [_part(text)])
        return (
            self._event("response.output_text.done", place | {"logprobs": [], "text": text})
            + self._event("response.content_part.done", place | {"part": _part(text)})
            + self._event("response.output_item.done", {"item": item, "output_index": 0})
            + self._event("response.completed", {"response": self._ended(item, self._finish_reason, usage)})
        )

    def error(self, message: str) -> bytes:
        """An error event and the failed response."""
        error = {"code": "server_error", "message": message}
        failed = self._response("failed", [], None, None) | {"error": error}
        return self._event("error", error | {"param": None}) + self._event("response.failed", {"response": failed})

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """The response as one object."""
        item = self._item("completed", [_part("".join(choices[0].text))])
        return compact(self._ended(item, choices[0].finish_reason, usage))

    def _ended(self, item: dict[str, Any], finish_reason: str | None, usage: Usage) -> dict[str, Any]:
        if finish_reason == "length":
            return self._response("incomplete", [item], {"reason": "max_output_tokens"}, usage)
        return self._response("completed", [item], None, usage)

    def _response(
        self, status: str, output: list[dict[str, Any]], incomplete: dict[str, str] | None, usage: Usage | None
    ) -> dict[str, Any]:
        sampling = self._params.sampling
        return {
            "id": self._response_id,
            "object": "response",
            "created_at": self._heading.created_s,
            "model": self._heading.model,
            "status": status,
            "error": None,
            "incomplete_details": incomplete,
            "instructions": None,
            "metadata": None,
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "none",
            "tools": [],
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_output_tokens": self._params.max_tokens,
            "previous_response_id": None,
            "background": False,
            "truncation": "disabled",
            "service_tier": "auto",
            "usage": None if usage is None else _usage(usage),
        }

    def _item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self._item_id, "type": "message", "role": "assistant", "status": status, "content": content}

    def _event(self, kind: str, fields: dict[str, Any]) -> bytes:
        data = compact({**fields, "sequence_number": self._n_events, "type": kind})
        self._n_events += 1
        return b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n"


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.n_prompt,
        "input_tokens_details": {"cached_tokens": usage.n_cached},
        "output_tokens": usage.n_output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.n_prompt + usage.n_output,
    }
