"""Pairs in, a web application out: one static page, and questions about texts that are answered in turn.

What comes from outside is never trusted: other sites cannot ask (Host, Origin, content type), nobody can send much (64 kB, ten
seconds), and the models work in one thread, for a few questions at a time.
"""

import asyncio
import ipaddress
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from electrakit.share.pair import Pair
from electrakit.share.play.answers import QUESTIONS, Question, Refused, about

STATIC = Path(__file__).parent / "static"
KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
MAX_BODY = 64 * 1024  # bytes
MAX_SECONDS = 10.0  # for a header to arrive, and for a body
MAX_WAITING = 16  # questions; an impatient page has two or three
SMALL = 50_000_000  # parameters: a second thread gains little, and waits for a core where a training runs beside it
POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "connect-src": "'self'",
    "img-src": "'self' data:",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}
HEADERS = {
    "content-security-policy": "; ".join(f"{what} {where}" for what, where in POLICY.items()),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
LOOPBACK = {"localhost", "127.0.0.1", "::1"}


def make_app(pairs: Sequence[Pair], host: str = "127.0.0.1") -> ASGIApp:
    """`host` is the address that the application is reached at: requests for another one are refused."""
    desk = Desk(pairs)

    async def ask(request: Request) -> Response:
        question = Question.of(await read_json(request))
        compute = QUESTIONS[request.url.path.rpartition("/")[2]](pairs, question)
        return as_json(await desk.answer(compute, request))

    async def tell(request: Request) -> Response:
        return as_json(about(pairs))

    routes = [
        *(Route(f"/api/{name}", ask, methods=["POST"]) for name in QUESTIONS),
        Route("/api/about", tell),
        *(static_route(path) for path in sorted(STATIC.iterdir()) if path.suffix in KINDS),
    ]
    handlers: Any = {Refused: on_refused, HTTPException: on_http_error, Exception: on_bug}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), host)


def static_route(path: Path) -> Route:
    """A file of the page, read once: no path of a request ever reaches the disk."""
    content = path.read_bytes()

    async def serve(request: Request) -> Response:
        return Response(content, media_type=KINDS[path.suffix])

    return Route("/" if path.name == "index.html" else f"/{path.name}", serve)


class Desk:
    """One thread that answers, and a short queue in front of it."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        networks = [one for pair in pairs for one in (pair.discriminator, pair.generator) if one is not None]
        largest = max(sum(weight.numel() for weight in network.parameters()) for network in networks)
        num_threads = 1 if largest < SMALL else torch.get_num_threads()
        self.worker = ThreadPoolExecutor(1, "answers", torch.set_num_threads, (num_threads,))
        self.num_waiting = 0

    async def answer(self, compute: Callable[[], dict[str, Any]], request: Request) -> dict[str, Any]:
        """What `compute` says; nothing is computed for somebody who leaves before it is their turn."""
        if self.num_waiting >= MAX_WAITING:
            raise Refused("too many questions at once; ask again in a second", 429, **{"retry-after": "1"})
        answer: asyncio.Future[Any] = asyncio.get_running_loop().run_in_executor(self.worker, compute)
        leaving: asyncio.Future[Any] = asyncio.create_task(until_gone(request))
        self.num_waiting += 1
        try:
            await asyncio.wait([answer, leaving], return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise Refused("gone before the answer was there")
            found: dict[str, Any] = answer.result()
            return found
        finally:
            answer.cancel()  # the page asks anew at every pause in typing: what is still in the queue is old
            leaving.cancel()
            self.num_waiting -= 1


# --- what comes in -------------------------------------------------------------------------------------------------------


class Guard:
    """Lets in what asks for our own address and comes from our own page, and puts the headers on everything that goes out."""

    def __init__(self, app: ASGIApp, host: str) -> None:
        self.app, self.host = app, host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *headers]}
            await send(message)

        refusal = self.refusal(scope)
        answer = self.app if refusal is None else refused(refusal)
        await answer(scope, receive, send_guarded)

    def refusal(self, scope: Scope) -> Refused | None:
        headers = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        hosts = [value for name, value in headers if name == "host"]
        if len(hosts) != 1 or not is_ours(hosts[0], self.host):
            # A page of another site can point its own name at this machine, but cannot make the browser ask for ours.
            return Refused("this address is not served here: open the one that was printed at the start", 403)
        if scope["method"] not in ("GET", "HEAD"):
            origins = [value for name, value in headers if name == "origin"]
            if any(origin != f"http://{hosts[0]}" for origin in origins):
                return Refused("only the page itself may ask", 403)
            if any(name == "sec-fetch-site" and value not in ("same-origin", "none") for name, value in headers):
                return Refused("only the page itself may ask", 403)
        return None


def is_ours(header: str, host: str) -> bool:
    """Is this Host header one of the names that we listen at? The port may be that of a tunnel."""
    name, colon, port = header.rpartition(":")
    if not colon or not port.isdecimal():
        name = header
    name = name.removeprefix("[").removesuffix("]").lower()
    if name in LOOPBACK or name == host.lower():
        return True
    return not is_loopback(host) and is_address(name)  # of all addresses of this machine; a number cannot be rebound


def is_loopback(host: str) -> bool:
    return host.lower() in LOOPBACK or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


async def read_json(request: Request) -> Any:
    """The body, as far as it is small, quick and JSON."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused("the content type must be application/json", 415)
    too_large = Refused(f"the body is larger than {MAX_BODY // 1024} kB", 413, connection="close")
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or len(length) > 9 or int(length) > MAX_BODY:
        raise too_large
    body = b""
    try:
        async with asyncio.timeout(MAX_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY:
                    raise too_large
    except TimeoutError:
        raise Refused(f"the body took longer than {MAX_SECONDS:.0f} s", 408, connection="close") from None
    except ClientDisconnect:
        raise Refused("gone before the body was whole") from None
    try:
        return json.loads(body, parse_constant=no_constant)
    except (ValueError, RecursionError):
        raise Refused("the body is not JSON") from None


async def until_gone(request: Request) -> None:
    """Behind the body nothing comes but the end of the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def no_constant(name: str) -> None:
    raise ValueError(name)  # NaN and Infinity, which are no JSON


# --- what goes out -------------------------------------------------------------------------------------------------------


def as_json(answer: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    content = json.dumps(answer, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(content.encode(), status, headers, media_type="application/json")


def refused(error: Refused) -> Response:
    return as_json({"error": error.message}, error.status, error.headers)


async def on_refused(request: Request, error: Refused) -> Response:
    return refused(error)


async def on_http_error(request: Request, error: HTTPException) -> Response:
    return as_json({"error": error.detail.lower()}, error.status_code, dict(error.headers or {}))


async def on_bug(request: Request, error: Exception) -> Response:
    """The traceback goes to the terminal."""
    return as_json({"error": "something went wrong here; the terminal says what"}, 500)
