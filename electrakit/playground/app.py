"""The web application of the playground: a static page, and an API that computes its answers one after the other.

Requests are not trusted. Other sites cannot call the API (Host, Origin, content type), bodies are limited (64 kB, ten seconds),
and the models run in one thread, behind a short queue.
"""

import asyncio
import functools
import ipaddress
import json
import mimetypes
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from electrakit.playground.answers import ENDPOINTS, RequestError, RequestFields, about
from electrakit.playground.pair import Pair

STATIC = Path(__file__).parent / "static"
mimetypes.add_type("text/javascript", ".js")  # some systems say otherwise, and browsers then refuse the scripts
MAX_BODY = 64 * 1024  # bytes
MAX_SECONDS = 10.0  # for a header to arrive, and for a body
MAX_WAITING = 16  # requests; an impatient page has two or three
# Parameters: with fewer, a second thread gains little, and waits for a core where a training runs beside it.
SMALL = 50_000_000
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
LOOPBACK = {"localhost", "127.0.0.1", "::1"}


def make_app(pairs: Sequence[Pair], host: str = "127.0.0.1") -> ASGIApp:
    """`host` is the address that the application is reached at: requests for another one are refused."""
    queue = AnswerQueue(pairs)

    async def answer(request: Request) -> JSONResponse:
        fields = RequestFields(await read_body(request))
        compute = functools.partial(ENDPOINTS[request.url.path.rpartition("/")[2]], pairs, fields)
        return JSONResponse(await queue.answer(compute, request))

    async def answer_about(request: Request) -> JSONResponse:
        return JSONResponse(about(pairs))

    endpoints = [Route(f"/{name}", answer, methods=["POST"]) for name in ENDPOINTS]
    routes = [
        Mount("/api", app=Router([*endpoints, Route("/about", answer_about)], redirect_slashes=False)),
        Mount("/", StaticFiles(directory=STATIC, html=True)),
    ]
    handlers: Any = {RequestError: on_request_error, HTTPException: on_http_error, Exception: on_bug}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), host)


class AnswerQueue:
    """One thread that runs the models, and a short queue in front of it."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        networks = [one for pair in pairs for one in (pair.discriminator, pair.generator) if one is not None]
        largest = max(sum(weight.numel() for weight in network.parameters()) for network in networks)
        num_threads = 1 if largest < SMALL else torch.get_num_threads()
        self.worker = ThreadPoolExecutor(1, "answers", torch.set_num_threads, (num_threads,))
        self.num_waiting = 0

    async def answer(self, compute: Callable[[], dict[str, Any]], request: Request) -> dict[str, Any]:
        """The result of `compute`, which is not called if the client leaves before its turn."""
        if self.num_waiting >= MAX_WAITING:
            raise RequestError("too many questions at once; ask again in a second", 429, **{"retry-after": "1"})
        answer: asyncio.Future[Any] = asyncio.get_running_loop().run_in_executor(self.worker, compute)
        leaving: asyncio.Future[Any] = asyncio.create_task(until_disconnect(request))
        self.num_waiting += 1
        try:
            await asyncio.wait([answer, leaving], return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise RequestError("gone before the answer was there")
            found: dict[str, Any] = answer.result()
            return found
        finally:
            # The page asks anew at every pause in typing: a request that still waits is outdated.
            answer.cancel()
            leaving.cancel()
            self.num_waiting -= 1


# --- requests ---


class Guard:
    """Accepts requests for this address that come from its page, and adds the security headers to every response.

    Starlette's TrustedHostMiddleware knows lists of names only, not "any IP address of this machine", and reads the first of two
    Host headers. Its other middleware stands inside the handler of bugs, whose responses need the headers too.
    """

    def __init__(self, app: ASGIApp, host: str) -> None:
        self.app, self.host = app, host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        error = self.refusal(scope) if scope["type"] == "http" else None
        response = self.app if error is None else error_response(error)
        await response(scope, receive, send_with_headers)

    def refusal(self, scope: Scope) -> RequestError | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not is_allowed_host(hosts[0], self.host):
            # A page of another site can point its own name at this machine, but cannot make the browser ask for ours.
            return RequestError("this address is not served here: open the one that was printed at the start", 403)
        if scope["method"] not in ("GET", "HEAD"):
            is_other_origin = any(origin != f"http://{hosts[0]}" for origin in headers.getlist("origin"))
            is_cross_site = any(site not in ("same-origin", "none") for site in headers.getlist("sec-fetch-site"))
            if is_other_origin or is_cross_site:
                return RequestError("only the page itself may ask", 403)
        return None


def is_allowed_host(header: str, host: str) -> bool:
    """Whether a Host header names an address that we listen at. The port may be that of a tunnel."""
    name, colon, port = header.rpartition(":")
    if not colon or not port.isdecimal():
        name = header
    name = name.removeprefix("[").removesuffix("]").lower()
    if name in LOOPBACK or name == host.lower():
        return True
    # Any address of this machine: another site's name can be pointed here, an IP address cannot.
    return not is_loopback(host) and is_ip_address(name)


def is_loopback(host: str) -> bool:
    return host.lower() in LOOPBACK or (is_ip_address(host) and ipaddress.ip_address(host).is_loopback)


def is_ip_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


async def read_body(request: Request) -> Any:
    """The body, if it is small, arrives in time and is JSON. Starlette's `request.json()` has no limits."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise RequestError("the content type must be application/json", 415)
    too_large = RequestError(f"the body is larger than {MAX_BODY // 1024} kB", 413, connection="close")
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
        raise RequestError(f"the body took longer than {MAX_SECONDS:.0f} s", 408, connection="close") from None
    except ClientDisconnect:
        raise RequestError("gone before the body was complete") from None
    try:
        return json.loads(body, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        raise RequestError("the body is not JSON") from None


def refuse_constant(name: str) -> None:
    """NaN and Infinity, which Python reads and JSON does not have."""
    raise ValueError(name)


async def until_disconnect(request: Request) -> None:
    """After the body, the only event is the end of the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


# --- errors ---


def error_response(error: RequestError) -> JSONResponse:
    return JSONResponse({"error": str(error)}, error.status, error.headers)


async def on_request_error(request: Request, error: RequestError) -> JSONResponse:
    return error_response(error)


async def on_http_error(request: Request, error: HTTPException) -> JSONResponse:
    return JSONResponse({"error": error.detail.lower()}, error.status_code, error.headers)


async def on_bug(request: Request, error: Exception) -> JSONResponse:
    """The traceback goes to the terminal."""
    return JSONResponse({"error": "something went wrong here; the terminal says what"}, 500)
