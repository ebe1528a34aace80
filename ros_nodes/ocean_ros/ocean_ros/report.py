"""The diagnostics message of a node, and what is wrong with the publishers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from diagnostic_msgs.msg import DiagnosticStatus, KeyValue
from rclpy.qos import QoSCompatibility, QoSProfile, qos_check_compatible

from ocean_ros.diagnostics import ERROR, OK, Counters, Look, Second, judge, quantiles

if TYPE_CHECKING:
    from ocean_ros.node import OceanNode

UNKNOWN = "_NODE_NAME_UNKNOWN_"
"""The node of a publisher that has just come, or that ROS has forgotten to take off its list."""


class Window:
    """What the last diagnostics message left behind, so that the next one tells of the time between."""

    def __init__(self) -> None:
        self.counts, self.at = Counters(), time.monotonic()


def report(node: OceanNode) -> DiagnosticStatus:
    """One DiagnosticStatus about the time since the last."""
    values: dict[str, Any] = {"lifecycle state": node.label}
    level, message = OK, node.label
    if node.problem:
        level, message = ERROR, node.problem
    model = node.memory.stream.model if node.memory is not None else None
    if node.memory is not None and node.stepper is not None and model is not None:
        look, second = _look(node)
        rate = look.counts.stepped / look.seconds
        p50, p99, most = quantiles(second.times)
        if node.label == "active":
            reported, why = node.judgement.update(judge(look, node.settings), node.settings.bad_seconds)
            if reported > level:
                level, message = reported, why
        totals = node.stepper.counters
        saved = node.saver.saved_at if node.saver is not None else None
        values |= {
            "model": str(model.path),
            "model digest": model.contract.state_id,
            "kind": model.contract.kind,
            "steps": node.memory.stream.steps,
            "rate (Hz)": f"{rate:.2f}",
            "wanted rate (Hz)": f"{look.wanted:g}" if look.wanted else "not set",
            "step time p50 (ms)": f"{p50 * 1e3:.3f}",
            "step time p99 (ms)": f"{p99 * 1e3:.3f}",
            "step time max (ms)": f"{most * 1e3:.3f}",
            "deadline misses": totals.missed,
            "input age (s)": f"{second.age:.4f}",
            "seconds since input": f"{node.stepper.now() - node.stepper.last_input:.2f}",
            "messages received": totals.received,
            "messages dropped": totals.dropped,
            "steps taken": totals.stepped,
            "stale inputs": totals.stale,
            "non-finite inputs": totals.not_finite,
            "inputs out of the training range": node.memory.stream.counters.out_of_range,
            "malformed inputs": totals.malformed,
            "failed steps": totals.failed,
            "gaps": totals.gaps,
            "clock jumps": totals.jumps,
            "text left out": totals.refused,
            "tokens waiting": node.stepper.talk.waiting if node.stepper.talk is not None else 0,
            "state norm": f"{look.norm:.4g}",
            "age of last save (s)": "never" if saved is None else f"{time.monotonic() - saved:.1f}",
            "failed saves": node.saver.failures if node.saver is not None else 0,
            "failed callbacks": node.failed_callbacks,
            "last activation": node.restored or "none",
            "on_deactivate": node.settings.on_deactivate,
            "on_gap": node.stepper.wiring.trained.on_gap(node.settings.on_gap),
            "on_clock_jump": node.settings.on_clock_jump,
            "on_failed_step": node.settings.on_failed_step,
        }
    return DiagnosticStatus(
        level=bytes([level]),
        name=f"{node.get_fully_qualified_name()}: ocean state",
        message=message,
        hardware_id=model.contract.state_id if model is not None else "",
        values=[KeyValue(key=key, value=str(value)) for key, value in values.items()],
    )


def _look(node: OceanNode) -> tuple[Look, Second]:
    """The time since the last report, and a new window."""
    assert node.stepper is not None
    stepper, window, now = node.stepper, node.window, time.monotonic()
    counts, second = stepper.counters.since(window.counts), stepper.second
    seconds = max(1e-9, now - max(window.at, node.activated_at))
    window.counts, window.at = stepper.counters.copy(), now
    stepper.second = Second()
    save_age = None
    if node.saver is not None and node.settings.save_period and counts.stepped:
        save_age = now - max(node.saver.saved_at or 0.0, node.activated_at)
    return Look(
        counts=counts,
        seconds=seconds,
        wanted=0.0 if stepper.wiring.text else stepper.wiring.rate,
        gap_after=stepper.wiring.trained.gap_after(node.settings.gap_after),
        idle=None if stepper.wiring.text else stepper.now() - stepper.last_input,
        norm=node.state_norm(),
        save_problem=node.saver.problem if node.saver is not None else "",
        save_age=save_age,
        publisher_problems=publisher_problems(node),
    ), second


def publisher_problems(node: OceanNode) -> list[str]:
    """What is wrong with the publishers of the inputs, a sentence each; new ones are logged.

    A publisher whose QoS the node can't take sends it nothing; several publishers of one input are mixed.
    """
    found = []
    for name, (wire, asked) in node.subscribed.items():
        topic, heard = node.resolve_topic_name(wire.topic), []
        for info in node.get_publishers_info_by_topic(topic):
            if info.node_name == UNKNOWN:
                continue
            publisher = f"{info.node_namespace.rstrip('/')}/{info.node_name}"
            if qos_check_compatible(info.qos_profile, asked)[0] != QoSCompatibility.ERROR:
                heard.append(publisher)
                continue
            found.append(
                f"no messages on {topic}: this node asks for {_qos_text(asked)}, the publisher {publisher} "
                f"offers {_qos_text(info.qos_profile)}; set input.{name}.qos"
            )
        if len(heard) > 1:
            found.append(
                f"{len(heard)} publishers on {topic}, {', '.join(sorted(heard))}: the state is stepped by "
                "the messages of all of them; leave one"
            )
    for text in found:
        if text not in node.logged_warnings:
            node.logged_warnings.add(text)
            node.get_logger().warning(text)
    return found


def _qos_text(qos: QoSProfile) -> str:
    return (
        f"{qos.reliability.name.lower().replace('_', ' ')}, {qos.durability.name.lower().replace('_', ' ')}"
    )
