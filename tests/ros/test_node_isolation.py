"""Two models, and two streams of one model, on one domain: each has its own past."""

from pathlib import Path

import numpy as np
from leaky import leaky
from ocean_runtime import OceanModel
from robot import Client, OceanProcess, new_domain
from std_msgs.msg import Float32MultiArray


def test_nodes_do_not_mix(tmp_path: Path) -> None:
    models = {name: OceanModel.load(leaky(tmp_path / f"{name}.onnx", seed=i)) for i, name in enumerate("ab")}
    used = {"one": "a", "two": "b", "three": "a"}  # node: model
    domain = new_domain()
    client = Client(domain)
    nodes = [
        OceanProcess(
            tmp_path,
            domain,
            name,
            autostart=True,
            model_path=models[model].path,
            input__input__qos="every",
            state_path=tmp_path / name,
        )
        for name, model in used.items()
    ]
    try:
        senders = {name: client.publisher(Float32MultiArray, f"/{name}/input", node=name) for name in used}
        outputs = {name: client.collect(Float32MultiArray, f"/{name}/output", node=name) for name in used}
        generator = np.random.default_rng(0)
        sent = {name: generator.normal(size=(200, 3)).astype(np.float32) for name in used}
        for i in range(200):
            for name in used:
                senders[name].publish(Float32MultiArray(data=sent[name][i].tolist()))
            if i % 20 == 0:
                client.spin(0.001)
        client.until(lambda: all(len(messages) == 200 for messages in outputs.values()), "all outputs")
        for name, model in used.items():
            expected = models[model].stream().run(sent[name])
            assert np.array_equal([m.data for m in outputs[name]], expected), name
    finally:
        client.close()
        for node in nodes:
            node.kill()
            print(node.output)
