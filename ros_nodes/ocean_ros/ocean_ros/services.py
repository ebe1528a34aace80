"""The node's services: ~/reset, ~/save, ~/restore and ~/swap.

They exist as long as the node does. A service that is destroyed while one of its calls is still being answered
crashes the process (rclpy 9.1), and a call that arrives at that moment gets no answer. Without a configuration
they answer that there is none.
"""

from __future__ import annotations

import dataclasses
import threading
import traceback
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ocean_runtime import OceanError, OceanModel
from rclpy.task import Future
from std_srvs.srv import Trigger

from ocean_ros.memory import Memory, load
from ocean_ros.parameters import ParameterError
from ocean_ros.wiring import wire

if TYPE_CHECKING:
    from ocean_ros.node import OceanNode

ENDING = "the node is shutting down"


class Services:
    """Four std_srvs/Trigger services; those that take long wait without delaying the steps."""

    def __init__(self, node: OceanNode) -> None:
        self._node = node
        self._loading = False
        self._waiting: set[Future[Any]] = set()
        for name, handle in (("reset", self._reset), ("restore", self._restore)):
            node.create_service(Trigger, f"~/{name}", self._answering(name, handle))
        for name, wait in (("save", self._save), ("swap", self._swap)):
            node.create_service(Trigger, f"~/{name}", self._waiting_for(name, wait))

    @property
    def pending(self) -> int:
        """Calls that have not been answered yet."""
        return len(self._waiting)

    def refuse(self) -> None:
        """Answer all pending calls now, since the process ends. The executor then needs some turns to send it."""
        for future in self._waiting:
            if not future.done():
                future.set_result(OceanError(ENDING))

    def _answering(self, name: str, act: Callable[[Memory], str]) -> Callable[[Any, Any], Any]:
        """A service that is answered at once: `act` does it, and its sentence is the message."""

        def handle(request: Any, response: Any) -> Any:
            try:
                response.message, response.success = act(self._memory()), True
            except OceanError as error:
                response.message = str(error)
            self._log(name, response)
            return response

        return handle

    def _reset(self, memory: Memory) -> str:
        self._forget()
        memory.decided = True
        return memory.apply("reset")

    def _restore(self, memory: Memory) -> str:
        message = memory.restore()
        memory.decided = True
        self._forget()
        return message

    def _waiting_for(self, name: str, act: Callable[[], Awaitable[str]]) -> Callable[[Any, Any], Any]:
        """A service that is answered later. No error may leave it: in a task it crashes rclpy 9.1 (issue 1641)."""

        async def handle(request: Any, response: Any) -> Any:
            try:
                response.message, response.success = await act(), True
            except (OceanError, ParameterError) as error:
                response.message = str(error)
            except Exception:
                self._node.get_logger().error(f"{name} failed:\n{traceback.format_exc()}")
                response.message = "an error in the node; its log has the traceback"
            self._log(name, response)
            return response

        return handle

    async def _save(self) -> str:
        """The answer comes once the state is on the disk, or could not be written."""
        memory, saver = self._memory(), self._node.saver
        if saver is None:
            raise OceanError("parameter state_path is empty, so there is no file to save to")
        if not memory.decided:
            raise OceanError(
                f"the node has not restored its state yet, so a save would replace {saver.path} with the initial "
                "state; activate the node first, or call ~/restore or ~/reset"
            )
        snapshot = memory.stream.snapshot()
        written: Future[Any] = Future()
        saver.submit(snapshot, self._posting(written))
        problem = await self._result(written)
        if problem:
            raise OceanError(str(problem))
        return f"saved step {snapshot.steps:,} to {saver.path}"

    async def _swap(self) -> str:
        """The file is read by a thread of its own, while steps go on; the swap itself is between two steps."""
        path = self._node.get_parameter("model_path").value
        try:
            memory = self._memory()
            if self._loading:
                raise OceanError("another swap is still loading its model; call it again later")
            found = await self._result(self._load(path))
            if not isinstance(found, OceanModel):
                raise found if isinstance(found, OceanError) else OceanError(f"{path}: {found}")
            return f"{self._take(memory, found)} ({path})"
        except (OceanError, ParameterError) as error:
            raise OceanError(f"the node keeps its model: {error}") from None

    def _load(self, path: str) -> Future[Any]:
        """The model, or the exception that says why there is none."""
        loaded: Future[Any] = Future()
        post = self._posting(loaded)
        self._loading = True

        def read() -> None:
            found: Any = None
            try:
                found = load(path)
            except Exception as error:
                found = error
            self._loading = False
            post(found)

        threading.Thread(target=read, name="ocean_swap", daemon=True).start()
        return loaded

    def _take(self, memory: Memory, model: OceanModel) -> str:
        node = self._node
        if node.memory is not memory or node.stepper is None:
            raise OceanError("the node was cleaned up meanwhile; configure it, which loads model_path")
        wiring, now = wire(model.contract, node.settings, node.inputs, node.outputs), node.stepper.wiring
        if (wiring.text, wiring.size) != (now.text, now.size):
            raise OceanError("the new model does not fit the topics; deactivate, clean up and configure")
        self._forget()
        message = memory.swap(model)
        node.stepper.rewire(wiring)
        node.settings = dataclasses.replace(node.settings, model_path=str(model.path))
        return message

    def _memory(self) -> Memory:
        """The node's memory. Raises OceanError where there is none."""
        if self._node.memory is None:
            raise OceanError("the node is not configured, so it has no state; configure it first")
        return self._node.memory

    def _forget(self) -> None:
        """Drop text that is not yet read or written: it belongs to the state that is replaced."""
        if self._node.stepper is not None and self._node.stepper.talk is not None:
            self._node.stepper.talk.forget()

    def _log(self, name: str, response: Any) -> None:
        if response.success:
            self._node.get_logger().info(f"{name}: {response.message}")
        else:  # a line of its own: rclpy refuses two levels on one line of the program
            self._node.get_logger().error(f"{name}: {response.message}")

    async def _result(self, future: Future[Any]) -> Any:
        """Wait for it; `refuse` may answer in its place."""
        self._waiting.add(future)
        try:
            return await future
        finally:
            self._waiting.discard(future)

    def _posting(self, future: Future[Any]) -> Callable[[Any], None]:
        """What hands a result from another thread to the executor's, where the service waits for it."""
        executor = self._node.executor

        def settle(result: Any) -> None:
            if not future.done():
                future.set_result(result)

        def post(result: Any) -> None:
            if executor is not None:
                executor.create_task(settle, result)

        return post
