"""The lifecycle node: it moves messages and keeps one ocean state alive; the runtime thinks."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray
from ocean_runtime import OceanError, OceanModel
from ocean_runtime.state_path import StatePath
from rcl_interfaces.msg import SetParametersResult
from rclpy.clock import Clock, ClockType, JumpThreshold  # type: ignore[attr-defined]
from rclpy.duration import Duration
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.parameter import Parameter
from rclpy.qos import HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.validate_full_topic_name import validate_full_topic_name
from std_msgs.msg import Float32, Float32MultiArray

from ocean_ros import parameters
from ocean_ros.diagnostics import Judgement
from ocean_ros.memory import Memory, load
from ocean_ros.parameters import Input, Output, ParameterError, Settings
from ocean_ros.report import Window, report
from ocean_ros.saver import Saver
from ocean_ros.services import Services
from ocean_ros.stepping import Publishers, Stepper
from ocean_ros.wiring import InputWire, Wiring, check_topics, wire

try:
    from rclpy.event_handler import PublisherEventCallbacks, SubscriptionEventCallbacks
except ImportError:  # before ROS 2 Iron
    from rclpy.qos_event import PublisherEventCallbacks, SubscriptionEventCallbacks

RELIABLE = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)
WHOLE = QoSProfile(depth=1000, reliability=ReliabilityPolicy.RELIABLE)
"""For the answers to every message of a reliable input: they may come in bursts, and each counts."""
EVERY = QoSProfile(history=HistoryPolicy.KEEP_ALL, reliability=ReliabilityPolicy.RELIABLE)
OWN_TOPICS = ("~/ocean", "/diagnostics", "~/transition_event", "/parameter_events", "/rosout")
"""What the node publishes beside the model's outputs, and `~/surprise` where the model predicts its input."""
SAVE_TIMEOUT = 10.0
"""Seconds that the end of the process waits for a disk."""
WORK_PERIOD = 0.0001
"""Seconds between two slices of text, in which other callbacks get their turn."""

SUCCESS, FAILURE = TransitionCallbackReturn.SUCCESS, TransitionCallbackReturn.FAILURE


def transition(method: Callable[[Any], None]) -> Callable[[Any, LifecycleState], TransitionCallbackReturn]:
    """A transition whose errors are logged: rclpy itself swallows what a transition raises."""

    @functools.wraps(method)
    def run(self: Any, state: LifecycleState) -> TransitionCallbackReturn:
        name = method.__name__.removeprefix("on_")
        try:
            method(self)
        except (OceanError, ParameterError) as error:
            self.problem = f"{name} failed: {error}"
            self.get_logger().error(self.problem)
            return FAILURE
        except Exception:
            self.problem = f"{name} failed: an error in the node; its log has the traceback"
            self.get_logger().error(f"{name} failed:\n{traceback.format_exc()}")
            return TransitionCallbackReturn.ERROR
        self.problem = ""
        return SUCCESS

    return run


def predicts(model: OceanModel) -> bool:
    """Whether one of the model's outputs is its next input."""
    return any(tensor.predicts for tensor in model.contract.outputs)


