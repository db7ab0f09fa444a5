"""The `bench` command: a lazy group, so that --help imports nothing but click."""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module

import click

# verb -> (module, one line for --help); the module defines a click command of the verb's name.
COMMANDS = {
    "sweep": ("loadgen.commands.sweep", "Draw the curve: a ladder of loads against one server."),
    "run": ("loadgen.commands.run", "Measure one load point."),
    "report": ("loadgen.commands.report", "Write report.html and summary.json of a run folder."),
    "show": ("loadgen.commands.show", "Print a run folder's table."),
    "compare": ("loadgen.commands.compare", "Lay two runs side by side in one page."),
    "gate": ("loadgen.commands.gate", "Decide by interleaved pairs whether a candidate regressed."),
    "scenario": ("loadgen.commands.scenario", "Show, check and describe scenario files."),
    "doctor": ("loadgen.commands.doctor", "Find what this machine can offer as a client."),
    "simulate": ("loadgen.commands.simulate", "What if: a scenario against hardware that isn't there."),
    "engine": ("loadgen.commands.engine", "Serve or calibrate the bundled reference engine."),
}
EXIT_OURS = 70
EXIT_INTERRUPTED = 130


class LazyGroup(click.Group):
    """Lists verbs from the table; imports a verb's module when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Verbs in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb's command, or None when there is no such verb."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(COMMANDS[cmd_name][0]), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the nearest verb when there is none of that name."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"the verbs are {', '.join(COMMANDS)}"
            ctx.fail(f"no such command '{args[0]}'; {hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run the verb; a reader that went away (`bench show | head`) is no error and no regression."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The verbs with their one line, from the table alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="openloop", prog_name="bench")
def bench() -> None:
    """Throughput-latency curves of LLM inference servers that people can trust.

    \b
    bench sweep rag                            against the bundled engine
    bench sweep rag --url http://host:8000     against your server
    bench compare RUN_A RUN_B --out compare.html
    bench gate --baseline URL --candidate URL scenarios/chat.yaml

    Exit codes: 0 ok, 1 regression (gate only), 2 usage or nothing to measure, 3 inconclusive, 4 invalid run,
    70 an error of ours, 130 interrupted (what was measured is kept).
    """


def main() -> None:
    """Run `bench` and exit with a documented code; SIGTERM ends it as Ctrl-C does."""
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        sys.exit(bench.main(standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(EXIT_INTERRUPTED)
    except Exception:
        import traceback

        from loadgen.redaction import redact

        click.echo(redact(traceback.format_exc()), err=True, nl=False)
        click.echo("This is an error of openloop itself; please report it with the lines above.", err=True)
        sys.exit(EXIT_OURS)
