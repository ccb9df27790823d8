"""The drill's page in a real browser: every plot is there and can be read, on light and on dark, and nothing is fetched.

The browser is driven over its DevTools protocol, so the page is looked at as it is. Each check is shown to fail on a
page that was broken on purpose.
"""

import asyncio
import base64
import contextlib
import io
import itertools
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from PIL import Image

from scaler.drill.report import read_report, write_report

RECORDED = Path(__file__).with_name("recorded-report.json")
"""The report.json of a real `smoke` drill, both arms."""
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
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
    "--remote-debugging-port=0",
)
TITLES = ["Over time", "TTFT per stage and model", "Promotions of the warm arm, step by step"]

if CHROMIUM is None and not os.environ.get("CI"):
    pytest.skip("chromium is not installed; the page's pictures can't be looked at", allow_module_level=True)

MEASURE = """
(() => {
  const rect = (element) => {
    const box = element.getBoundingClientRect();
    return [box.left + scrollX, box.top + scrollY, box.width, box.height];
  };
  return JSON.stringify({
    background: getComputedStyle(document.body).backgroundColor,
    width: document.documentElement.clientWidth,
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    plots: [...document.querySelectorAll("figure")].map((figure) => ({
      title: figure.querySelector("h2").textContent,
      rect: rect(figure.querySelector("svg")),
      axes: [...figure.querySelectorAll('g[id^="axes_"]')].map(rect),
      texts: [...figure.querySelectorAll("svg text")].map((text) => ({
        text: text.textContent, rect: rect(text), fill: getComputedStyle(text).fill,
      })),
    })),
  });
})()
"""


# ------------------------------------------------------------------ the browser


@pytest.fixture(scope="module")
def devtools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run the browser; give the address of its DevTools."""
    assert CHROMIUM is not None, "chromium must be installed where CI is set"
    folder = tmp_path_factory.mktemp("browser")
    port = folder / "DevToolsActivePort"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [CHROMIUM, *FLAGS, f"--user-data-dir={folder}", "about:blank"],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 20
        while not (port.exists() and port.read_text().count("\n")):
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, (folder / "log").read_text()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
        yield f"http://127.0.0.1:{port.read_text().split()[0]}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(10)


class Tab:
    """One page of the browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.events: list[dict[str, Any]] = []

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            message = await self._socket.receive_json()
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            self.events.append(message)

    async def until(self, method: str) -> None:
        while not any(event.get("method") == method for event in self.events):
            self.events.append(await self._socket.receive_json())

    def of(self, method: str) -> list[dict[str, Any]]:
        return [event["params"] for event in self.events if event.get("method") == method]


@contextlib.asynccontextmanager
async def opened(devtools: str) -> AsyncIterator[Tab]:
    async with asyncio.timeout(20), aiohttp.ClientSession() as session:
        async with session.put(f"{devtools}/json/new?about:blank") as response:
            target = await response.json()
        async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
            yield Tab(socket)
        async with session.get(f"{devtools}/json/close/{target['id']}"):
            pass


# ------------------------------------------------------------------ what it shows


@dataclass
class Seen:
    """A page as it was shown.

    Attributes:
        facts: what `MEASURE` found.
        pictures: per plot, its pixels: height, width, red-green-blue.
        fetched: addresses that the page asked for, besides itself.
        complaints: errors and warnings on the console.
    """

    facts: dict[str, Any]
    pictures: list[np.ndarray]
    fetched: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


async def look(devtools: str, page: Path, scheme: str, width: int = 1280) -> Seen:
    """Open a page in a light or dark browser of so many pixels."""
    async with opened(devtools) as tab:
        for domain in ("Page", "Network", "Runtime", "Log"):
            await tab.call(f"{domain}.enable")
        await tab.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )
        await tab.call(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
        )
        tab.events.clear()
        await tab.call("Page.navigate", url=page.as_uri())
        await tab.until("Page.loadEventFired")
        answer = await tab.call("Runtime.evaluate", expression=MEASURE, returnByValue=True)
        facts = json.loads(answer["result"]["value"])
        pictures = [await shot(tab, plot["rect"]) for plot in facts["plots"]]
        fetched = [event["request"]["url"] for event in tab.of("Network.requestWillBeSent")]
        complaints = [str(event["entry"]["text"]) for event in tab.of("Log.entryAdded")]
        complaints += [event["exceptionDetails"]["text"] for event in tab.of("Runtime.exceptionThrown")]
        complaints += [str(event["args"]) for event in tab.of("Runtime.consoleAPICalled")]
        own = page.as_uri()
        return Seen(facts, pictures, [url for url in fetched if url != own], complaints)


