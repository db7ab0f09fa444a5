"""How a server that we started as a child process is ended."""

from __future__ import annotations

import subprocess


def end_child(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """Terminate it, kill it when `grace_s` seconds did not suffice, and close its pipes."""
    process.terminate()
    try:
        process.wait(grace_s)
    except BaseException as error:  # an impatient second Ctrl-C included: it must not survive either
        process.kill()
        process.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
    finally:
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
