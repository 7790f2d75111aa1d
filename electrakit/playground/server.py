"""Serves the playground page for one or two models until Ctrl-C."""

import asyncio
import contextlib
import os
import socket
import threading
import webbrowser
from collections.abc import Iterator, Sequence

import h11
from rich.console import Console
from starlette.types import ASGIApp
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from electrakit.common.errors import UserError
from electrakit.config.outputs import PlayConfig
from electrakit.playground.answers import networks_of
from electrakit.playground.app import MAX_SECONDS, is_loopback, make_app
from electrakit.playground.open import open_pair
from electrakit.playground.pair import Pair

Place = str | os.PathLike[str]


def play(
    models: Place | Sequence[Place],
    *,
    generator: Place | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    browser: bool = False,
) -> None:
    """Serve a page to play with one model, or with two side by side, until Ctrl-C; PlayConfig explains the settings."""
    config = PlayConfig(**locals())
    console = Console(highlight=False)
    # The port is taken first: loading models takes longer.
    with contextlib.suppress(KeyboardInterrupt), listening(host, port) as listener:
        pairs = open_pairs(config.models, config.generator)
        for pair in pairs:
            console.out(describe_networks(pair))
        address = address_of(listener, host)
        if not is_loopback(host):
            warning = f"{host} is not only this machine: whoever can reach it can use the page and the models."
            console.out(warning, style="yellow")
        console.out(f"Playground: {address}  (Ctrl-C ends it)")
        if browser:
            threading.Thread(target=webbrowser.open, args=[address], daemon=True).start()
        server_of(make_app(pairs, host)).run([listener])


def open_pairs(models: Sequence[Place], generator: Place | None = None) -> list[Pair]:
    pairs = [open_pair(place, generator) for place in models]
    if len(pairs) == 2 and pairs[0].name == pairs[1].name:  # hf/a/mine and hf/b/mine
        for pair, place in zip(pairs, models, strict=True):
            pair.name = os.fspath(place)
    for pair in pairs:
        warm_up(pair)
    return pairs


def warm_up(pair: Pair) -> None:
    """Run each network once: the first answer is then as fast as others, and a broken model is found now."""
    encoded = pair.encode("a b c")
    scores = pair.replaced(encoded.ids) if pair.discriminator is not None else []
    if pair.generator is not None:
        scores = [*scores, *pair.token_probabilities(encoded.ids, 1).tolist()]
    if any(score != score for score in scores):
        raise UserError(f"{pair.name} answers with NaN: its weights have diverged; name an earlier checkpoint")


def describe_networks(pair: Pair) -> str:
    parts = [
        f"{role}: {network.family}, {network.parameters / 1e6:.1f} M parameters" if network else f"no {role}"
        for role, network in networks_of(pair).items()
    ]
    return f"{pair.name}  ({'; '.join(parts)})"


# --- the socket ---


@contextlib.contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise UserError(f"--host {host!r} is no address of this machine: {error}; the default is 127.0.0.1") from None
    with socket.socket(family, kind, protocol) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(where)
            listener.listen(128)
        except OSError as error:
            raise UserError(
                f"cannot listen at {host}:{port}: {error.strerror}; name another --port (0 takes a free one) or --host"
            ) from None
        yield listener


def address_of(listener: socket.socket, host: str) -> str:
    """The address for a browser."""
    name = f"[{host}]" if ":" in host else host
    shown = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", "": "127.0.0.1"}.get(name, name)
    return f"http://{shown}:{listener.getsockname()[1]}/"


class HeaderTimeoutProtocol(H11Protocol):
    """Closes a connection whose request header is not complete after MAX_SECONDS: uvicorn itself waits forever."""

    header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.update_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.update_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop_timer()
        super().connection_lost(exc)

    def update_timer(self) -> None:
        if self.conn.their_state is not h11.IDLE:  # the header is complete
            self.stop_timer()
        elif self.header_timer is None:
            self.header_timer = self.loop.call_later(MAX_SECONDS, self.transport.close)

    def stop_timer(self) -> None:
        if self.header_timer is not None:
            self.header_timer.cancel()
            self.header_timer = None


def server_of(app: ASGIApp) -> Server:
    return Server(
        Config(
            app,
            http=HeaderTimeoutProtocol,
            ws="none",
            lifespan="off",
            log_level="error",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
    )
