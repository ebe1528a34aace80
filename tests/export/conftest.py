"""A checkpoint and its export, made once for the tests of this folder."""

import sys
from pathlib import Path

import pytest
from ocean_train.model import OceanTransformer

sys.path.insert(0, str(Path(__file__).parents[1] / "fixtures"))
from make_tiny import tiny_checkpoint


@pytest.fixture(scope="session")
def checkpoint_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    tiny_checkpoint(folder)
    return folder


@pytest.fixture(scope="session")
def model(checkpoint_folder: Path) -> OceanTransformer:
    from ocean_train import checkpoint

    return checkpoint.load(checkpoint_folder).model()
