"""Checks every row of a table in one test: pytest takes longer over a parameter than the check over its row."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any


def for_each(rows: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Run a test for each row and report all rows that fail. A test with several arguments gets the parts of a row."""
    table = list(rows)
    assert table, "a test without rows proves nothing"

    def decorate(test: Callable[..., None]) -> Callable[[], None]:
        takes_one = len(inspect.signature(test).parameters) == 1

        def check_rows() -> None:
            failures = []
            for row in table:
                try:
                    test(row) if takes_one else test(*row)
                except Exception as error:
                    failures.append(f"{row!r:.300}\n    {type(error).__name__}: {error}")
            assert not failures, f"{len(failures)} of {len(table)} rows fail:\n" + "\n".join(failures[:20])

        check_rows.__module__, check_rows.__doc__ = test.__module__, test.__doc__
        check_rows.__name__ = check_rows.__qualname__ = test.__name__
        return check_rows

    return decorate
