"""What becomes of thousands of requests at one instant: `python benchmarks/crowd.py [5000]`.

Opens a connection for each, then sends all at once to the bundled engine (tiny; 64 run, 256 wait). Those who are turned
away come back when they were told, if that is within --patience seconds. Prints a table of both waves; exit code 1 if
any request ended otherwise than in 200 or 429, or if the engine's own counts differ.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import urllib.request
from collections import Counter
from dataclasses import dataclass, field

from engine_adapters.network import allow_descriptors
from engine_adapters.reference.process import EngineProcess

OPTIONS = ("--max-num-seqs", "64", "--max-waiting", "256")
N_TOKENS = 8
AT_A_TIME = 256  # connections that are opened together
TIMEOUT_S = 120.0


@dataclass
class Wave:
    """How the requests of one wave ended: status (0: none), and when the refused were told to come back."""

    ends: Counter[str] = field(default_factory=Counter)
    retry_after_s: list[int] = field(default_factory=list)


def body(number: int) -> bytes:
    """One request; its prompt is its own."""
    fields = {"prompt": f"request {number}: why is the sky blue?", "max_tokens": N_TOKENS, "ignore_eos": True}
    return json.dumps({**fields, "stream": True}).encode()


async def exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, content: bytes, wave: Wave
) -> int | None:
    """Send one request and read its answer to the end; the advised wait of a refusal."""
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: engine\r\nconnection: close\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            writer.write(head.encode() + content)
            answer = await reader.read()
            while more := await reader.read():
                answer += more
    except (OSError, TimeoutError) as error:
        wave.ends[type(error).__name__] += 1
        return None
    finally:
        writer.close()
    status = answer[9:12].decode() or "none"
    complete = status != "200" or b"data: [DONE]" in answer
    wave.ends[status if complete else "200, cut short"] += 1
    told = re.search(rb"retry-after: (\d+)", answer)
    if told:
        wave.retry_after_s.append(int(told[1]))
    return int(told[1]) if told else None


async def crowd(url: str, n_requests: int, patience_s: float) -> tuple[Wave, Wave]:
    """The wave of all and that of those who came back."""
    host, port = url.removeprefix("http://").split(":")
    first, second = Wave(), Wave()
    gate, all_connected = asyncio.Semaphore(AT_A_TIME), asyncio.Barrier(n_requests)

    async def client(number: int) -> None:
        async with gate:
            connection = await asyncio.open_connection(host, int(port))
        await all_connected.wait()
        told_s = await exchange(*connection, body(number), first)
        if told_s is not None and told_s <= patience_s:
            await asyncio.sleep(told_s)
            await exchange(*await asyncio.open_connection(host, int(port)), body(number), second)

    await asyncio.gather(*(client(number) for number in range(n_requests)))
    return first, second


def engine_counts(url: str) -> dict[str, int]:
    """What the engine itself says: answers complete, requests ended otherwise, and turned away."""
    with urllib.request.urlopen(url + "/metrics") as response:
        text = response.read().decode()
    ended = dict(re.findall(r'^vllm:request_success_total\{.*finished_reason="(\w+)".*\} (\S+)$', text, re.MULTILINE))
    refused = re.findall(r'^openloop_rejections_total\{.*reason="queue_full".*\} (\S+)$', text, re.MULTILINE)
    complete = float(ended.pop("length"))
    return {"200": int(complete), "429": int(float(refused[0])), "other": int(sum(map(float, ended.values())))}


def outcomes(*waves: Wave) -> dict[str, int]:
    """Ends of all waves together, as the engine counts them."""
    ends = sum((wave.ends for wave in waves), Counter())
    return {"200": ends["200"], "429": ends["429"], "other": ends.total() - ends["200"] - ends["429"]}


def report(first: Wave, second: Wave, counted: dict[str, int]) -> None:
    """Print the table."""
    line = "{:24} {:>9} {:>7} {:>7} {:>7}"
    print(line.format("", "requests", "200", "429", "other"))
    for name, wave in (("at once", first), ("came back as told", second)):
        print(line.format(name, wave.ends.total(), *outcomes(wave).values()))
    print(line.format("the engine's own counts", sum(counted.values()), *counted.values()))
    told = first.retry_after_s
    if told:
        largest = max(Counter(told).values())
        print(f"{len(told)} were told to come back in {min(told)} to {max(told)} s, {largest} at most in one second")
    for name, n in (first.ends + second.ends).items():
        if name not in ("200", "429"):
            print(f"other: {n} x {name}")


def main() -> None:
    """Run both waves and compare with the engine's counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("n_requests", type=int, nargs="?", default=5000)
    parser.add_argument("--patience", type=float, default=15.0, help="longest wait that is begun, in seconds")
    args = parser.parse_args()
    allow_descriptors(args.n_requests)
    with EngineProcess(extra_args=OPTIONS) as engine:
        first, second = asyncio.run(crowd(engine.url, args.n_requests, args.patience))
        counted = engine_counts(engine.url)
    report(first, second, counted)
    seen = outcomes(first, second)
    sys.exit(bool(seen["other"]) or seen != counted)


if __name__ == "__main__":
    main()