class OceanNode(LifecycleNode):
    """One ocean state, fed from topics. See the package's README for what it does when."""

    def __init__(self, name: str = "ocean", **options: Any) -> None:
        super().__init__(name, **options)
        self.label = "unconfigured"
        self.problem = ""
        """Why the last transition failed."""
        self.failed_callbacks = 0
        """Errors that reached the executor: messages that ROS itself can't take, or a mistake in the node."""
        self.restored = ""
        """What the last activation did about the state."""
        self.settings, self.inputs, self.outputs = Settings(), dict[str, Input](), dict[str, Output]()
        self.memory: Memory | None = None
        self.stepper: Stepper | None = None
        self.saver: Saver | None = None
        self.held: StatePath | None = None
        self.judgement, self.window = Judgement(), Window()
        self.steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.activated_at = 0.0
        self.sim_time = False
        self._changed = False
        self._saving: tuple[int, int] | None = None
        self._made: list[Callable[[], object]] = []
        self._running: list[Callable[[], object]] = []
        self.subscribed: dict[str, tuple[InputWire, QoSProfile]] = {}
        self.logged_warnings: set[str] = set()
        """What the log has said about publishers since the activation."""
        self._problems: dict[str, str] = {}
        self.add_on_set_parameters_callback(self._on_set)
        self._problems |= parameters.declare(self, Settings)
        self._problems |= parameters.declare_named(self, Input)  # can be set before the first configure
        self._problems |= parameters.declare_named(self, Output)
        parameters.warn_unknown(self, nested=False)
        self.triggers = Services(self)
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", RELIABLE)
        self.create_timer(1.0, self._diagnose, clock=self.steady)

    # Lifecycle

    @transition
    def on_configure(self) -> None:
        try:
            self.settings = self._read_settings()
            if not self.settings.model_path:
                raise ParameterError(
                    "parameter model_path is empty; name the .onnx file that ocean-export made"
                )
            try:
                model = load(self.settings.model_path)  # its warm-up is a stream of its own
            except OceanError as error:
                raise ParameterError(f"parameter model_path: {error}") from None
            self.memory = Memory(model, None)
            self._connect(model)
        except BaseException:
            self._release()
            raise
        self.label = "inactive"
        beside = (
            ", with its prefill graph"
            if model.contract.kind == "tokens" and model.prefill is not None
            else ""
        )
        self.get_logger().info(
            f"configured: {self.settings.model_path}, {model.contract.state_id[:19]}{beside}"
        )

    @transition
    def on_activate(self) -> None:
        assert self.memory is not None
        if self._changed:
            self.settings = self._read_settings()
            self._connect(self.memory.stream.model)
        self.sim_time = bool(self.get_parameter("use_sim_time").value)
        settings = self.settings
        left_behind, self.restored = self.memory.wake(settings.restore_max_age, settings.restore_unknown_age)
        self.memory.decided = True
        if left_behind:
            self.get_logger().warning(self.restored)
        else:
            self.get_logger().info(self.restored)
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        super().on_activate(None)  # type: ignore[arg-type]  # lets the lifecycle publishers speak
        self.label = "active"

    @transition
    def on_deactivate(self) -> None:
        self._stop()
        self.label = "inactive"
        super().on_deactivate(None)  # type: ignore[arg-type]
        assert self.memory is not None
        policy = self.settings.on_deactivate
        self.get_logger().info(f"deactivated: {self.memory.apply(policy)}")
        if policy != "restore":
            self.save()

    @transition
    def on_cleanup(self) -> None:
        self._release()
        self.label = "unconfigured"

    @transition
    def on_shutdown(self) -> None:
        self._stop()
        if self.label == "active":
            self.save()
        self._release()
        self.label = "finalized"

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Back to unconfigured, with nothing held, so that configure can try again."""
        try:
            self._stop()
            self._release()
        except Exception:
            self.get_logger().error(f"error handling failed:\n{traceback.format_exc()}")
        self.label = "unconfigured"
        return SUCCESS

    # What transitions make and unmake

    def _read_settings(self) -> Settings:
        for name, reason in self._problems.items():
            if not name.startswith(("input.", "output.")):
                raise ParameterError(reason)
        return parameters.read(self, Settings)

    def _hold_state(self) -> StatePath | None:
        """The file of the state, which no other process or node may use meanwhile. Raises ParameterError."""
        given = self.settings.state_path
        if self.held is not None and self.held.given == given:
            return self.held
        try:
            return StatePath(given) if given else None
        except OceanError as error:
            raise ParameterError(f"parameter state_path: {error}") from None

    def _wiring(self, model: OceanModel, inputs: dict[str, Input], outputs: dict[str, Output]) -> Wiring:
        """How the model is connected to topics. Raises ParameterError where it can't be."""
        wiring = wire(model.contract, self.settings, inputs, outputs)
        own = (*OWN_TOPICS, "~/surprise") if predicts(model) else OWN_TOPICS
        check_topics(wiring, own, self._full)
        trained = model.contract.rate_hz
        if trained and wiring.rate and abs(wiring.rate / trained - 1) > 0.05:
            self.get_logger().warning(f"rate is {wiring.rate:g}, but the model was trained at {trained:g} Hz")
        return wiring

    def _connect(self, model: OceanModel) -> None:
        """Wire the model to topics, and make the publishers."""
        assert self.memory is not None
        inputs = parameters.read_named(self, Input, self.settings.inputs, self._problems)
        outputs = parameters.read_named(self, Output, self.settings.outputs, self._problems)
        held = self._hold_state()
        try:
            wiring = self._wiring(model, inputs, outputs)
        except BaseException:
            if held is not None and held is not self.held:
                held.release()
            raise
        for note in wiring.notes:
            self.get_logger().warning(note)
        self._disconnect()
        if self.held is not None and self.held is not held:
            self.held.release()
        self.held, self.memory.path = held, held.path if held is not None else None
        self._make_publishers(wiring)
        self.inputs, self.outputs, self.window = inputs, outputs, Window()
        if held is not None:
            self.saver = Saver(held.path, self.settings.save_keep, self.get_logger(), self.memory.limit)
        self._saving = None
        self._changed = False
        parameters.warn_unknown(self, nested=True)  # those of inputs and outputs are declared by now

    def _make_publishers(self, wiring: Wiring) -> None:
        assert self.memory is not None

        qos = WHOLE if wiring.trigger is not None and wiring.trigger.every else RELIABLE

        def publisher(message: Any, topic: str) -> Any:
            quiet = PublisherEventCallbacks(use_default_callbacks=False)  # see _start
            made = self.create_lifecycle_publisher(message, topic, qos, event_callbacks=quiet)
            self._made.append(functools.partial(self.destroy_lifecycle_publisher, made))
            return made

        self.stepper = Stepper(
            wiring=wiring,
            memory=self.memory,
            publishers=Publishers(
                outputs=[publisher(item.message, item.topic) for item in wiring.outputs],
                ocean=publisher(Float32MultiArray, "~/ocean"),
                surprise=publisher(Float32, "~/surprise") if predicts(self.memory.stream.model) else None,
            ),
            settings=lambda: self.settings,
            inputs=lambda: self.inputs,
            now=self.seconds,
            stamp=lambda: self.get_clock().now().to_msg(),
            logger=self.get_logger(),
        )

    def _full(self, name: str, topic: str) -> str:
        """A topic's full name, remapped. Raises ParameterError."""
        try:
            full = str(self.resolve_topic_name(topic))
            validate_full_topic_name(full)
        except Exception as error:  # several of rclpy's, without a common base
            raise ParameterError(f"parameter {name} is {topic!r}: {str(error).splitlines()[0]}") from None
        return full

    def _start(self) -> None:
        """Subscriptions, timers, and the watch over ROS time: all that moves the state."""
        assert self.stepper is not None and self.memory is not None
        wiring = self.stepper.wiring
        self.stepper.restart_counts()
        self.stepper.begin()
        self.activated_at = time.monotonic()
        self.judgement, self.logged_warnings, self.subscribed = Judgement(), set(), {}
        for item in wiring.inputs:
            latest = QoSProfile(depth=item.depth, reliability=ReliabilityPolicy.BEST_EFFORT)
            qos = EVERY if item.every else latest
            # No event callbacks, not even rclpy's own: one that comes for a subscription or publisher which is
            # gone crashes the process (rclpy issue 1644). Diagnostics ask for the publishers' QoS instead.
            quiet = SubscriptionEventCallbacks(use_default_callbacks=False)
            made = self.create_subscription(
                item.message, item.topic, self._receiver(item), qos, event_callbacks=quiet
            )
            self.subscribed[item.name] = (item, qos)
            self._running.append(functools.partial(self.destroy_subscription, made))
        self._work = self.create_timer(WORK_PERIOD, self._on_work, clock=self.steady)
        self._work.cancel()
        timers = [self._work]
        if wiring.trigger is None:
            clock = self.get_clock() if self.sim_time else self.steady
            timers.append(self.create_timer(1.0 / wiring.rate, self.stepper.tick, clock=clock))
        if self.saver is not None and self.settings.save_period:
            timers.append(self.create_timer(self.settings.save_period, self.save, clock=self.steady))
        self._running += [functools.partial(self.destroy_timer, timer) for timer in timers]
        backward = JumpThreshold(
            min_forward=None, min_backward=Duration(nanoseconds=-1), on_clock_change=False
        )
        watch = self.get_clock().create_jump_callback(backward, post_callback=self._on_jump)
        self._running.append(watch.unregister)

    def _stop(self) -> None:
        while self._running:
            self._running.pop()()
        self.subscribed = {}

    def _disconnect(self) -> None:
        """Undo _connect."""
        if self.saver is not None and not self.saver.close(SAVE_TIMEOUT):
            self.get_logger().error(
                f"the disk under {self.saver.path} does not answer; its last save is lost"
            )
            self.held = None  # without a release: the write that hangs may still end
        self.saver = self.stepper = None
        while self._made:
            self._made.pop()()

    def _release(self) -> None:
        """Undo on_configure."""
        self._disconnect()
        if self.held is not None:
            self.held.release()
        self.held = self.memory = None

    # What happens while active

    def seconds(self) -> float:
        """The time that ages and gaps are measured in: steady, or ROS time with use_sim_time."""
        return self.get_clock().now().nanoseconds * 1e-9 if self.sim_time else time.monotonic()

    def save(self) -> None:
        """Have the state written, unless the disk has it already."""
        if self.saver is None or self.memory is None:
            return
        now = (self.memory.lives, self.memory.stream.steps)
        if self._saving != now or self.saver.problem:
            self._saving = now
            self.saver.submit(self.memory.stream.snapshot())

    def _receiver(self, item: InputWire) -> Callable[..., None]:
        """A subscription's callback, with message info.

        It takes (message, info), one tuple of both, which some EventsExecutors hand over, or a message alone,
        as older ROS does; rclpy looks at the signature.
        """

        def receive(*given: Any) -> None:
            message, info = given if len(given) == 2 else (given[0], {})
            if isinstance(message, tuple):
                message, info = message
            if (
                self.label == "active"
                and self.stepper is not None
                and self.stepper.take(item.name, message, info)
                and self._work.is_canceled()  # rclpy's executor runs a timer once for each reset
            ):
                self._work.reset()

        positional = inspect.Parameter.POSITIONAL_ONLY
        names = [inspect.Parameter(name, positional) for name in ("message", "info")]
        receive.__signature__ = inspect.Signature(names)  # type: ignore[attr-defined]
        return receive

    def _on_work(self) -> None:
        if self.stepper is None or not self.stepper.work():
            self._work.cancel()

    def _on_jump(self, jump: Any) -> None:
        assert self.stepper is not None
        self.stepper.counters.jumps += 1
        self.stepper.begin()
        self.stepper.apply(
            self.settings.on_clock_jump, f"ROS time jumped by {jump.delta.nanoseconds * 1e-9:.1f} s"
        )

    # Parameters and diagnostics

    def _on_set(self, changes: list[Parameter[Any]]) -> SetParametersResult:
        settings, inputs, structural = self.settings, dict(self.inputs), False
        for change in changes:
            field = parameters.field_of(change.name)
            rigid = change.name == "use_sim_time" or bool(field and field.metadata["structural"])
            if rigid and self.label == "active":
                reason = f"{change.name} can't change while the node is active; deactivate it first"
                return SetParametersResult(successful=False, reason=reason)
            if field is None:
                continue
            try:
                value = parameters.checked(change.name, field, change.value)
            except ParameterError as error:
                return SetParametersResult(successful=False, reason=str(error))
            structural |= rigid
            if rigid or field.name == "model_path":
                continue  # read at configure, activation or ~/swap
            if change.name.startswith("input."):
                name = change.name.split(".")[1]
                if name in inputs:
                    inputs[name] = dataclasses.replace(inputs[name], **{field.name: value})
            else:
                settings = dataclasses.replace(settings, **{field.name: value})
        for change in changes:
            self._problems.pop(change.name, None)
        self.settings, self.inputs = settings, inputs
        self._changed |= structural
        return SetParametersResult(successful=True)

    def _diagnose(self) -> None:
        status = report(self)
        message = DiagnosticArray(status=[status])
        message.header.stamp = self.get_clock().now().to_msg()
        self._diagnostics.publish(message)

    def state_norm(self) -> float:
        """Euclidean norm of the ocean state; 0 where there is none."""
        return float(np.linalg.norm(self.memory.stream.ocean)) if self.memory is not None else 0.0
