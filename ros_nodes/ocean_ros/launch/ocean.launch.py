"""ros2 launch ocean_ros ocean.launch.py model_path:=/path/to/model.onnx params_file:=/path/to/ocean.yaml

An argument that is left empty does not override the parameter file.
"""

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import LifecycleNode

ARGUMENTS = {
    "params_file": ("", "YAML file with the node's parameters; see config/ocean.yaml"),
    "model_path": ("", "the .onnx file that ocean-export made"),
    "state_path": ("", "the snapshot file, restored from at activation"),
    "autostart": ("true", "configure and activate at start, without a lifecycle manager"),
    "use_sim_time": ("", "true: follow /clock"),
    "name": ("ocean", "the node's name"),
    "namespace": ("", "the node's namespace"),
}


def generate_launch_description():
    """Declares the arguments and starts the node."""
    declared = [DeclareLaunchArgument(n, default_value=d, description=t) for n, (d, t) in ARGUMENTS.items()]
    return LaunchDescription([*declared, OpaqueFunction(function=start)])


def start(context):
    """The node, with the arguments that were given as parameters."""
    given = {name: LaunchConfiguration(name).perform(context) for name in ARGUMENTS}
    overrides = {name: given[name] for name in ("model_path", "state_path") if given[name]}
    flags = ("autostart", "use_sim_time")
    overrides |= {name: given[name].lower() in ("true", "1") for name in flags if given[name]}
    return [
        LifecycleNode(
            package="ocean_ros",
            executable="ocean_node",
            name=given["name"],
            namespace=given["namespace"],
            parameters=[*([given["params_file"]] if given["params_file"] else []), overrides],
            remappings=[],  # such as ("/imu", "/robot1/imu")
            output="screen",
            emulate_tty=True,
        )
    ]
