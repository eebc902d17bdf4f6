"""Prints a secret in every way that trainings manage to: `leak.py NAME`."""

import base64
import os
import sys
import time
from urllib.parse import quote

value = os.environ[sys.argv[1]]


def say(text: str) -> None:
    """Write at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


say(f"plain: {value}\nin quotes: {value!r}\n")
say("environment: " + " ".join(f"{n}={v}" for n, v in os.environ.items() if n == sys.argv[1]) + "\n")
say("in pieces: ")
for letter in value:
    say(letter)
    time.sleep(0.005)
say("\nin two writes: " + value[: len(value) // 2])
time.sleep(0.2)
say(value[len(value) // 2 :] + "\n")
for before in ("", "k", "ke", "key="):
    text = f"{before}{value}:rest".encode()
    say(f"base64: {base64.b64encode(text).decode()} {base64.urlsafe_b64encode(text).decode()}\n")
say(f"base64 alone: {base64.b64encode(value.encode()).decode()}\n")
say(f"hex: {value.encode().hex()} {value.encode().hex().upper()}\n")
say(f"in a URL: https://user:{quote(value, safe='')}@example.org/\n")
sys.stderr.write(f"\x1b[31mred: {value}\x1b[0m\rover: {value}\n")
say("all said\n")
time.sleep(float(sys.argv[2]))
raise PermissionError(f"401: bad key {value}")
