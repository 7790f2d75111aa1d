"""The playground, served in the background."""

import contextlib
import threading
from collections.abc import Iterator, Sequence

from electrakit.playground.app import make_app
from electrakit.playground.pair import Pair
from electrakit.playground.server import address_of, listening, server_of


@contextlib.contextmanager
def playing(pairs: Sequence[Pair], host: str = "127.0.0.1") -> Iterator[str]:
    """Serve the page while the block runs; yields its address."""
    with listening(host, 0) as listener:
        server = server_of(make_app(pairs, host))
        thread = threading.Thread(target=server.run, args=[[listener]], daemon=True)
        thread.start()
        try:
            yield address_of(listener, host)
        finally:
            server.should_exit = True
            thread.join()
