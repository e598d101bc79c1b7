import logging
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


def pytest_configure(config):
    config.addinivalue_line("markers", "interop: runs the real program of somebody else")
    config.addinivalue_line("markers", "slow: takes minutes")
