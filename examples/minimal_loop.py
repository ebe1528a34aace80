"""The whole loop with numpy and onnxruntime alone: python minimal_loop.py model.onnx "ROMEO:" 200 (a text model)"""

import json
import sys

import numpy as np
import onnxruntime

if len(sys.argv) != 4:
    sys.exit(__doc__)
path, prompt, count = sys.argv[1], sys.argv[2] or "\n", int(sys.argv[3])
session = onnxruntime.InferenceSession(path)
contract = json.loads(session.get_modelmeta().custom_metadata_map["ocean_state"])
if contract["kind"] != "tokens":
    sys.exit("this loop is for text; ocean-run takes rows of sensors")
tokens = contract["tokenizer"]["tokens"]  # the text of each id; id 0 is the unknown token
ids = {text: i for i, text in enumerate(tokens)}
state = contract["states"][0]
ocean = np.full([1, state["shape"][1]], state["initial"], np.float32)  # all that is ever remembered
random = np.random.default_rng(0)

pending = [ids.get(character, 0) for character in prompt]
for _ in range(len(pending) + count):
    token = pending.pop(0)
    logits, ocean = session.run(
        ["logits", state["output"]], {"token": np.array([token]), state["input"]: ocean}
    )
    if not pending:  # the prompt is read: the next token is drawn from what the model expects
        pending.append(int((logits[0, 1:] / 0.8 + random.gumbel(size=len(tokens) - 1)).argmax()) + 1)
        print(tokens[pending[0]], end="", flush=True)
