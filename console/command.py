"""``tidelog console``: one process that serves a web page."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import ssl
import sys
import time
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import click

import tidelog
from tidelog.cli.failure import CommandFailed
from tidelog.cli.terminal.connection import bootstrap_option, secured

PORT: Final = 8790
TUNED: Final = {"MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": str(1 << 20)}
"""Without these, glibc retains memory that each thread has freed, 20 MB here. glibc reads them when a process
starts."""


@click.command(short_help="Show and change the cluster in a browser.")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Where to listen.")
@click.option("--port", type=click.IntRange(0, 65_535), default=PORT, show_default=True, help="0: any free port.")
@click.option(
    "--origin", "origins", multiple=True, metavar="URL",
    help="An address at which browsers reach the console, if it differs from --host and --port; repeatable.",
)  # fmt: skip
@click.option(
    "--ssl-certfile", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="PEM file of the console's own certificate, for HTTPS.",
)  # fmt: skip
@click.option(
    "--ssl-keyfile", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="PEM file of its private key.  [default: --ssl-certfile has it]",
)  # fmt: skip
@click.option(
    "--messages", "messages_file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
    help="TOML file: the schemas by which messages are decoded, and what is hidden of them.",
)  # fmt: skip
@click.option("--schema-registry", metavar="URL", help="Decode by the schemas of this registry.")
@click.option("--drills", is_flag=True, help="Offer drills, which stop nodes' processes on this machine.")
@click.option("--open", "open_it", is_flag=True, help="Open the page in your browser.")
@bootstrap_option
def console(
    host: str,
    port: int,
    origins: tuple[str, ...],
    ssl_certfile: Path | None,
    ssl_keyfile: Path | None,
    messages_file: Path | None,
    schema_registry: str | None,
    drills: bool,
    open_it: bool,
    bootstrap: str,
) -> None:
    """Serve pages that show the cluster and change it, as the person who is logged in.

    If the brokers ask for passwords, the page does, and people act under their own names. If not, the console listens
    on this machine only. It runs until interrupted.
    """
    _restart_tuned()
    from tidelog.client.background import BackgroundLoop
    from tidelog.console.access import access_of, check_place
    from tidelog.console.schemas.settings import load
    from tidelog.console.serving import Place, serve

    messages = load(messages_file, schema_registry)
    access = access_of(secured())
    tls = _tls(ssl_certfile, ssl_keyfile)
    found = tuple(_origin(each) for each in origins)
    encrypted = tls is not None or (bool(found) and all(each.startswith("https://") for each in found))
    check_place(access, host, encrypted=encrypted)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr, level=logging.WARNING)
    background = BackgroundLoop()
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    def tell(url: str) -> None:
        click.echo(f"tidelog console of {bootstrap}: {url}")
        if open_it:
            import webbrowser

            webbrowser.open(url)

    about = {"version": tidelog.__version__, "bootstrap": bootstrap, "drills": drills}
    place = Place(host, port, found, tls)
    try:
        work = serve(
            bootstrap, access, place, background, about, tell, time.monotonic, messages=messages, drills=drills
        )
        background.run(work)
    except OSError as error:
        raise CommandFailed(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    finally:
        background.run(_let_end())
        background.stop()


async def _let_end() -> None:
    """Wait until the cancelled server has closed everything."""
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    if others:
        await asyncio.wait(others, timeout=10)


def _restart_tuned() -> None:
    """Restart the process with tuned allocator settings, as a node does. Settings of the user take precedence."""
    if (
        sys.platform == "linux"
        and not TUNED.keys() <= os.environ.keys()
        and sys.argv[0].endswith(("tidelog", "cli/main.py"))
    ):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**TUNED, **os.environ})


def _tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if certificate is None:
        if key is not None:
            raise click.UsageError("expected --ssl-certfile with --ssl-keyfile")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise CommandFailed(f"{certificate}: expected a certificate and its key in PEM: {error}") from None
    return context


def _origin(text: str) -> str:
    found = urlsplit(text)
    if found.scheme not in ("http", "https") or not found.netloc or found.path.strip("/") or found.query:
        raise click.UsageError(f"--origin: expected an address such as https://console.example, found {text!r}")
    return f"{found.scheme}://{found.netloc.lower()}"
