"""A headless Chromium, driven by its DevTools protocol over a pair of pipes: no driver, no port, no network."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

FLAGS = (
    "--headless",
    "--remote-debugging-pipe",
    "--no-sandbox",  # which root cannot have
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)

PATIENCE = 60
"""Seconds to wait for an answer."""


def find() -> str | None:
    """The path of a browser that can be driven, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """A context manager: the browser with one page in it, and everything that the page asked for or complained of."""

    def __init__(self, program: str, folder: Path):
        self._command = [program, *FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"]
        self.downloads = folder / "downloads"
        self._last = 0
        self._unread = b""
        self._events: list[dict[str, Any]] = []
        self._session: str | None = None

    def __enter__(self) -> Browser:
        commands, self._to = os.pipe()
        self._from, answers = os.pipe()
        # The browser reads from 3 and writes to 4; a shell moves them there from numbers that are not in their way.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (commands, answers)]
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{ends[0]} 4>&{ends[1]}', "bash", *self._command],
            pass_fds=ends,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (commands, answers, *ends):
            os.close(end)
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._send(f"{domain}.enable")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._to)  # at which it ends by itself
        os.close(self._from)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def open(self, page: Path, *, width: int = 1200, dark: bool = False, script: bool = True) -> None:
        """Loads a page in a window of that width, and waits until it is there."""
        self._events.clear()
        self._send("Emulation.setScriptExecutionDisabled", value=not script)
        self.resize(width)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._send("Emulation.setEmulatedMedia", features=[scheme])
        self._send("Page.navigate", url=page.resolve().as_uri())
        self.wait_for("Page.loadEventFired")

    def resize(self, width: int) -> None:
        self._send(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page. Raises AssertionError if it throws."""
        answer = self._send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str, text: str = "") -> None:
        """A key on the keyboard, which goes to what has the focus."""
        code = {"Enter": 13, "Tab": 9, "ArrowRight": 39}.get(key, 0)
        common = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self._send("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self._send("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text: str) -> None:
        self._send("Input.insertText", text=text)

    def click(self, selector: str) -> None:
        """The mouse on the middle of the first element that the selector finds."""
        x, y = self.evaluate(
            f"""(() => {{
              const element = document.querySelector({json.dumps(selector)});
              element.scrollIntoView({{block: 'center', behavior: 'instant'}});
              const box = element.getBoundingClientRect();
              return [box.x + box.width / 2, box.y + box.height / 2];
            }})()"""
        )
        for kind in ("mousePressed", "mouseReleased"):
            self._send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def screenshot(self, *, whole: bool = True) -> bytes:
        """A PNG of the page, or of what the window shows of it."""
        return base64.b64decode(self._send("Page.captureScreenshot", captureBeyondViewport=whole)["data"])

    def accept_downloads(self) -> None:
        self.downloads.mkdir(exist_ok=True)
        self._send("Page.setDownloadBehavior", behavior="allow", downloadPath=str(self.downloads))

    def requests(self) -> list[str]:
        """Addresses that the page asked for since it was opened, other than the data that it carries."""
        urls = [event["params"]["request"]["url"] for event in self._of("Network.requestWillBeSent")]
        return [url for url in urls if not url.startswith("data:")]

    def complaints(self) -> list[str]:
        """What the page wrote to the console, and what it threw."""
        logged = [event["params"]["entry"]["text"] for event in self._of("Log.entryAdded")]
        called = [str(event["params"]["args"]) for event in self._of("Runtime.consoleAPICalled")]
        thrown = [str(event["params"]["exceptionDetails"]) for event in self._of("Runtime.exceptionThrown")]
        return logged + called + thrown

    def dialogs(self) -> list[dict[str, Any]]:
        return self._of("Page.javascriptDialogOpening")

    def wait_for(self, method: str, **expected: Any) -> dict[str, Any]:
        """The first event of that kind since the page was opened, with those parameters."""
        deadline = time.monotonic() + PATIENCE
        while True:
            for event in self._of(method):
                if expected.items() <= event["params"].items():
                    return event
            self._read(deadline, method)

    def _of(self, method: str) -> list[dict[str, Any]]:
        return [event for event in self._events if event["method"] == method]

    def _send(self, method: str, **parameters: Any) -> Any:
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data) :]
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self._read(deadline, method)
            if answer.get("id") == self._last:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def _read(self, deadline: float, awaited: str) -> dict[str, Any]:
        """The next message. Events are kept."""
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"the browser said nothing of {awaited} for {PATIENCE} s"
            part = os.read(self._from, 1 << 20)
            assert part, f"the browser ended before it answered {awaited}"
            self._unread += part
        text, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if "method" in message:
            self._events.append(message)
        return message
