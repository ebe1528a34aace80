"""The page as a person uses it: typed into, pressed and dropped on, in a browser."""

from __future__ import annotations

import base64
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ocean_export.contract import attach
from ocean_export.graph import step_graph
from ocean_runtime import Contract, OceanModel
from ocean_runtime.contract import State, Tensor
from ocean_runtime.text import generate, read_text
from ocean_runtime.tokenizer import Tokenizer
from ocean_train.model import OceanConfig, OceanTransformer

pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install '.[dev]'")
from playwright.sync_api import Page, expect

Ask = Callable[..., Any]
OpenPage = Callable[..., Page]
Run = Callable[..., subprocess.CompletedProcess[bytes]]

DEMO = Path(__file__).parents[2] / "web" / "demo.onnx"
READ = """
ROMEO:
But, soft! what light through yonder window breaks?
It is the east, and Juliet is the sun.
Arise, fair sun, and kill the envious moon,
Who is already sick and pale with grief,
That thou her maid art far more fair than she:
Be not her maid, since she is envious; naïve…
Her vestal livery is but sick.
"""


@pytest.fixture(scope="module")
def demo() -> OceanModel:
    return OceanModel.load(DEMO)


def type_in(page: Page, text: str) -> None:
    page.locator("#typed").press_sequentially(text)
    expect(page.locator("#typed")).to_have_value("")


def write(page: Page, count: int, seed: int, temperature: str = "0.8") -> str:
    """Let the page's model write, and give what it wrote."""
    before = page.locator("#transcript .written").count()
    page.fill("#count", str(count))
    page.fill("#seed", str(seed))
    page.fill("#temperature", temperature)
    page.click("#write")
    expect(page.locator("#transcript .written")).to_have_count(before + count, timeout=30_000)
    expect(page.locator("#write")).to_be_enabled()
    return "".join(page.locator("#transcript .written").all_text_contents()[before:])


def test_the_demo_models_logits_are_the_runtimes(ask: Ask, demo: OceanModel) -> None:
    text = READ[:300]
    found = ask(
        """async ({file, text}) => {
          const { Client } = await import('/js/client.js');
          const client = new Client();
          const bytes = Uint8Array.from(atob(file), (c) => c.charCodeAt(0));
          await client.call('load', { bytes, name: 'demo.onnx' });
          const logits = [];
          for (const c of text) logits.push(Array.from((await client.call('read', { text: c })).prediction));
          return logits;
        }""",
        {"file": base64.b64encode(DEMO.read_bytes()).decode(), "text": text},
    )
    tokenizer, stream = demo.contract.tokenizer, demo.stream()
    assert tokenizer is not None
    expected = stream.run(tokenizer.encode(text))
    assert len(text) == 300
    error = np.abs(np.array(found) - expected).max()
    print(f"largest difference of a logit over {len(text)} characters: {error:.1e}")
    assert error < 1e-4


def test_each_typed_character_shows_its_surprise(page: Page, demo: OceanModel) -> None:
    text = "ROMEO:\nO, 3é"
    type_in(page, text)
    shown = page.locator("#transcript span:not(.held)")
    expect(shown).to_have_count(len(text))
    expected = list(read_text(demo.stream(), [text.encode()]))
    assert shown.all_text_contents() == [read.text for read in expected]
    page.focus("#transcript")
    page.keyboard.press("Home")
    expect(page.locator("#selected")).to_have_text("token 1, R: nothing was expected yet")
    for i, read in enumerate(expected[1:], start=2):
        page.keyboard.press("ArrowRight")
        assert read.loss is not None
        expect(page.locator("#selected")).to_have_text(re.compile(rf"token {i}, .*: {read.loss:.2f} nats"))
    expect(page.locator("#steps")).to_have_text(str(len(text)))
    expect(page.locator("#guesses li")).to_have_count(6)


