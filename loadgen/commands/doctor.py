"""`bench doctor`: what stands between you and a believable measurement?"""

from __future__ import annotations

import click

from loadgen.commands.common import UsageProblem


@click.command()
@click.option("--client", is_flag=True, help="Find what this machine can offer as a client, against a mock server.")
@click.option("--quick", is_flag=True, help="With --client: fewer and shorter loads, about 25 s.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def doctor(client: bool, quick: bool, as_json: bool) -> None:
    """Check this machine before you believe what it measures.

    --client drives a bundled mock server, which logs when it really sent each event, by the same path as `bench run`:
    requests/s in open loop, events/s, and open streams, each until the certificate fails or a core is full.
    It takes about 90 s and wants the machine for itself.
    """
    if not client:
        raise UsageProblem("doctor: say what to look at: --client")
    from loadgen.commands.doctoring import examine_client

    examine_client(quick, as_json)
