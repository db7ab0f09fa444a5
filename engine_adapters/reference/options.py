"""The engine's command line: every option with its meaning, and what becomes an EngineConfig; imports no numpy."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn, get_args

from engine_adapters.reference import faults
from engine_adapters.reference.config import MODELS, Admission, EngineConfig, Policy

PROGRAM = "bench engine serve"
EXECUTORS = ("numpy", "simulated")
GRACE_S = 3
DEFAULTS = EngineConfig()
# Of a server on data-centre GPUs, vLLM's; the numpy executor has EngineConfig's.
SIMULATED_DEFAULTS = {"max_num_seqs": 256, "max_num_batched_tokens": 2048, "max_model_len": 131_072}
CONFIG_OPTIONS = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "block_size",
    "num_blocks",
    "max_model_len",
    "max_waiting",
    "long_prefill_token_threshold",
    "enable_prefix_caching",
    "policy",
    "admission",
    "num_speculative_tokens",
    "rate_limit_rps",
    "rate_limit_burst",
)
EPILOG = f"""faults on purpose (--fault, repeatable; for tests of clients):
{faults.GRAMMAR}
"""


class Parser(argparse.ArgumentParser):
    """Its errors are one line and exit code 2."""

    def error(self, message: str) -> NoReturn:
        """What is wrong, and where help is."""
        self.exit(2, f"error: {message} (see {self.prog} --help)\n")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options of `argv`; an unknown or a wrong one ends the process with one line and code 2."""
    parser = Parser(
        prog=PROGRAM,
        usage="%(prog)s [OPTIONS]",
        description="Serve an OpenAI-compatible API until Ctrl-C, with vLLM's metrics at /metrics and the engine's own "
        "log of when each token left at /truth.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for add in (_add_model, _add_http, _add_scheduler, _add_admission, _add_simulated):
        add(parser)
    args = parser.parse_args(argv)
    _check(parser, args)
    return args


def engine_config(args: argparse.Namespace, **defaults: int) -> EngineConfig:
    """The settings as told; `defaults` where nothing was. Raises ValueError for what cannot be."""
    told = {name: getattr(args, name) for name in CONFIG_OPTIONS if getattr(args, name) is not None}
    return EngineConfig(**(defaults | told))


def _check(parser: Parser, args: argparse.Namespace) -> None:
    try:
        args.faults = faults.parse_faults(args.fault)
    except ValueError as error:
        parser.error(str(error))
    if not 1.0 <= args.slowdown <= 100.0:
        parser.error("--slowdown must be from 1 to 100")
    if not 0 <= args.port <= 65535:
        parser.error("--port must be from 0 to 65535")
    if not 0 <= args.grace <= 3600:
        parser.error("--grace must be from 0 to 3600 seconds")
    if not (0.0 <= args.run_noise <= 1.0 and 0.0 <= args.step_noise <= 1.0):
        parser.error("--run-noise and --step-noise must be from 0 to 1")
    if args.executor == "simulated" and args.hardware is None:
        parser.error("--executor simulated needs --hardware, for example --hardware h200-sxm")


def _add_model(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model")
    presets = " or ".join(MODELS)
    group.add_argument(
        "--model",
        default="tiny",
        metavar="NAME",
        help=f"{presets} (3.4M and 20M random weights), or a folder with a Hugging Face config.json and, if it has "
        "them, safetensors and tokenizer.json; simulated: a model of the roofline's table, or such a folder [tiny]",
    )
    group.add_argument("--executor", choices=EXECUTORS, default="numpy", help="what computes the steps [numpy]")
    group.add_argument("--seed", type=int, default=0, help="of random weights, and of simulated noise [0]")
    group.add_argument(
        "--kv-cache-dtype",
        default="auto",
        metavar="TYPE",
        help="int8, fp8, or auto: float32, simulated bf16 [auto]",
    )
    group.add_argument(
        "--slowdown",
        type=float,
        default=1.0,
        metavar="X",
        help="make every step X times as long: 1.3 makes TTFT, TPOT and E2E about 30%% longer; HTTP is not slowed [1]",
    )
    group.add_argument(
        "--ceilings",
        metavar="GBPS:GFLOPS",
        help="what this machine reaches at best, as `bench engine calibrate` prints it: /metrics then has the live "
        "fractions of it, openloop_bandwidth_fraction and openloop_compute_fraction",
    )


def _add_http(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("HTTP")
    group.add_argument("--host", default="127.0.0.1", help="[127.0.0.1]")
    group.add_argument("--port", type=int, default=8000, help="0 takes a free one [8000]")
    group.add_argument(
        "--grace",
        type=int,
        default=GRACE_S,
        metavar="S",
        help=f"after SIGTERM new requests are answered 503, and those in flight get S seconds to end [{GRACE_S}]",
    )
    group.add_argument("--fault", action="append", default=[], metavar="FAULT", help="misbehave on purpose; see below")
    group.add_argument("--die-with-stdin", action="store_true", help="end when stdin is closed")


def _add_scheduler(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("scheduler and KV cache")
    simulated = SIMULATED_DEFAULTS
    _whole(group, "max_num_seqs", f"largest batch [{DEFAULTS.max_num_seqs}; simulated {simulated['max_num_seqs']}]")
    _whole(
        group,
        "max_num_batched_tokens",
        "most tokens in one step, prefill chunks included: more gives a shorter TTFT and a rougher ITL "
        f"[{DEFAULTS.max_num_batched_tokens}; simulated {simulated['max_num_batched_tokens']}]",
    )
    _whole(group, "long_prefill_token_threshold", "most prompt tokens of one request in one step, 0 for no limit [0]")
    _whole(group, "max_model_len", f"prompt and output together [{DEFAULTS.max_model_len}; simulated what fits]")
    _whole(group, "block_size", f"tokens in a KV block [{DEFAULTS.block_size}]")
    _whole(group, "num_blocks", f"KV cache size in blocks [{DEFAULTS.num_blocks}; simulated what memory holds]")
    group.add_argument(
        "--no-prefix-caching",
        dest="enable_prefix_caching",
        action="store_const",
        const=False,
        help="compute every prompt anew, however often it comes",
    )
    group.add_argument("--policy", choices=get_args(Policy), help="fcfs, or by the request's `priority` [fcfs]")
    group.add_argument(
        "--num-speculative-tokens",
        type=int,
        metavar="K",
        help="guess up to K tokens ahead from n-grams of the text and verify them in one step [0]",
    )


def _add_admission(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("admission")
    group.add_argument(
        "--admission",
        choices=get_args(Admission),
        help="on_demand: KV blocks as tokens come; reserve: max-model-len for each request at once, as engines with "
        "fixed slots do [on_demand]",
    )
    _whole(group, "max_waiting", f"requests beyond --max-num-seqs; the next is answered 429 [{DEFAULTS.max_waiting}]")
    group.add_argument("--rate-limit-rps", type=float, metavar="R", help="at most R requests/s in the long run [none]")
    _whole(group, "rate_limit_burst", "most requests at once under --rate-limit-rps [1]")


def _add_simulated(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("simulated hardware (--executor simulated)")
    group.add_argument("--hardware", metavar="NAME", help="h100-sxm, h200-sxm and others of the roofline's table")
    group.add_argument(
        "--devices",
        type=int,
        default=1,
        metavar="N",
        help="of one replica; what --dp and --pp leave of them is tensor parallel [1]",
    )
    group.add_argument("--dp", type=int, default=1, metavar="N", help="groups of DP attention [1]")
    group.add_argument("--pp", type=int, default=1, metavar="N", help="pipeline stages [1]")
    group.add_argument("--precision", metavar="P", help="of the weights [bf16]")
    group.add_argument("--speculate", metavar="K:A", help="K tokens guessed a step, each holds with probability A")
    group.add_argument(
        "--assume",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="what no datasheet tells; `bench simulate --assumptions` lists all",
    )
    group.add_argument("--run-noise", type=float, default=0.0, metavar="CV", help="spread from run to run [0]")
    group.add_argument("--step-noise", type=float, default=0.0, metavar="CV", help="spread from step to step [0]")


def _whole(group: argparse._ArgumentGroup, name: str, text: str) -> None:
    group.add_argument("--" + name.replace("_", "-"), type=int, metavar="N", help=text)
