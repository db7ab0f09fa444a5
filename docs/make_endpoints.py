"""Writes docs/endpoints.md: the text is here, the table of servers is what the tests' matrix finds when it is run."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.live import live_rows  # noqa: E402
from support.matrix import COLUMNS, Cell, Row, results  # noqa: E402

from engine_adapters.apis import DIALECTS  # noqa: E402

SIGNS = {"recorded": "R", "built": "D", "cut": "C"}

INTRODUCTION = """# Endpoints

Made by `docs/make_endpoints.py`: do not edit. `bench sweep SCENARIO --url U` asks the server by the scenario's API;
where the server has no OpenAI route it is asked by its own, and says so. `--api NAME` decides instead.

| `--api` | path | the answer's length is fixed by | field of the limit |
|---|---|---|---|
"""

RULES = """
`template` is an API that the scenario describes, and an installed package can bring its own (both below). `chat` and
`completions` are short for the two OpenAI ones. Where nothing fixes the length, answers may end early: the notes of a
run say so, and its certificate counts them.

## How every stream is read

- A **token event** carries content, text, a refusal, reasoning or a piece of a tool call. Role events, empty pieces,
  progress, comments and pings are none. TTFT is the first token event, TTFO the first that is not reasoning. Tokens
  of one read share its instant.
- **Tokens** are counted by the last usage block with a count above zero, wherever it stands; without one by ids,
  logprobs or counters inside the events; without those by `--tokenizer tokenizer.json` (`pip install
  'openloop[tokenizers]'`; nothing is ever downloaded); and at last by events. Each record holds the source.
- **Complete** is an answer with a terminal mark (`[DONE]`, `message_stop`, `done: true`, `stop: true`,
  `response.completed`) or a finish reason for each choice. A stream that ends without is `disconnected`, also when it
  ends inside an event. An error object in a 200 stream is `stream_error`; what is no JSON is `protocol`; a complete
  answer without a token is `empty`.
- LF, CRLF and CR, with or without the space after `data:`, cut anywhere, also inside a character. An event may have
  up to 64 MiB. JSON in place of a stream is read as the whole answer.
- The preflight sends one small request. What the server's refusal names is left out and noted: `ignore_eos`,
  `stream_options`, a temperature of 0; `max_tokens` becomes `max_completion_tokens`. Fields that the scenario fixes
  (`request.max_tokens_field`) stay: then the server's sentence ends the run.

## Servers

**R**: bytes recorded from the real server, in `tests/data/endpoints`. **D**: bytes built from the server's
documentation. **C**: the row's stream cut in many places. **L**: asked of the real server over sockets, by
`make test-servers` (below). An empty cell: the API or the server has no such thing, or nothing was recorded. Every
**R**, **D** and **C** is read again by `make test`; text and tokens have to be the server's own, and a recorded
stream's text that of the same request unstreamed.

"""

TEMPLATE = """
## An API of your own

In a scenario; `{prompt}`, `{max_tokens}` and `{model}` are filled in, and paths lead into each event's JSON:

```yaml
api: template
template:
  path: /v1/write
  body: {input: "{prompt}", limit: "{max_tokens}", stream: true}
  framing: sse                  # or ndjson, or whole: an answer at once
  text: choices[0].piece        # the piece of text in an event
  finish_reason: choices[0].why # a value there ends the answer
  usage: {prompt_tokens: usage.in, completion_tokens: usage.out}
```

Or in Python, in a package of your own. `take` gets each event's bytes and changes the answer; it sees no clock. The
package names its dialect as an entry point, and `--api mine` finds it:

```python
import json
from engine_adapters.dialect import Dialect


def body(request, asking):
    return {"input": request.prompt, "limit": request.max_tokens, "stream": asking.stream}


def take(answer, payload):
    event = json.loads(payload)
    answer.say(event.get("piece", ""))
    answer.count(completion=event.get("n_out"))
    answer.end(event.get("why"))


MINE = Dialect(name="mine", path="/v1/write", body=body, take=take)
```

```toml
[project.entry-points."openloop.adapters"]
mine = "my_package:MINE"
```
"""

LIVE = """
## Live

`make test-servers` starts real servers (CONTRIBUTING.md says how and where) and asks each cell below over sockets,
through a relay that keeps what the server wrote and when. What the client says of an answer has to be what a second,
naive reader finds in the same bytes: text, the server's own count of tokens, and TTFT within max(2 ms, 5%) of the
relay's (request in, first text out). The plain stream also has to have the text of the same request unstreamed.

| server | says of itself | API | date | held |
|---|---|---|---|---|
"""

ANY_SERVER = """
`python tests/support/endpoint_check.py URL [--api NAME] [--model NAME]` sends a handful of requests to any server,
streamed and not, and compares text, tokens and finish reason. `bench doctor --url URL` tells how its stream is read.
"""


def page() -> str:
    """The whole document."""
    apis = [
        f"| `{name}` | `{dialect.path}` | {fixed(dialect.length_fields)} | {limit(name, dialect.max_tokens_field)} |\n"
        for name, dialect in DIALECTS.items()
    ]
    return "".join([INTRODUCTION, *apis, RULES, table(), TEMPLATE, LIVE, *live_lines(), ANY_SERVER])


def fixed(fields: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in fields) or "nothing"


def limit(api: str, name: str) -> str:
    return "none" if api in ("embeddings", "rerank") else f"`{name}`"


def table() -> str:
    """A row for each server and API, with the cells as the matrix found them."""
    lines = [
        f"| server | API | {' | '.join(COLUMNS)} | how its stream looks | what we do |\n",
        f"|---|---|{'---|' * len(COLUMNS)}---|---|\n",
    ]
    for row, cells in results():
        live = live_cells(row)
        signs = " | ".join(f"{sign(cells.get(column))} {'L' * (column in live)}".strip() for column in COLUMNS)
        lines.append(f"| {row.server} | `{row.api}` | {signs} | {row.looks} | {row.ours} |\n")
    return "".join(lines)


def live_cells(row: Row) -> list[str]:
    """The cells of a row that held on the real server."""
    server = row.server.split(" ")[0]
    return [
        cell for live in live_rows() if (live["server"], live["api"]) == (server, row.api) for cell in live["cells"]
    ]


def live_lines() -> list[str]:
    """A line for each server and API that was asked live."""
    return [
        f"| {row['server']} | {row['version']} | `{row['api']}` | {row['date']} | {', '.join(row['cells'])} |\n"
        for row in live_rows()
    ]


def sign(cell: Cell | None) -> str:
    if cell is None:
        return ""
    return "**wrong**" if cell.problem else SIGNS[cell.origin]


if __name__ == "__main__":
    (ROOT / "docs" / "endpoints.md").write_text(page(), encoding="utf-8")
