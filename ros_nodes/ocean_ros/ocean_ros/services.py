"""The node's services: ~/reset, ~/save, ~/restore and ~/swap, while it is configured."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ocean_runtime import OceanError, OceanModel
from rclpy.task import Future
from std_srvs.srv import Trigger

from ocean_ros.memory import Memory, load
from ocean_ros.parameters import ParameterError
from ocean_ros.wiring import wire

if TYPE_CHECKING:
    from ocean_ros.node import OceanNode


class Services:
    """Four std_srvs/Trigger services; those that take long wait without holding up the steps."""

    def __init__(self, node: OceanNode, memory: Memory) -> None:
        self._node, self._memory = node, memory
        self._loading = False
        handles = {"reset": self._reset, "save": self._save, "restore": self._restore, "swap": self._swap}
        self._made = [node.create_service(Trigger, f"~/{name}", handle) for name, handle in handles.items()]

    def close(self) -> None:
        """Take the services down."""
        for service in self._made:
            self._node.destroy_service(service)

    def _reset(self, request: Any, response: Any) -> Any:
        self._forget()
        response.success, response.message = True, self._memory.apply("reset")
        self._memory.decided = True
        return response

    def _restore(self, request: Any, response: Any) -> Any:
        try:
            response.message = self._memory.restore()
            response.success = self._memory.decided = True
            self._forget()
        except OceanError as error:
            response.message = str(error)
        return response

    async def _save(self, request: Any, response: Any) -> Any:
        saver = self._node.saver
        if saver is None:
            response.message = "parameter state_path is empty: there is nowhere to save to"
            return response
        snapshot = self._memory.stream.snapshot()
        written: Future[str] = Future()
        saver.submit(snapshot, self._posting(written))
        problem = await written
        response.success = not problem
        response.message = problem or f"saved step {snapshot.steps:,} to {saver.path}"
        return response

    async def _swap(self, request: Any, response: Any) -> Any:
        """The file is read by a thread of its own, while steps go on; the swap itself is between two steps."""
        path = self._node.get_parameter("model_path").value
        if self._loading:
            response.message = "another swap is still loading its model"
            return response
        self._loading = True
        loaded: Future[Any] = Future()
        post = self._posting(loaded)

        def read() -> None:
            try:
                post(load(path))
            except Exception as error:
                post(error)

        threading.Thread(target=read, name="ocean_swap", daemon=True).start()
        found = await loaded
        self._loading = False
        try:
            if not isinstance(found, OceanModel):
                raise found if isinstance(found, OceanError) else OceanError(f"{path}: {found}")
            response.message = self._take(found)
            response.success = True
        except (OceanError, ParameterError) as error:
            response.message = f"the node goes on with its model: {error}"
        self._node.get_logger().info(f"swap to {path}: {response.message}")
        return response

    def _take(self, model: OceanModel) -> str:
        node = self._node
        if node.memory is not self._memory or node.stepper is None:
            raise OceanError("the node was cleaned up meanwhile")
        wiring, now = wire(model.contract, node.settings, node.inputs, node.outputs), node.stepper.wiring
        if (wiring.text, wiring.size) != (now.text, now.size):
            raise OceanError("the new model does not fit the topics; deactivate, clean up and configure")
        self._forget()
        said = self._memory.swap(model)
        node.stepper.rewire(wiring)
        node.settings = dataclasses.replace(node.settings, model_path=str(model.path))
        return said

    def _forget(self) -> None:
        """What is not yet read or said belongs to the past that ends here."""
        if self._node.stepper is not None and self._node.stepper.talk is not None:
            self._node.stepper.talk.forget()

    def _posting(self, future: Future[Any]) -> Callable[[Any], None]:
        """What hands a result from another thread to the executor's, where the service waits for it."""
        executor = self._node.executor

        def post(result: Any) -> None:
            if executor is not None:
                executor.create_task(future.set_result, result)

        return post
