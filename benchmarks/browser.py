"""Steps a second of one model: in Chromium, as the page in web/ runs it, and by the runtime, on this machine.

    python benchmarks/browser.py [MODEL.onnx]

Needs `make web`, Playwright and Chromium. The two take turns, so that other work on the machine meets both.
"""

from __future__ import annotations

import functools
import http.server
import shutil
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from ocean_runtime import OceanModel
from playwright.sync_api import sync_playwright

WEB = Path(__file__).parent.parent / "web"
STEPS, TURNS = 3000, 5


def main() -> int:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else WEB / "demo.onnx"
    stream = OceanModel.load(path).stream()
    entry = next(t for t in stream.model.contract.inputs if t.constant is None)
    x: Any = 1 if stream.model.contract.kind == "tokens" else np.zeros(entry.vector_size or 1, np.float32)
    handler = functools.partial(_Quiet, directory=WEB)
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
        sync_playwright() as playwright,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        chromium = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{server.server_port}/style.css")
        page.evaluate(
            """async (file) => {
              const { Client } = await import('/js/client.js');
              globalThis.client = new Client();
              await client.call('load', { bytes: Uint8Array.from(file), name: 'model' });
            }""",
            list(path.read_bytes()),
        )
        rates: dict[str, list[float]] = {"browser": [], "python": []}
        for _ in range(TURNS):
            rates["browser"].append(
                page.evaluate("(steps) => client.call('measure', { steps })", STEPS),
            )
            start = time.perf_counter()
            for _ in range(STEPS):
                stream.step(x)
            rates["python"].append(STEPS / (time.perf_counter() - start))
        print(f"{path.name}, {STEPS:,} steps, median of {TURNS} turns; {browser.version}")
        for name, found in rates.items():
            print(f"{name:8s} {statistics.median(found):8,.0f} steps a second")
        print(
            f"python / browser {statistics.median(rates['python']) / statistics.median(rates['browser']):.1f}"
        )
        browser.close()
        server.shutdown()
    return 0


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


if __name__ == "__main__":
    sys.exit(main())
