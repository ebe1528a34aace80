from setuptools import setup

NAME = "ocean_ros"

setup(
    name=NAME,
    version="0.1.0",
    packages=[NAME],
    package_data={NAME: ["py.typed"]},
    data_files=[
        ("share/ament_index/resource_index/packages", [f"resource/{NAME}"]),
        (f"share/{NAME}", ["package.xml", "README.md"]),
        (f"share/{NAME}/launch", ["launch/ocean.launch.py"]),
        (f"share/{NAME}/config", ["config/ocean.yaml"]),
    ],
    install_requires=["setuptools", "numpy>=1.24"],
    extras_require={"test": ["pytest"]},  # which is how colcon knows that there are tests
    python_requires=">=3.10",
    zip_safe=True,
    maintainer="The Ocean State authors",
    maintainer_email="maintainers@users.noreply.github.com",
    description="A lifecycle node that keeps one ocean state alive: a robot's continuous memory.",
    license="Apache-2.0",
    entry_points={"console_scripts": [f"ocean_node = {NAME}.process:main"]},
)
