"""The choice of `auto` at a speed that does not depend on the size of the body."""

from typing import Any

from electrakit.model import auto


def choose(seconds: float, speed: float, *arguments: Any, **more: Any) -> auto.Choice:
    return auto.choose(seconds, lambda size: speed, *arguments, **more)
