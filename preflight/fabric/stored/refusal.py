"""How a file that cannot be is refused: the place, what stands there, and what to do."""

from __future__ import annotations

from preflight.errors import UsageError


def within(where: str, what: str, value: int, most: int) -> None:
    """Refuse a whole number outside of 0 to `most`."""
    if not 0 <= value <= most:
        raise absurd(where, f"{what} {value}", f"it is between 0 and {most}")


def absurd(where: str, said: str, instead: str) -> UsageError:
    """The refusal, to be raised."""
    return UsageError(f"{where}: {said}; {instead}")
