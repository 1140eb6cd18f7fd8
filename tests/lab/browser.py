"""A real browser without a screen, asked over a pipe in its own words (DevTools protocol)."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Self

_LONGEST_S = 60.0
"""Only so that a hang ends the test."""

_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # in a container's root account it has none; it opens our own file only
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


def why_no_browser() -> str:
    """Why there is none on this machine, if so."""
    return "" if shutil.which("chromium") else "no chromium here: see tests/lab/packages.sh"


class Browser:
    """One process; a page at a time."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="preflight-browser-"))
        theirs, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        argv = ["chromium", *_FLAGS, f"--user-data-dir={self._folder}", "about:blank"]
        log = str(self._folder / "log")
        self._pid = os.posix_spawn(
            shutil.which("chromium") or "chromium",
            argv,
            {**os.environ, "HOME": str(self._folder)},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
                (os.POSIX_SPAWN_DUP2, theirs, 3),
                (os.POSIX_SPAWN_DUP2, theirs_out, 4),
            ],
            setpgroup=0,
        )
        os.close(theirs)
        os.close(theirs_out)
        self._rest = b""
        self._asked = 0
        self.events: list[dict[str, Any]] = []
        """What it told unasked since the page was opened: errors, requests."""
        self._session = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End it and all that it started, by its process group."""
        os.close(self._out)
        os.close(self._in)
        os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        shutil.rmtree(self._folder, ignore_errors=True)

    def open(self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a file and wait until it stands."""
        self._session = ""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.ask("Page.navigate", url=path.as_uri())
        self.wait_for("Page.loadEventFired")

    def value(self, expression: str) -> Any:
        """What a line of script comes to, awaited."""
        told = self.ask(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in told:
            raise AssertionError(told["exceptionDetails"])
        return told["result"].get("value")

    def click(self, selector: str) -> None:
        """Scroll there and press the mouse, as a person would."""
        at = self.value(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)});"
            "one.scrollIntoView({block: 'center'}); const box = one.getBoundingClientRect();"
            "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.ask(
                "Input.dispatchMouseEvent",
                type=kind, x=at[0], y=at[1], button="left", clickCount=1,
            )  # fmt: skip

    def press(self, key: str) -> None:
        """Press one key."""
        typed = {"Enter": "\r"}.get(key, key)  # what submits a form is a typed character
        text = {"text": typed} if len(typed) == 1 else {}
        self.ask("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.ask("Input.dispatchKeyEvent", type="keyUp", key=key)

    def write(self, words: str) -> None:
        """Type into what has the focus."""
        self.ask("Input.insertText", text=words)

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Keep what it shows as PNG."""
        shot = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def complaints(self) -> list[str]:
        """Errors on its console, uncaught ones, and what its policy refused."""
        self.value("0")  # what it said before is here now
        said = {"Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"}
        return [json.dumps(one["params"])[:500] for one in self.events if one["method"] in said]

    def requests(self) -> list[str]:
        """Every address that it asked for."""
        sent = (one for one in self.events if one["method"] == "Network.requestWillBeSent")
        return [one["params"]["request"]["url"] for one in sent]

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command and wait for its answer."""
        self._asked += 1
        message = {"id": self._asked, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        content = json.dumps(message).encode() + b"\0"
        while content:
            content = content[os.write(self._out, content) :]
        while (answer := self._next()).get("id") != self._asked:
            self.events.append(answer)
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def wait_for(self, method: str) -> None:
        """Wait until the browser has reported such an event since `events` was cleared."""
        while not any(one["method"] == method for one in self.events):
            self.events.append(self._next())

    def _next(self) -> dict[str, Any]:
        ends = time.monotonic() + _LONGEST_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(0.0, ends - time.monotonic()))
            more = os.read(self._in, 1 << 20) if ready else b""
            if not more:
                log = (self._folder / "log").read_text(errors="replace")[-2000:]
                raise AssertionError(f"the browser says nothing:\n{log}")
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        told: dict[str, Any] = json.loads(message)
        return told
