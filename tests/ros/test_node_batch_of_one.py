"""Models whose graph has a batch of 1, as policies are exported: a message is the vector within it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ocean_ros.parameters import Input, Output, ParameterError, Settings
from ocean_ros.wiring import wire
from ocean_runtime import OceanModel
from robot import RELIABLE, robot
from small_models import batch_of_one
from std_msgs.msg import Float32MultiArray


def test_a_batch_of_one_is_stepped_by_messages_of_its_vector(tmp_path: Path) -> None:
    path = batch_of_one(tmp_path)
    parameters = {"autostart": True, "model_path": path, "input__input__qos": "every", "ocean_every": 1}
    stream = OceanModel.load(path).stream()
    with robot(tmp_path, **parameters) as (client, _):
        sender = client.publisher(Float32MultiArray, "/ocean/input", RELIABLE)
        outputs = client.collect(Float32MultiArray, "/ocean/output")
        for i in range(5):
            x = [1.0, -2.0, 0.5 + i]
            sender.publish(Float32MultiArray(data=x))
            client.until(lambda: len(outputs) == i + 1, "output")  # noqa: B023
            assert np.array_equal(outputs[i].data, stream.step(x)[0])
        assert client.values("ocean")["steps"] == "5"


@pytest.mark.parametrize("side", ["inputs", "outputs"])
@pytest.mark.parametrize("shape", [(2, 3), (1, 2, 3), (3, "B")])
def test_what_is_no_vector_is_refused(side: str, shape: tuple[int | str, ...], tmp_path: Path) -> None:
    contract = OceanModel.load(batch_of_one(tmp_path)).contract
    (tensor,) = getattr(contract, side)
    changed = replace(contract, **{side: (replace(tensor, shape=shape, elements=()),)})
    with pytest.raises(ParameterError, match=rf"{tensor.name}.*no vector"):
        wire(changed, Settings(), {"in": Input()}, {"out": Output()})
