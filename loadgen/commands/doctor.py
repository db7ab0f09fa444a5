"""`bench doctor`: what stands between you and a believable measurement?"""

from __future__ import annotations

from typing import Any

import click

from loadgen.commands.common import UsageProblem, ask_options, located, reach_options


@click.command()
@click.option("--client", is_flag=True, help="Find what this machine can offer as a client, against a mock server.")
@click.option("--quick", is_flag=True, help="With --client: fewer and shorter loads, about 25 s.")
@click.option("--url", metavar="URL", help="Tell which server answers there, and how its stream is read.")
@click.option("--scenario", metavar="FILE", help="With --url: the scenario whose api, request and template to use.")
@click.option("--model", metavar="NAME", help="With --url: the model to ask for [the one served].")
@ask_options
@reach_options
@click.option("--json", "as_json", is_flag=True, help="Print it all as JSON.")
def doctor(client: bool, quick: bool, url: str | None, as_json: bool, **options: Any) -> None:
    """Check this machine, or a server, before you believe what is measured.

    --client drives a bundled mock server, which logs when it really sent each event, by the same path as `bench run`:
    requests/s in open loop, events/s, and open streams, each until the certificate fails or a core is full.
    It takes about 90 s and wants the machine for itself.

    --url asks a server about itself, sends it two short requests, and prints what was understood of the answers.
    """
    url = located(url, options["unix_socket"])
    if client == (url is not None):
        raise UsageProblem("doctor: say what to look at: --client or --url URL, one of them")
    if url is None:
        if told := [name for name, value in options.items() if value]:
            raise UsageProblem(f"doctor --client takes none of a server's options ({', '.join(sorted(told))})")
        from loadgen.commands.doctoring import examine_client

        examine_client(quick, as_json)
        return
    if quick:
        raise UsageProblem("doctor: --quick belongs to --client")
    from loadgen.commands.examining import examine_server

    examine_server(url, options, as_json)
