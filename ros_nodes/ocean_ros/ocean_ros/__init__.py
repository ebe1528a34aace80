"""A ROS 2 lifecycle node that keeps one ocean state alive; the thinking is ocean_runtime's."""

__version__ = "0.1.0"
