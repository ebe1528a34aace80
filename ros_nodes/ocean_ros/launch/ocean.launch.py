"""ros2 launch ocean_ros ocean.launch.py model_path:=/path/to/model.onnx [params_file:=...] [autostart:=true]"""

import os

from ament_index_python.packages import get_package_share_directory
from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import LifecycleNode
from launch_ros.parameter_descriptions import ParameterValue


def generate_launch_description():
    config = os.path.join(get_package_share_directory("ocean_ros"), "config", "ocean.yaml")
    arguments = {
        "params_file": (config, "YAML file with the node's parameters"),
        "model_path": ("", "the .onnx file that ocean-export made"),
        "state_path": ("", "the snapshot file, restored from at activation; empty for none"),
        "autostart": ("true", "configure and activate at start, without a lifecycle manager"),
        "use_sim_time": ("false", "follow /clock"),
        "name": ("ocean", "the node's name"),
        "namespace": ("", "the node's namespace"),
    }
    node = LifecycleNode(
        package="ocean_ros",
        executable="ocean_node",
        name=LaunchConfiguration("name"),
        namespace=LaunchConfiguration("namespace"),
        parameters=[
            LaunchConfiguration("params_file"),
            {
                "model_path": ParameterValue(LaunchConfiguration("model_path"), value_type=str),
                "state_path": ParameterValue(LaunchConfiguration("state_path"), value_type=str),
                "autostart": ParameterValue(LaunchConfiguration("autostart"), value_type=bool),
                "use_sim_time": ParameterValue(LaunchConfiguration("use_sim_time"), value_type=bool),
            },
        ],
        # Remap here or on the command line, e.g. remappings=[("/imu", "/robot1/imu")].
        output="screen",
        emulate_tty=True,
    )
    return LaunchDescription(
        [DeclareLaunchArgument(n, default_value=d, description=t) for n, (d, t) in arguments.items()] + [node]
    )
