"""The package: versions, what its files say, the launch file, colcon, the installed console script."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import ocean_ros
import ocean_runtime
import pytest
import yaml
from leaky import leaky
from ocean_ros import parameters
from ocean_ros.parameters import Input, Output, Settings
from robot import ROOT, Client, new_domain

PACKAGE = ROOT / "ros_nodes" / "ocean_ros"


def test_all_version_numbers_are_equal() -> None:
    def found(path: Path, pattern: str) -> str:
        match = re.search(pattern, path.read_text(), re.MULTILINE)
        assert match is not None, path
        return match[1]

    versions = {
        "pyproject.toml": found(ROOT / "pyproject.toml", r'^version = "(.+)"$'),
        "package.xml": found(PACKAGE / "package.xml", r"<version>(.+)</version>"),
        "setup.py": found(PACKAGE / "setup.py", r'version="(.+)"'),
        "ocean_ros": ocean_ros.__version__,
        "ocean_runtime": ocean_runtime.__version__,
    }
    assert len(set(versions.values())) == 1, versions


def test_the_yaml_file_shows_every_parameter_with_its_default() -> None:
    values = yaml.safe_load((PACKAGE / "config" / "ocean.yaml").read_text())["/**"]["ros__parameters"]
    examples = [("inputs", "input", Input), ("outputs", "output", Output)]
    for names, group, table in examples:
        for name in values.pop(names):
            assert set(values[group][name]) == set(fields(table))
        del values[group]
    expected = {name: parameters.default_of(field) for name, field in fields(Settings).items()}
    assert values == {name: value for name, value in expected.items() if name not in ("inputs", "outputs")}


def fields(table: Any) -> dict[str, Any]:
    return dict(table.__dataclass_fields__)


def test_the_readme_tells_of_every_parameter_topic_and_service() -> None:
    text = (PACKAGE / "README.md").read_text()
    for name in [*fields(Settings), *fields(Input), *fields(Output)]:
        assert f"`{name}`" in text, name
    for name in ("~/ocean", "~/surprise", "~/reset", "~/save", "~/restore", "~/swap", "/diagnostics"):
        assert f"`{name}`" in text, name


def test_the_launch_file_passes_parameters_that_exist() -> None:
    """The launch system itself is no PyPI package: only the file's text can be checked here."""
    tree = ast.parse((PACKAGE / "launch" / "ocean.launch.py").read_text())
    assigned = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    arguments = set(ast.literal_eval(assigned["ARGUMENTS"]))
    assert arguments - {"params_file", "name", "namespace", "use_sim_time"} <= set(fields(Settings))


def test_the_node_needs_no_pytorch() -> None:
    code = "import sys; sys.modules['torch'] = None; import ocean_ros.process; print(len(sys.modules))"
    folders = os.pathsep.join([str(ROOT / "runtime"), str(PACKAGE)])
    environment = {**os.environ, "PYTHONPATH": folders}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["--help"], 0, "usage: ocean_node --ros-args -p model_path:="),
        (["--model", "x"], 2, "ocean_node: unknown argument '--model'; parameters come after --ros-args"),
        (["--ros-args", "--bogus"], 2, "ocean_node: ROS can't take these arguments: ['--bogus']"),
        (["--ros-args", "-r", "__node:=a", "--", "x"], 2, "ocean_node: unknown argument 'x'"),
    ],
)
def test_arguments_that_are_not_ros(arguments: list[str], status: int, told: str, tmp_path: Path) -> None:
    folders = os.pathsep.join([str(ROOT / "runtime"), str(PACKAGE)])
    environment = {**os.environ, "PYTHONPATH": folders, "ROS_LOG_DIR": str(tmp_path)}
    line = [sys.executable, "-m", "ocean_ros", *arguments]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == status
    assert told in (done.stderr if status else done.stdout)
    assert "Traceback" not in done.stderr


def test_pip_installs_a_console_script_that_starts(tmp_path: Path) -> None:
    """Into a folder of its own; the script is then run as a robot would."""
    shutil.copytree(PACKAGE, tmp_path / "source")  # building leaves files beside the source
    target = tmp_path / "installed"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*install, "--target", str(target), str(tmp_path / "source")], check=True, timeout=120)
    assert (target / "share" / "ament_index" / "resource_index" / "packages" / "ocean_ros").exists()
    assert (target / "share" / "ocean_ros" / "launch" / "ocean.launch.py").exists()
    starts(target / "bin" / "ocean_node", [target, ROOT / "runtime"], tmp_path)


def starts(script: Path, folders: list[Path], folder: Path) -> None:
    """Run an installed script as an autostarting node, until another process sees it active."""
    domain = new_domain()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
        "ROS_DOMAIN_ID": str(domain),
        "ROS_LOG_DIR": str(folder),
    }
    model = leaky(folder / "model.onnx")
    line = [sys.executable, str(script), "--ros-args", "-p", f"model_path:={model}", "-p", "autostart:=true"]
    client = Client(domain)
    with subprocess.Popen(line, env=environment, cwd=folder) as process:
        try:
            assert client.state("ocean") == "active"
            process.terminate()
            assert process.wait(20) == 0
        finally:
            process.kill()
            client.close()


@pytest.mark.soak
def test_colcon_builds_tests_and_runs_it(tmp_path: Path) -> None:
    """colcon test runs the node's tests as make test does: the same files, by the same pytest."""
    colcon = shutil.which("colcon", path=str(Path(sys.executable).parent))
    if colcon is None:
        pytest.skip("needs colcon: pip install colcon-common-extensions")
    common = ["--base-paths", str(PACKAGE.parent)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "runtime")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    for verb in (["build"], ["test", "--return-code-on-test-failure", "--event-handlers", "console_direct+"]):
        done = subprocess.run(
            [colcon, *verb, *common],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=900,
        )
        print(done.stdout[-3000:], done.stderr[-2000:])
        assert done.returncode == 0
    assert re.search(r"\d+ passed", done.stdout)
    prefix = tmp_path / "install" / "ocean_ros"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    starts(
        prefix / "lib" / "ocean_ros" / "ocean_node",
        [prefix / "lib" / version / "site-packages", ROOT / "runtime"],
        tmp_path,
    )