def test_a_state_saved_in_the_browser_goes_on_in_python(
    page: Page, demo: OceanModel, tmp_path: Path, command: Run
) -> None:
    type_in(page, "JULIET:\nO Romeo")
    with page.expect_download() as download:
        page.click("#save")
    path = tmp_path / "state.safetensors"
    download.value.save_as(path)
    expect(page.locator("#status")).to_have_text(re.compile(r"Saved step 15 to state\.safetensors"))
    further = write(page, 120, seed=7)
    options = ("--generate", "120", "--seed", "7", "--temperature", "0.8", "--state", path)
    done = command("ocean_runtime.cli", DEMO, "-", *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode() == further
    assert b"going on from step 15" in done.stderr


def test_a_state_saved_in_python_goes_on_in_the_browser(page: Page, demo: OceanModel, tmp_path: Path) -> None:
    stream, path = demo.stream(), tmp_path / "state.safetensors"
    list(read_text(stream, [b"HAMLET:\nTo be"]))
    stream.save(path)
    page.set_input_files("#state-file", path)
    expect(page.locator("#status")).to_have_text("Going on from step 13 in state.safetensors.")
    assert write(page, 120, seed=11) == "".join(generate(stream, 120, seed=11, temperature=0.8))


def test_a_word_that_is_held_back_goes_with_the_state(
    page: Page, tmp_path: Path, tiny_path: Path, command: Run
) -> None:
    """In both directions: a word whose end nobody has seen is read, and not stepped."""
    model = tmp_path / "words.onnx"
    model.write_bytes(word_model())
    page.set_input_files("#model-file", model)
    expect(page.locator("#status")).to_have_text("words.onnx is loaded.")
    type_in(page, "the cat sa")
    expect(page.locator("#transcript .held")).to_have_text(" sa")
    with page.expect_download() as download:
        page.click("#save")
    path = tmp_path / "state.safetensors"
    download.value.save_as(path)
    done = command("ocean_runtime.cli", model, "-", "--state", path, stdin=b"t on")
    assert done.returncode == 0, done.stderr
    assert "' sat'" in done.stdout.decode()
    stream = OceanModel.load(model).stream()
    list(read_text(stream, [b"the dog r"], stopped=lambda: True))
    stream.save(path)
    page.set_input_files("#state-file", path)
    expect(page.locator("#transcript .held")).to_have_text(" r")
    type_in(page, "an ")
    expect(page.locator("#transcript span:not(.held)").last).to_have_text(" ran")


def word_model() -> bytes:
    tokenizer = Tokenizer.train("the cat sat on the dog ran", "word")
    config = OceanConfig(tokenizer.size, tokenizer.size, width=8, layers=1, heads=2)
    return with_contract(OceanTransformer(config, seed=1), tokenizer)


def with_contract(model: OceanTransformer, tokenizer: Tokenizer) -> bytes:
    contract = Contract(
        kind="tokens",
        inputs=(Tensor("token", "int64", ("B",)),),
        outputs=(Tensor("logits", "float32", ("B", tokenizer.size), predicts="token"),),
        states=(State("ocean", "ocean_next", "float32", ("B", model.config.width)),),
        state_id="sha256:of-this-test",
        tokenizer=tokenizer,
    )
    return attach(step_graph(model), contract)


def test_a_model_of_20_megabytes_loads(page: Page, tmp_path: Path) -> None:
    tokenizer = Tokenizer.train("abc")
    torch.manual_seed(0)
    content = with_contract(
        OceanTransformer(OceanConfig(tokenizer.size, tokenizer.size, width=464, layers=2)), tokenizer
    )
    assert len(content) > 20e6
    path = tmp_path / "large.onnx"
    path.write_bytes(content)
    page.set_input_files("#model-file", path)
    expect(page.locator("#status")).to_have_text("large.onnx is loaded.", timeout=60_000)
    type_in(page, "abc")
    expect(page.locator("#steps")).to_have_text("3")


def test_a_broken_file_is_refused_and_the_model_stays(page: Page, demo: OceanModel, tmp_path: Path) -> None:
    whole = DEMO.read_bytes()
    path = tmp_path / "broken.onnx"
    path.write_bytes(whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:])
    with pytest.raises(ValueError) as caught:
        OceanModel.load(path)
    page.set_input_files("#model-file", path)
    expect(page.locator("#status.error")).to_have_text(str(caught.value).replace(str(path), path.name))
    page.set_input_files("#state-file", {"name": "state.safetensors", "mimeType": "", "buffer": b"none"})
    expect(page.locator("#status.error")).to_have_text(re.compile("state.safetensors is no snapshot"))
    page.set_input_files("#model-file", {"name": "model.txt", "mimeType": "", "buffer": b"none"})
    expect(page.locator("#status.error")).to_have_text(re.compile("a table is for a model of sensors"))
    expect(page.locator("#model-name")).to_have_text("demo.onnx")
    type_in(page, "O")
    expect(page.locator("#steps")).to_have_text("1")


