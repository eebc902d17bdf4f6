"""Next steps after errors inside a package that the user's code only starts: which argument or version to check."""

from __future__ import annotations

from mcp_server.diagnosis.failure.steps.row import NextStep, Row, Scene, row

_PYTHON = "python_error config_error other"
# First match wins: special before general.
# fmt: off
_ROWS: tuple[Row, ...] = (
    row(_PYTHON, r"([\w.]{1,60})\(\) got an unexpected keyword argument '(\w+)'", "", "stop",
        "{library} passes {1}, which {0} does not take: add **kwargs to it if it is yours, else align their versions."),
    row(_PYTHON, r"'(\w+)' object has no attribute '(\w+)'|module '([\w.]+)' has no attribute '(\w+)'"
        r"|type object '(\w+)' has no attribute '(\w+)'", r"(?s)\A(?!.*'NoneType')", "stop",
        "{0}{2}{4} has no {1}{3}{5} inside {library}: their versions do not fit; upgrade {library} (`pip show` names "
        "what "
        "it needs)."),
    row(_PYTHON, r"'?NoneType'?", "", "stop",
        "A value is None inside {library}: a setting or input that it needs is missing {at}; check its arguments, else "
        "its version."),
    row(_PYTHON, r"KeyError: ['\"]?([^'\"\n]{1,60})", "", "stop",
        "{library} finds no {0} in what it gets {at}: check the data's columns and the settings passed there, else its "
        "version."),
    row(_PYTHON, r"(?:TypeError|IndexError|AttributeError|AssertionError|ZeroDivisionError|NotImplementedError"
        r"|UnboundLocalError|NameError|RecursionError|StopIteration): (.{3,300})$", "", "stop",
        "The error is inside {library} ({0}): check the arguments and data passed {at}, else another version of it."),
    row(_PYTHON, r"AssertionError\W*$", "", "stop",
        "A check inside {library} fails ({source}): make it true by the arguments and data passed {at}, else try "
        "another "
        "version."),
    row(_PYTHON, r"(?:[\w.]*(?:Error|Exception)): (.{8,400})", "", "stop",
        "{library} refuses: {0}; correct the argument passed {at} that this names, else try another version of it."),
)
# fmt: on


def explain_inside(scene: Scene) -> NextStep | None:
    """Return the step after an error inside a package that the user's code only starts, or None."""
    if not scene.inside:
        return None
    return next(filter(None, (one.propose(scene) for one in _ROWS)), None)
