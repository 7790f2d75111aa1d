"""Names of models in, a page to play with them out: served at this machine until Ctrl-C."""

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

from electrakit.errors import UserError
from electrakit.share.open_pair import open_pair
from electrakit.share.pair import Pair
from electrakit.share.play.answers import describe
from electrakit.share.play.app import MAX_SECONDS, is_loopback, make_app
from electrakit.share_config import check_models

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
    console = Console(highlight=False)
    with (
        contextlib.suppress(KeyboardInterrupt),
        listening(host, port) as listener,
    ):  # first: to read models takes longer
        pairs = open_pairs(models, generator)
        for pair in pairs:
            console.print(line_of(pair), markup=False, soft_wrap=True)
        address = address_of(listener, host)
        if not is_loopback(host):
            console.print(
                f"{host} is not only this machine: whoever can reach it can use the page and the models.",
                style="yellow",
                markup=False,
                soft_wrap=True,
            )
        console.print(f"Playground: {address}  (Ctrl-C ends it)", markup=False, soft_wrap=True)
        if browser:
            threading.Thread(target=webbrowser.open, args=[address], daemon=True).start()
        server_of(make_app(pairs, host)).run([listener])


@contextlib.contextmanager
def playing(pairs: Sequence[Pair], host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """The page in the background, as long as the block lasts: its address."""
    with listening(host, port) as listener:
        server = server_of(make_app(pairs, host))
        thread = threading.Thread(target=server.run, args=[[listener]], daemon=True)
        thread.start()
        try:
            yield address_of(listener, host)
        finally:
            server.should_exit = True
            thread.join()


def open_pairs(models: Place | Sequence[Place], generator: Place | None = None) -> list[Pair]:
    places = [models] if isinstance(models, str | os.PathLike) else list(models)
    check_models(len(places))
    pairs = [open_pair(place, generator) for place in places]
    if len(pairs) == 2 and pairs[0].name == pairs[1].name:  # hf/a/mine and hf/b/mine
        for pair, place in zip(pairs, places, strict=True):
            pair.name = os.fspath(place)
    for pair in pairs:
        warm_up(pair)
    return pairs


def warm_up(pair: Pair) -> None:
    """The first answer is not slower than others, and a broken model is found now."""
    encoded = pair.encode("a b c")
    scores = pair.replaced(encoded.ids) if pair.discriminator is not None else []
    if pair.generator is not None:
        scores = [*scores, *pair.word_scores(encoded.ids, 1).tolist()]
    if any(score != score for score in scores):
        raise UserError(f"{pair.name} answers with NaN: its weights have diverged; name an earlier checkpoint")


def line_of(pair: Pair) -> str:
    parts = [
        f"{role}: {about['family']}, {about['parameters'] / 1e6:.1f} M parameters" if about else f"no {role}"
        for role in ("discriminator", "generator")
        for about in [describe(pair)[role]]
    ]
    return f"{pair.name}  ({'; '.join(parts)})"


# --- the socket ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    if not 0 <= port <= 65_535:
        raise UserError(f"--port {port}: ports are numbers from 1 to 65535, and 0 takes a free one")
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
    """As one types it into a browser."""
    name = f"[{host}]" if ":" in host else host
    shown = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", "": "127.0.0.1"}.get(name, name)
    return f"http://{shown}:{listener.getsockname()[1]}/"


class Impatient(H11Protocol):
    """Hangs up where a request's header does not arrive whole in MAX_SECONDS: uvicorn itself would wait for ever."""

    header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self.forget()
        super().connection_lost(exc)

    def watch(self) -> None:
        if self.conn.their_state is not h11.IDLE:  # the header is there
            self.forget()
        elif self.header_timer is None:
            self.header_timer = self.loop.call_later(MAX_SECONDS, self.transport.close)

    def forget(self) -> None:
        if self.header_timer is not None:
            self.header_timer.cancel()
            self.header_timer = None


def server_of(app: ASGIApp) -> Server:
    return Server(
        Config(
            app,
            http=Impatient,
            ws="none",
            lifespan="off",
            log_level="error",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
    )