def test_files_are_taken_where_they_are_dropped(page: Page, tiny_path: Path) -> None:
    page.evaluate(
        """(file) => {
          const bytes = Uint8Array.from(atob(file), (c) => c.charCodeAt(0));
          const dataTransfer = new DataTransfer();
          dataTransfer.items.add(new File([bytes], 'tiny.onnx'));
          document.body.dispatchEvent(new DragEvent('drop', { dataTransfer, bubbles: true, cancelable: true }));
        }""",
        base64.b64encode(tiny_path.read_bytes()).decode(),
    )
    expect(page.locator("#status")).to_have_text("tiny.onnx is loaded.")
    page.click("summary")
    expect(page.locator("#about")).to_contain_text("two lines of Romeo and Juliet")


def test_a_second_stream_forgets_the_change(page: Page, demo: OceanModel) -> None:
    """The distances are those of two streams of the runtime."""
    text = "ROMEO:\nBut, soft! what light"
    type_in(page, text)
    page.fill("#index", "9")
    page.fill("#replacement", "z")
    page.click("#compare")
    expect(page.locator("#status")).to_have_text("The second stream read z in place of u as token 9.")
    type_in(page, " through")  # both read on
    one, other = demo.stream(), demo.stream()
    whole = text + " through"
    for c, d in zip(whole, whole[:8] + "z" + whole[9:], strict=True):
        list(read_text(one, [c.encode()])), list(read_text(other, [d.encode()]))
    apart = np.linalg.norm(one.ocean - other.ocean) / np.linalg.norm(one.ocean)
    said = page.locator("#apart").inner_text()
    assert float(re.findall(r"now ([\d.e-]+);", said)[0]) == pytest.approx(apart, rel=0.5, abs=1e-6), said
    page.fill("#index", "100")
    page.click("#compare")
    expect(page.locator("#status.error")).to_have_text(
        re.compile("there is no token 100 to change; 36 were read")
    )


def test_reset_begins_anew(page: Page) -> None:
    first = write(page, 60, seed=5)
    page.click("#reset")
    expect(page.locator("#steps")).to_have_text("0")
    expect(page.locator("#transcript span:not(.held)")).to_have_count(0)
    assert write(page, 60, seed=5) == first


def test_it_works_without_a_network_once_it_is_loaded(page: Page, tiny_path: Path) -> None:
    page.context.set_offline(True)
    page.set_input_files("#model-file", tiny_path)
    expect(page.locator("#status")).to_have_text("tiny.onnx is loaded.")
    type_in(page, "ROMEO")
    write(page, 20, seed=0)


def test_the_keyboard_alone_is_enough(page: Page) -> None:
    """Every control can be reached by Tab, shows where it is, and Escape stops what is at work."""
    reached: list[str] = []
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.localName"))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", reached
        if reached[-1] == "compare":
            break
    wanted = {
        "open",
        "demo",
        "reset",
        "save",
        "restore",
        "summary",
        "transcript",
        "typed",
        "example",
        "write",
    }
    assert wanted <= set(reached)
    page.focus("#count")
    page.keyboard.press("ControlOrMeta+A")
    page.keyboard.type("100000")
    page.focus("#write")
    page.keyboard.press("Enter")
    expect(page.locator("#transcript .written").first).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#write")).to_be_enabled()
    assert int(page.locator("#steps").inner_text().replace(",", "")) < 100_000


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_it_fits_the_screen(open_page: OpenPage, width: int) -> None:
    page = open_page(viewport={"width": width, "height": 844})
    page.click("#example")
    expect(page.locator("#example")).to_be_enabled()
    page.click("#compare")
    page.click("summary")
    expect(page.locator("#distance canvas")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_dark_mode_and_less_motion(open_page: OpenPage) -> None:
    page = open_page(color_scheme="dark", reduced_motion="reduce")
    write(page, 50, seed=0)
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert max(map(int, re.findall(r"\d+", ground))) < 64
    # Without motion the strip fills from the left; what is not filled yet is empty.
    drawn = """() => {
      const strip = document.getElementById('strip');
      const copy = new OffscreenCanvas(strip.width, 1).getContext('2d');
      copy.drawImage(strip, 0, 0);
      const { data } = copy.getImageData(0, 0, strip.width, 1);
      return [data[3], data[data.length - 1]];
    }"""
    page.wait_for_timeout(1_000)  # it is drawn twice a second
    assert page.evaluate(drawn) == [255, 0]


def test_a_number_that_is_none_is_said(page: Page) -> None:
    page.fill("#count", "")
    page.click("#write")
    expect(page.locator("#status.error")).to_have_text("tokens is empty; give a number of 1 or more")
    page.fill("#count", "5")
    page.fill("#top-k", "0")
    page.click("#write")
    expect(page.locator("#status.error")).to_have_text("top k is 0; give a number of 1 or more")
