"""Next steps after errors of Python itself: values of another type than the code expects. Pure."""

from __future__ import annotations

from mcp_server.diagnosis.failure.steps.row import row

_PYTHON = "python_error config_error"
# First match wins: special before general.
# fmt: off
ROWS = (
    row(_PYTHON, r"SyntaxError", r"(?m)^\s*match [^=\n]{1,80}:\s*$|except\*", "stop",
        "The code needs Python 3.10 or newer (match, except*) {at}: use such an environment, then launch_run again."),
    row(_PYTHON, r"SyntaxError", r":=|\bf['\"][^\n]*\{[^\n}]*=\}", "stop",
        "The code needs Python 3.8 or newer {at}: use such an environment, then launch_run again."),
    row(_PYTHON, r"SyntaxError: Missing parentheses in call to 'print'", "", "stop",
        "The code is Python 2 {at}: run it with its own Python, or convert it (2to3), then launch_run again."),
    row(_PYTHON, r"'NoneType' object is not (subscriptable|callable|iterable)", "", "stop",
        "A value is None {at}: the call or setting that should give it gave nothing; check it there, then "
        "launch_run again."),
    row(_PYTHON, r"'(\w+)' object is not callable", "", "stop",
        "A {0} is called like a function {at}: a name was overwritten, or parentheses are too many; correct it there."),
    row(_PYTHON, r"'(\w+)' object is not (subscriptable|iterable)", "", "stop",
        "A {0} is used as a list or dict {at} (not {1}): correct what is passed or returned there, then "
        "launch_run again."),
    row(_PYTHON, r"(string|list|tuple) indices must be integers(?: or slices)?(?:, not '?(\w+))?", "", "stop",
        "A {0} comes where a dict is expected {at}: the data or JSON has another structure; look at one element."),
    row(_PYTHON, r"can only concatenate (\w+) \(not \"(\w+)\"\) to", "", "stop",
        "A {1} is added to a {0} {at}: convert one of them (str(), [..]), then launch_run again."),
    row(_PYTHON, r"unsupported operand type\(s\) for (\S{1,8}): '([\w.]+)' and '([\w.]+)'", "", "stop",
        "{1} {0} {2} {at}: one of the two has the wrong type; convert it or correct its setting, then "
        "launch_run again."),
    row(_PYTHON, r"'(\S{1,2})' not supported between instances of '([\w.]+)' and '([\w.]+)'", "", "stop",
        "{1} is compared with {2} {at}: convert one (a setting may be text or None), then launch_run again."),
    row(_PYTHON, r"([\w.]{1,60})\(\) takes (?:from )?(.{1,20}) positional arguments? but (\d+) (?:was|were) given", "",
        "stop", "{0} takes {1} arguments and gets {2} {at}: name them, or align the package's version with the code."),
    row(_PYTHON, r"got multiple values for (?:keyword )?argument '(\w+)'", "", "stop",
        "{0} is passed twice {at}, by position and by name: drop one, then launch_run again."),
    row(_PYTHON, r"unhashable type: '([\w.]+)'", "", "stop",
        "A {0} is used as a key {at}: turn it into a tuple or text, then launch_run again."),
    row(_PYTHON, r"invalid literal for int\(\) with base 10: (.{1,40})", "", "stop",
        "{0} is not a whole number {at}: correct the setting or the data, or parse it there, then launch_run again."),
    row(_PYTHON, r"(?:max|min)\(\) (?:arg is an|iterable argument is) empty|arg is an empty sequence"
        r"|zero-size array to reduction|cannot choose from an empty", "", "stop",
        "A list is empty {at}: mostly no data, no checkpoint or a filter that drops all; check what fills it."),
    row(_PYTHON, r"RecursionError|maximum recursion depth", "", "stop",
        "The code calls itself without end {at}: often a __getattr__ or a circular config; correct it there."),
    row(_PYTHON, r"dictionary changed size during iteration", "", "stop",
        "A dict is changed while it is read {at}: iterate over list(d.items()), then launch_run again."),
    row(_PYTHON, r"Object of type ([\w.]+) is not JSON serializable", "", "stop",
        "{0} cannot be written as JSON {at}: convert it (.item(), .tolist(), str()), then launch_run again."),
    row(_PYTHON, r"Can't instantiate abstract class (\w+) (?:with|without).{0,40}(?:methods?) '?(.{1,60})", "", "stop",
        "{0} lacks the method {1}: define it (its base class changed with the version?), then launch_run again."),
    row(_PYTHON, r"StopIteration|generator raised StopIteration", "", "stop",
        "An iterator is used up {at}: make it anew at its end (or cycle it), or correct the number of steps."),
    row(_PYTHON, r"NotImplementedError: (.{8,300})", "", "stop",
        "Not implemented {at}: {0}; choose another setting or version, then launch_run again."),
)
# fmt: on