async def shot(tab: Tab, rect: list[float]) -> np.ndarray:
    x, y, width, height = rect
    if width < 1 or height < 1:
        return np.zeros((0, 0, 3), dtype=np.int16)
    clip = {"x": x, "y": y, "width": width, "height": height, "scale": 1}
    answer = await tab.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
    image = Image.open(io.BytesIO(base64.b64decode(answer["data"]))).convert("RGB")
    return np.asarray(image, dtype=np.int16)


# ------------------------------------------------------------------ what is wrong with it


def faults(seen: Seen, scheme: str) -> list[str]:
    """Say what is wrong with a page, in words; nothing if it is as it should be."""
    found = [f"fetched: {url}" for url in seen.fetched]
    found += [f"console: {text}" for text in seen.complaints]
    if seen.facts["overflow"] > 0:
        found.append(f"the page is {seen.facts['overflow']} px too wide")
    titles = [plot["title"] for plot in seen.facts["plots"]]
    if titles != TITLES:
        found.append(f"plots: {titles}")
    paper = colour(seen.facts["background"])
    if (luminance(paper) > 0.5) != (scheme == "light"):
        found.append(f"the page is {paper} in {scheme} mode")
    for plot, pixels in zip(seen.facts["plots"], seen.pictures, strict=True):
        found += [f"{plot['title']}: {fault}" for fault in plot_faults(plot, pixels, paper)]
    return found


def plot_faults(plot: dict[str, Any], pixels: np.ndarray, paper: np.ndarray) -> Iterator[str]:
    left, top, width, height = plot["rect"]
    if width < 600 or height < 80:
        yield f"not visible ({width:.0f} × {height:.0f} px)"
        return
    if not plot["axes"]:
        yield "no axes"
    for number, (x, y, across, down) in enumerate(plot["axes"]):
        part = pixels[
            max(0, round(y - top)) : round(y - top + down), max(0, round(x - left)) : round(x - left + across)
        ]
        count = coloured(part)
        if count < 40:
            yield f"axes {number + 1} show no data ({count} coloured pixels)"
    ink = share(np.abs(brightness(pixels) - brightness(paper)) > 100)
    if ink < 0.003:
        yield f"no ink stands out from the paper ({ink:.2%} of the pixels)"
    yield from text_faults(plot, paper)


def text_faults(plot: dict[str, Any], paper: np.ndarray) -> Iterator[str]:
    left, top, width, height = plot["rect"]
    if len(plot["texts"]) < 10:
        yield f"only {len(plot['texts'])} texts"
    for one in plot["texts"]:
        x, y, across, down = one["rect"]
        if (
            not across
            or x < left - 1
            or y < top - 1
            or x + across > left + width + 1
            or y + down > top + height + 1
        ):
            yield f"text {one['text']!r} is cut off"
        fill = colour(one["fill"])
        # white stands on coloured bars alone
        if fill.min() < 255 and contrast(fill, paper) < 4.5:
            yield f"text {one['text']!r} can't be read: {one['fill']} on {paper}"


def colour(css: str) -> np.ndarray:
    """Read `rgb(1, 2, 3)`."""
    return np.array([float(part) for part in css.partition("(")[2].rstrip(")").split(",")[:3]])


def brightness(pixels: np.ndarray) -> np.ndarray:
    return pixels @ np.array([0.2126, 0.7152, 0.0722])


def coloured(pixels: np.ndarray) -> int:
    """Pixels that are neither grey nor nearly so: the marks of data, not grid, text or paper."""
    return int(((pixels.max(axis=2) - pixels.min(axis=2)) > 60).sum()) if pixels.size else 0


def share(mask: np.ndarray) -> float:
    return float(mask.mean())


def luminance(rgb: np.ndarray) -> float:
    """Relative luminance, as in the Web Content Accessibility Guidelines."""
    linear = np.where(rgb / 255 <= 0.04045, rgb / 255 / 12.92, ((rgb / 255 + 0.055) / 1.055) ** 2.4)
    return float(linear @ np.array([0.2126, 0.7152, 0.0722]))


