"""Not run as long as a peer of requirements.txt is missing: what setup.sh could not install must not
look like something that was tested.
"""

import sys
from pathlib import Path

import support

if __name__ == "__main__":
    report = Path(sys.prefix) / "missing.txt"
    if not report.exists():
        support.not_run(f"{report} is not there: tests/interop/peers/setup.sh was not run")
    if missing := report.read_text().strip():
        support.not_run(missing)
    print("every peer is installed")
