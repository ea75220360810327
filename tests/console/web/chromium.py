"""A headless Chromium for tests, over the pipe of its DevTools protocol: no driver is installed."""

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Self

DEADLINE_S = 40.0
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
KEYS = {"Tab": 9, "Enter": 13, "ArrowDown": 40}


def find() -> str | None:
    """The program, or None."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


class Chromium:
    """One browser with one tab.

    complaints   errors of the console, of scripts, and of requests
    """

    def __init__(self, program: str, folder: Path) -> None:
        """folder: for its profile"""
        self.complaints: list[str] = []
        self.bytes_received = 0
        self._number = 0
        self._answers: dict[int, Any] = {}
        self._received = b""
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        self._out, self._in = ours_out, ours_in

        def adopt() -> None:  # The browser reads descriptor 3, and writes 4.
            high_in, high_out = os.dup(theirs_in), os.dup(theirs_out)
            os.dup2(high_in, 3)
            os.dup2(high_out, 4)

        self._process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={folder}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            close_fds=False, preexec_fn=adopt, start_new_session=True,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self._session = ""
        made = self._call("Target.createTarget", url="about:blank")
        found = self._call("Target.attachToTarget", targetId=made["targetId"], flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._out)
        os.close(self._in)

    # ---- the protocol: JSON between zero bytes ----

    def _call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        request = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            request["sessionId"] = self._session
        os.write(self._out, json.dumps(request).encode() + b"\0")
        until = time.monotonic() + DEADLINE_S
        while self._number not in self._answers:
            assert time.monotonic() < until, f"the browser does not answer {method}"
            self._receive(1.0)
        answer = self._answers.pop(self._number)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def _receive(self, wait_s: float) -> None:
        if not select.select([self._in], [], [], wait_s)[0]:
            return
        data = os.read(self._in, 1 << 20)
        assert data, "the browser has ended"
        *whole, self._received = (self._received + data).split(b"\0")
        for text in whole:
            message = json.loads(text)
            if "id" in message:
                self._answers[message["id"]] = message
            else:
                self._on_event(message["method"], message["params"])

    def _on_event(self, method: str, found: dict[str, Any]) -> None:
        match method:
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(found["exceptionDetails"])[:2000])
            case "Runtime.consoleAPICalled" if found["type"] in ("error", "warning", "assert"):
                self.complaints.append(json.dumps(found["args"])[:2000])
            case "Log.entryAdded" if found["entry"]["level"] in ("error", "warning"):
                self.complaints.append(f"{found['entry']['text']} {found['entry'].get('url')}")
            case "Network.loadingFinished":
                self.bytes_received += int(found["encodedDataLength"])

    # ---- what a test does ----

    def open(self, url: str) -> None:
        self._call("Page.navigate", url=url)
        self.wait(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    def resize(self, width: int, height: int, scheme: str = "light") -> None:
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                   deviceScaleFactor=1, mobile=width < 600)  # fmt: skip
        self._call("Emulation.setEmulatedMedia",
                   features=[{"name": "prefers-color-scheme", "value": scheme}])  # fmt: skip

    def evaluate(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self._call("Runtime.evaluate", expression=script, returnByValue=True,
                           awaitPromise=True)  # fmt: skip
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, script: str, what: str = "") -> Any:
        """The first true value of an expression."""
        until = time.monotonic() + DEADLINE_S
        while not (value := self.evaluate(script)):
            if time.monotonic() > until:
                text = self.evaluate("document.body.innerText")
                raise AssertionError(f"{what or script}\n{text}\n{self.complaints}")
            self._receive(0.05)
        return value

    def wait_text(self, text: str, selector: str = "body") -> None:
        """Waits until an element has this text."""
        where = f"document.querySelector({json.dumps(selector)})"
        self.wait(f"{where}?.innerText.includes({json.dumps(text)})", f"{selector} has no {text!r}")

    def click(self, selector: str, text: str = "") -> None:
        """Clicks the first element that matches and has this text, where it is on the screen."""
        script = (
            f"(() => {{ const it = [...document.querySelectorAll({json.dumps(selector)})]"
            f".find((it) => it.innerText.includes({json.dumps(text)})); if (!it) return null;"
            "it.scrollIntoView({block: 'center', inline: 'center'});"
            "const r = it.getBoundingClientRect();"
            "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        x, y = self.wait(script, f"no {selector} with {text!r}")
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left",
                       clickCount=1)  # fmt: skip

    def press(self, key: str) -> None:
        code = KEYS.get(key, ord(key[0].upper()))
        text = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            more = text if kind == "keyDown" else {}
            self._call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code,
                       **more)  # fmt: skip

    def type(self, text: str) -> None:
        self._call("Input.insertText", text=text)

    def picture(self, path: Path) -> None:
        """Saves what the screen shows, as WebP."""
        found = self._call("Page.captureScreenshot", format="webp", quality=80)
        path.write_bytes(base64.b64decode(found["data"]))
