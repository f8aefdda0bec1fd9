"""The page of a running `neap serve` in headless Chromium: what it shows, and an image that is tried with a model.

    serve_page.py NEAP FOLDER CACHE CHROMIUM [SCREENSHOT.png]

FOLDER holds NAME.onnx files that take one image. The browser is driven through its pipe of DevTools. The answer that the page
shows must be that of a request with the same numbers. Exits with 1 at the first difference.
"""

import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
import zlib
from base64 import b64decode

import numpy as np

PATIENCE_S = 60
FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync --disable-default-apps --disable-extensions --remote-debugging-pipe
--force-color-profile=srgb --window-size=1100,1500"""


class Server:
    def __init__(self, neap, folder, cache):
        command = [neap, "serve", folder, "--cache-dir", cache, "--exact", "--memory-budget", "96MiB"]
        self.process = subprocess.Popen(command + ["--http", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True)
        said = ""
        for line in self.process.stderr:
            said += line
            if found := re.search(r"on (http://\S+)", line):
                self.url = found.group(1)
                return
        sys.exit("the server ended: " + said)

    def end(self):
        self.process.terminate()
        assert self.process.wait(timeout=60) == 0


class Browser:
    """One page of a browser with a profile of its own."""

    def __init__(self, chromium, profile):
        here_in, its_out = os.pipe()
        its_in, here_out = os.pipe()
        # The browser reads commands from descriptor 3 and writes to 4.
        shell = f'exec "$0" "$@" 3<&{its_in} 4>&{its_out}'
        command = ["sh", "-c", shell, chromium, *FLAGS.split(), f"--user-data-dir={profile}", "about:blank"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, pass_fds=(its_in, its_out), **quiet)
        os.close(its_in)
        os.close(its_out)
        self.reader, self.writer = here_in, here_out
        self.rest, self.number, self.session = b"", 0, None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def send(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.writer, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.rest:
                more = os.read(self.reader, 1 << 20)
                if not more:
                    sys.exit("the browser ended")
                self.rest += more
            text, self.rest = self.rest.split(b"\0", 1)
            told = json.loads(text)
            if told.get("id") == self.number:
                if "error" in told:
                    sys.exit(f"{method}: {told['error']}")
                return told["result"]

    def value(self, script):
        told = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in told:
            sys.exit(f"{script}: {told['exceptionDetails']}")
        return told["result"].get("value")

    def wait(self, what, script):
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            if found := self.value(script):
                return found
            time.sleep(0.1)
        sys.exit(f"the page does not show {what}: " + self.value("document.body.innerText"))

    def choose(self, selector, path):
        root = self.send("DOM.getDocument")["root"]["nodeId"]
        node = self.send("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.send("DOM.setFileInputFiles", nodeId=node, files=[str(path)])

    def end(self):
        os.close(self.writer)
        os.close(self.reader)
        self.process.terminate()
        self.process.wait(timeout=30)


def png(pixels):
    """Bytes of an image, without loss."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def ask(url, name, array):
    """All values of the first output."""
    with urllib.request.urlopen(f"{url}/v2/models/{name}") as answer:
        told = json.load(answer)["inputs"][0]
    given = {"name": told["name"], "datatype": "FP32", "shape": told["shape"], "data": array.reshape(-1).tolist()}
    body = json.dumps({"inputs": [given]}).encode()
    with urllib.request.urlopen(f"{url}/v2/models/{name}/infer", body) as answer:
        return np.array(json.load(answer)["outputs"][0]["data"])


def check_image(browser, url, name, folder):
    rng = np.random.default_rng(3)
    pixels = rng.integers(0, 256, (224, 224, 3), np.uint8)
    path = pathlib.Path(folder) / "image.png"
    path.write_bytes(png(pixels))
    browser.value(f"document.getElementById('model').value = {json.dumps(name)}")
    # These models say nothing of pictures.
    browser.value("document.getElementById('values').value = 'imagenet'")
    browser.choose("#file", path)
    browser.wait("that it can be asked", "!document.getElementById('ask').disabled")
    browser.value("document.getElementById('ask').click()")
    browser.wait("an answer", "document.querySelectorAll('#answer tr').length > 1")
    cells = browser.value("[...document.querySelectorAll('#answer td')].map(cell => cell.textContent)")
    shown = [(int(cells[i]), float(cells[i + 1])) for i in range(1, len(cells), 2)]
    mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    array = ((pixels / 255 - mean) / deviation).astype(np.float32).transpose(2, 0, 1)
    expected = ask(url, name, array)
    order = np.argsort(-expected, kind="stable")[: len(shown)]
    assert [index for index, _ in shown] == order.tolist(), (shown, order, expected[order])
    # The page shows five digits.
    assert np.allclose([value for _, value in shown], expected[order], rtol=1e-4), (shown, expected[order])
    print(f"the page's answer of {name} is that of a request: {shown[0]}")
    return pixels


def check_page(browser, url, names, folder):
    browser.send("Page.enable")
    browser.send("Page.navigate", url=url + "/")
    rows = "[...document.querySelectorAll('#models tr')].map(row => row.cells[0].textContent + ' ' + row.cells[1].textContent)"
    browser.wait("all models", f"document.querySelectorAll('#models tr').length === {len(names)}")
    assert browser.value(rows) == [f"{name} ready" for name in names], browser.value(rows)
    memory = browser.value("document.getElementById('memory').innerText")
    assert "of a budget of 96.0 MiB" in memory and all(name in memory for name in names), memory
    choices = "[...document.getElementById('model').options].map(option => option.value)"
    browser.wait("models that take images", f"document.getElementById('model').options.length === {len(names)}")
    assert browser.value(choices) == names
    check_image(browser, url, names[0], folder)
    bars = "document.querySelectorAll('#histograms .bars > i').length"
    browser.wait("a histogram", bars)
    text = browser.value("document.getElementById('histograms').innerText")
    assert names[0] in text and "2 answers" in text, text
    browser.choose("#file", pathlib.Path(__file__))
    browser.wait("that a program is no image", "document.getElementById('say').textContent.includes('no image')")
    browser.choose("#file", pathlib.Path(folder) / "image.png")
    print("the page shows models, memory and latencies")


def main():
    neap, folder, cache, chromium, *screenshot = sys.argv[1:]
    names = sorted(path.stem for path in pathlib.Path(folder).glob("*.onnx"))
    server = Server(neap, folder, cache)
    try:
        look(server.url, names, chromium, screenshot)
    finally:
        server.end()


def look(url, names, chromium, screenshots):
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as own:
        browser = Browser(chromium, pathlib.Path(own) / "profile")
        try:
            check_page(browser, url, names, own)
            for path in screenshots:
                browser.wait("the image", "document.getElementById('say').textContent === ''")
                picture = browser.send("Page.captureScreenshot", captureBeyondViewport=True)["data"]
                pathlib.Path(path).write_bytes(b64decode(picture))
        finally:
            browser.end()


main()
