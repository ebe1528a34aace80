"""The node's tests need ROS: `pip install '.[ros]'` brings it from PyPI. Without it they are left out."""

import os

os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"

try:
    import rclpy  # noqa: F401
except ImportError:
    collect_ignore_glob = ["test_*.py"]