def contrast(one: np.ndarray, other: np.ndarray) -> float:
    """Contrast ratio, as there: 4.5 is asked for of text."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


# ------------------------------------------------------------------ tests


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the recorded drill, drawn anew."""
    return write_report(read_report(RECORDED), tmp_path_factory.mktemp("report")).html


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_plot_can_be_read_and_nothing_is_fetched(devtools: str, page: Path, scheme: str) -> None:
    assert faults(await look(devtools, page, scheme), scheme) == []


async def test_on_a_telephone_plots_scroll_and_stay_large_enough_to_be_read(
    devtools: str, page: Path
) -> None:
    seen = await look(devtools, page, "light", width=420)
    assert seen.facts["overflow"] == 0, "the page itself doesn't scroll sideways"
    for plot in seen.facts["plots"]:
        assert plot["rect"][2] >= 700, plot["title"]
        assert min(text["rect"][3] for text in plot["texts"] if text["text"].strip()) >= 9, plot["title"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_spare_seat_is_told_from_one_that_starts(devtools: str, page: Path, scheme: str) -> None:
    seen = await look(devtools, page, scheme)
    spare, starting = (brightness(swatch(seen, name)) for name in ("spare", "starting"))
    assert spare.std() < 5, "plain"
    assert starting.std() > 20, "hatched"
    assert abs(spare.mean() - starting.mean()) > 20


def swatch(seen: Seen, name: str) -> np.ndarray:
    """What stands beside a name in the legend of the first plot."""
    plot, pixels = seen.facts["plots"][0], seen.pictures[0]
    (x, y, _, height), *_ = (text["rect"] for text in plot["texts"] if text["text"] == name)
    left, middle = round(x - plot["rect"][0]), round(y - plot["rect"][1] + height / 2)
    return pixels[middle - 2 : middle + 2, left - 30 : left - 15]


def without_data(text: str) -> str:
    """Keep axes and texts and drop what is drawn in a model's colour."""
    for shade in ("#2f86c9", "#e07b1a"):
        text = text.replace(shade, "#8d949c")
    return text


MUTANTS: dict[str, tuple[str, Callable[[str], str], str]] = {
    "hidden": ("light", lambda text: text.replace("<svg ", "<svg style='display: none' ", 1), "not visible"),
    "no-data": ("light", without_data, "show no data"),
    "missing": (
        "light",
        lambda text: text.replace("<figure>", "<div>", 1).replace("</figure>", "</div>", 1),
        "plots: ",
    ),
    "transparent": (
        "light",
        lambda text: text.replace("<svg ", "<svg style='opacity: 0' ", 1),
        "no ink stands out",
    ),
    "black-on-dark": ("dark", lambda text: text.replace("currentColor", "#000000"), "can't be read"),
    "always-light": (
        "dark",
        lambda text: text.replace("prefers-color-scheme: dark", "prefers-color-scheme: none"),
        "in dark mode",
    ),
    "too-wide": (
        "light",
        lambda text: text.replace("<body>", "<body style='min-width: 2000px'>"),
        "too wide",
    ),
    "foreign-image": (
        "light",
        lambda text: text.replace("</body>", "<img src='http://127.0.0.1:9/pixel.png'></body>"),
        "fetched: http://127.0.0.1:9/pixel.png",
    ),
    "script-error": (
        "light",
        lambda text: text.replace("</body>", "<script>nothing.here()</script></body>"),
        "console: Uncaught",
    ),
}


def broken_page(page: Path, folder: Path, mutate: Callable[[str], str]) -> Path:
    text = page.read_text("utf-8")
    assert mutate(text) != text
    broken = folder / "broken.html"
    broken.write_text(mutate(text), "utf-8")
    return broken


@pytest.mark.parametrize("name", MUTANTS)
@pytest.mark.long
async def test_a_broken_page_is_noticed(devtools: str, page: Path, tmp_path: Path, name: str) -> None:
    scheme, mutate, expected = MUTANTS[name]
    broken = broken_page(page, tmp_path, mutate)
    found = faults(await look(devtools, broken, scheme), scheme)
    assert any(expected in fault for fault in found), found
