"""A script that starts workers without the guard is refused, in one sentence, before anything is written."""

import subprocess
import sys
from pathlib import Path

import millrace
from millrace.tests.contracts.fresh_python import run_python

CALL = "mr.run('sbm:nodes=60,classes=2', ranks=2, out={out!r}, cluster={{'dashboard_port': 0}})"
REFUSED = 'below `if __name__ == "__main__":`'


def run(folder: Path, script: str) -> tuple[int, str, str]:
    (folder / "job.py").write_text(
        "import millrace as mr\n" + script.replace("CALL", CALL.format(out=str(folder / "out")))
    )
    variables = {"PYTHONPATH": str(Path(millrace.__path__[0]).parent), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    return run_python(folder / "job.py", variables=variables)


def test_a_script_without_the_guard_is_refused(tmp_path: Path) -> None:
    code, _, err = run(tmp_path, "def main():\n    CALL\nif True:\n    main()\n")
    assert code == 1
    assert err.count("Traceback") == 1
    assert REFUSED in err.splitlines()[-1] and "(ranks = 1; for a sweep jobs = 1)" in err.splitlines()[-1]
    assert not (tmp_path / "out").exists(), "nothing is in the way of the next try"


GUARDED = """
from millrace.pipeline.custom.main_guard import check_main_guard
if __name__ == "__main__":
    check_main_guard()
    print("fine")
"""


def test_a_guarded_script_and_a_session_are_left_alone(tmp_path: Path) -> None:
    assert run(tmp_path, GUARDED)[1] == "fine\n"
    refuse_in_thread = "import threading\nfrom millrace.pipeline.custom.main_guard import check_main_guard as f\n"
    refuse_in_thread += "t = threading.Thread(target=f)\nt.start()\nt.join()\n"
    assert REFUSED in run(tmp_path, refuse_in_thread)[2], "whatever thread asks"
    plain = "from millrace.pipeline.custom.main_guard import check_main_guard as f; f(); print(1)"
    environment = {"PYTHONPATH": str(Path(millrace.__path__[0]).parent)}
    assert (
        subprocess.run(
            [sys.executable, "-c", plain], capture_output=True, text=True, env=environment, check=True
        ).stdout
        == "1\n"
    )
