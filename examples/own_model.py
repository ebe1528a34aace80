"""Ocean State in a model of one's own: a camera and a gyroscope follow a target, also while the camera sees nothing.

A camera on a turning head sees a bright spot in 16 by 6 pixels, and in a third of the time nothing: the light is off
for half a second. A gyroscope says how fast the head turns, in noise. Two heads read one memory: where the
target is, in rad from where the camera looks, and whether it goes left or right in the world.

The model is PyTorch's and ours: a CNN, `Ocean` in place of an `nn.GRU`, two linear heads, a loop of one's own. It is
exported to one file, and the file runs without PyTorch.

    pip install '.[cpu,train,export]'
    python examples/own_model.py                a minute on one core
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from ocean_export import Element, State, export
from ocean_export import Tensor as Described
from ocean_runtime import OceanModel
from ocean_train import Ocean, learning_rate, make_optimizer
from torch import Tensor, nn

RATE_HZ = 20
HEIGHT, PIXELS = 6, 16
VIEW_RAD = 1.0
"""From the middle of the picture to its edge."""
DARK_STEPS = RATE_HZ // 2


class Tracker(nn.Module):
    """image (..., 1, 6, 16) uint8, gyro (..., 1) rad/s -> bearing (..., 1) rad, direction (..., 2) logits."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.camera = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1),
            nn.ELU(),
            nn.Flatten(),
            nn.Linear(8 * 3 * 8, 32),
            nn.ELU(),
        )
        self.ocean = Ocean(32 + 1, width, max_time_constant=32)
        self.bearing, self.direction = nn.Linear(width, 1), nn.Linear(width, 2)

    def encode(self, image: Tensor, gyro: Tensor) -> Tensor:
        pixels = image.to(gyro.dtype) / 255
        return torch.cat([self.camera(pixels.flatten(0, -4)).unflatten(0, image.shape[:-3]), gyro], -1)

    def forward(self, image: Tensor, gyro: Tensor, state: Tensor | None = None) -> Any:
        """A window: image (B, T, 1, 6, 16), gyro (B, T, 1)."""
        output, state = self.ocean(self.encode(image, gyro), state)
        return self.bearing(output), self.direction(output), state

    def step(self, image: Tensor, gyro: Tensor, ocean: Tensor) -> Any:
        """One step, which is what is exported."""
        output, ocean = self.ocean.step(self.encode(image, gyro), ocean)
        return self.bearing(output), self.direction(output), ocean


def scene(rows: int, steps: int, random: torch.Generator) -> dict[str, Tensor]:
    """Episodes of targets that swing in the world, seen from a head that turns: (B, T, ...) each."""

    def drawn(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(rows, 1, generator=random)

    t = torch.arange(steps) / RATE_HZ
    pace, swing = drawn(0.5, 1.5), drawn(0.2, 0.5)
    angle = pace * t + drawn(0, 2 * math.pi)
    rate, phase = drawn(1, 2), drawn(0, 2 * math.pi)
    bearing = swing * angle.sin() - 0.3 * (rate * t + phase).sin()  # of the target, less that of the head
    gyro = 0.3 * rate * (rate * t + phase).cos() + 0.1 * torch.randn(rows, steps, generator=random)
    dark = torch.rand(rows, steps // DARK_STEPS + 1, generator=random).lt(1 / 3)
    dark = dark.repeat_interleave(DARK_STEPS, 1)[:, :steps]
    dark[:, 0] = False
    column = torch.linspace(-VIEW_RAD, VIEW_RAD, PIXELS)
    spot = torch.exp(-(((column - bearing[..., None]) / 0.12) ** 2))[..., None, :] * (~dark)[..., None, None]
    noise = torch.rand(rows, steps, HEIGHT, PIXELS, generator=random)
    image = (200 * spot + 40 * noise).to(torch.uint8)[:, :, None]
    right = (angle.cos() > 0).long()
    return {
        "image": image,
        "gyro": gyro[..., None],
        "bearing": bearing[..., None],
        "right": right,
        "dark": dark,
    }


def train(model: Tracker, steps: int, rows: int, random: torch.Generator) -> None:
    """Windows of 40 steps; the memory goes on from window to window, and ends with its episode of 120."""
    optimizer, state, data, at = make_optimizer(model), None, scene(rows, 120, random), 0
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, peak=4e-3)
        if at == 120:
            data, at, state = scene(rows, 120, random), 0, None
        window = {name: values[:, at : at + 40] for name, values in data.items()}
        at += 40
        bearing, direction, state = model(window["image"], window["gyro"], state)
        state = state.detach()  # gradients end here, the memory goes on
        error = (bearing - window["bearing"]).square().mean()
        wrong = F.cross_entropy(direction.flatten(0, 1), window["right"].flatten())
        optimizer.zero_grad()
        (10 * error + wrong).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 100 == 0 or step + 1 == steps:
            print(
                f"step {step + 1:5}   bearing {error.sqrt():.3f} rad, direction {wrong:.3f} nats", flush=True
            )


def judge(model: Tracker, random: torch.Generator) -> dict[str, Tensor]:
    """New episodes: in the dark, against what was seen last."""
    data = scene(32, 120, random)
    with torch.no_grad():
        bearing, direction, _ = model(data["image"], data["gyro"])
    dark = data["dark"]
    seen = torch.where(dark, 0, torch.arange(dark.shape[1])).cummax(1).values
    last = data["bearing"].gather(1, seen[..., None])
    rms = [(a - data["bearing"])[dark].square().mean().sqrt().item() for a in (bearing, last)]
    correct = (direction.argmax(-1) == data["right"]).float().mean().item()
    print(f"in the dark: bearing within {rms[0]:.3f} rad (where it was seen last: {rms[1]:.3f})")
    print(f"direction: {correct:.0%} correct")
    return data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--steps", type=int, default=600, help="updates of the weights")
    parser.add_argument("--rows", type=int, default=32, help="episodes side by side")
    parser.add_argument("--verify", type=int, default=1000, help="steps of the verification")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random = torch.Generator().manual_seed(0)
    model = Tracker()
    train(model, args.steps, args.rows, random)
    data = judge(model.eval(), random)

    path = args.folder / "tracker.onnx"
    export(
        model,
        path,
        inputs=[
            Described("image", "uint8", ("B", 1, HEIGHT, PIXELS), "brightness of the camera's pixels"),
            Described("gyro", "float32", ("B", 1), elements=(Element("angular_velocity.z", "rad/s"),)),
        ],
        outputs=[
            Described("bearing", "float32", ("B", 1), elements=(Element("bearing", "rad"),)),
            Described("direction", "float32", ("B", 2), "logits", (Element("left"), Element("right"))),
        ],
        states=[State("ocean", "ocean_next", "float32", ("B", model.ocean.width))],
        rate_hz=RATE_HZ,
        examples={"image": data["image"][0].numpy(), "gyro": data["gyro"][0].numpy()},
        steps=args.verify,
        log=print,
    )

    stream = OceanModel.load(path).stream()  # from here on PyTorch is not needed
    with torch.no_grad():
        wanted, _, _ = model(data["image"][:1], data["gyro"][:1])
    largest = 0.0
    for t in range(wanted.shape[1]):
        found = stream.step_all({"image": data["image"][0, t].numpy(), "gyro": data["gyro"][0, t].numpy()})
        largest = max(largest, abs(float(found["bearing"][0]) - wanted[0, t].item()))
    print(f"the file's bearing over {wanted.shape[1]} steps: within {largest:.1e} rad of the model's")


if __name__ == "__main__":
    main()
