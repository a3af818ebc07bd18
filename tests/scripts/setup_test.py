# SPDX-License-Identifier: Apache-2.0
"""setup_test.py ROOT: what scripts/setup says and does when something is wrong, and that it is quick when nothing is.

Runs a copy of it in a scratch folder, with stand-ins for the compiler, apt-get, python3 and cmake: no network, no root.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

DEBIAN = "apt-get install -y --no-install-recommends doctest-dev libbenchmark-dev libcli11-dev nlohmann-json3-dev libssl-dev"


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/bash\n" + text)
    path.chmod(0o755)


def libtorch(folder, version):
    for name in ("lib/libtorch_cpu.so", "include/ATen/core/Tensor.h", "include/torch/headeronly/version.h"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / "include/torch/headeronly/version.h").write_text("".join(
        f"#define TORCH_VERSION_{part} {number}\n"
        for part, number in zip(("MAJOR", "MINOR", "PATCH"), version.split("."))))
    return folder


class Place:
    """A clone with nothing in it but the script; `bin` comes first in PATH."""

    def __init__(self, root, folder):
        self.root = folder / "a clone"
        self.bin = folder / "bin"
        self.log = folder / "calls"
        (self.root / "scripts").mkdir(parents=True)
        shutil.copy(root / "scripts/setup", self.root / "scripts/setup")
        self.has(True)
        program(self.bin / "apt-get", f'echo "apt-get $*" >>"{self.log}"\nexit 1\n')
        self.python("")
        # A .venv that the script finds complete, but for libtorch; pip is not to be called.
        venv = self.root / ".venv/bin"
        program(venv / "cmake", "echo cmake version 9\n")
        program(venv / "ninja", "echo 9\n")
        program(venv / "python3", f'[[ $* == "-m pip --version" ]] && exit\necho "venv $*" >>"{self.log}"\n')

    def has(self, all_headers):
        answer = "exit 0" if all_headers else "sed -n '/^missing /p'"
        program(self.bin / "g++", f'[[ $* == *-E* ]] || exit 0\n{answer}\n')

    def python(self, torch):
        program(self.bin / "python3", f'[[ $* == *find_spec* ]] && echo "{torch}"\nexit 0\n')

    def setup(self, *arguments, expected=0, **environment):
        clean = {name: value for name, value in os.environ.items()
                 if not name.startswith("TANDEM_") and name != "CXX"}
        clean.update(PATH=f"{self.bin}:{os.environ['PATH']}", TANDEM_CUDA="0", **environment)
        done = subprocess.run([self.root / "scripts/setup", *arguments], capture_output=True, text=True, env=clean)
        assert done.returncode == expected, (arguments, environment, done)
        return done.stdout, done.stderr

    def calls(self):
        return self.log.read_text() if self.log.exists() else ""


def wrong_arguments(place, _):
    assert "unknown option --complete" in place.setup("--complete", expected=2)[1]
    assert "TANDEM_LIBTORCH=FOLDER" in place.setup("--help")[0]


def missing_packages(place, _):
    """All that is missing in one line, which is the same whoever runs it."""
    place.has(False)
    output, error = place.setup(expected=1, TANDEM_LIBTORCH="")
    assert DEBIAN in error, error
    assert len([line for line in error.splitlines() if line.startswith("setup:")]) == 1, error
    if os.geteuid() == 0:
        assert DEBIAN in place.calls() and "apt-get update" in place.calls()
    else:
        assert f"run: sudo {DEBIAN}" in error and not place.calls()


def given_libtorch(place, folder):
    """TANDEM_LIBTORCH wins over all, and is looked at before anything is installed."""
    good, old = libtorch(folder / "good", "2.12.1"), libtorch(folder / "old", "2.10.0")
    place.has(False)
    for wrong, words in ((folder, "which has no lib/libtorch_cpu.so"), (old, "is 2.10.0, but tandem needs 2.11 or newer")):
        error = place.setup(expected=1, TANDEM_LIBTORCH=str(wrong))[1]
        assert words in error and error.count("\n") == 1, error
    assert not place.calls()
    place.has(True)
    place.python(libtorch(folder / "python's", "2.11.0"))
    assert "ready: libtorch 2.12.1" in place.setup(TANDEM_LIBTORCH=str(good))[0]
    sourced = subprocess.run(["bash", "-c", 'source "$1"; echo "$TANDEM_LIBTORCH"', "-", place.root / ".venv/tandem.env"],
                             capture_output=True, text=True, check=True).stdout.strip()
    assert sourced == str(good), sourced


def python_libtorch(place, folder):
    """python3's torch is used if it is 2.11.*; nothing is downloaded, and the second run is quick and silent."""
    mine = libtorch(folder / "python's torch", "2.11.1")
    place.python(mine)
    output = place.setup()[0]
    assert f"using the libtorch of {place.bin}/python3: {mine}" in output and "ready: libtorch 2.11.1" in output, output
    assert "install" not in place.calls()
    started = time.monotonic()
    assert place.setup() == ("", "")
    assert time.monotonic() - started < 2
    # From a shell that has sourced the result: still nobody's wish, so still nothing to do.
    assert place.setup(TANDEM_LIBTORCH=str(mine), TANDEM_LIBTORCH_BY_SETUP=str(mine)) == ("", "")
    # What it depended on is gone: noticed.
    (mine / "lib/libtorch_cpu.so").unlink()
    place.python(libtorch(folder / "another", "2.11.0"))
    assert "ready: libtorch 2.11.0" in place.setup()[0]


def other_python_torch(place, folder):
    """Any other version is passed over: pip is asked, whose failure here ends in one sentence."""
    place.python(libtorch(folder / "newer", "2.12.0"))
    program(place.root / ".venv/bin/python3", f'[[ $* == "-m pip --version" ]] && exit\necho "$*" >>"{place.log}"\nexit 1\n')
    output, error = place.setup(expected=1)
    assert "downloading libtorch 2.11.0" in output, (output, error)
    assert "pip could not install libtorch" in error and error.count("\n") == 1, error
    assert "--no-deps torch==2.11.0 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85" in place.calls()


def comparisons(place, folder):
    """--bench: Debian's MPIs in the one line; on x86-64 Intel's by pip into a folder of its own, and only once."""
    place.python(libtorch(folder / "python's", "2.11.0"))
    for mpi in ("openmpi", "mpich"):
        program(place.bin / f"mpirun.{mpi}", "")
        program(place.bin / f"mpicc.{mpi}", "exit 1\n")  # as without the header
    assert "openmpi-bin libopenmpi-dev mpich libmpich-dev" in place.setup("--bench", expected=1)[1]
    for mpi in ("openmpi", "mpich"):
        program(place.bin / f"mpicc.{mpi}", "")
    made = " ".join(f'"$prefix/{name}"' for name in (
        "include/mpi.h", "lib/libmpi.so.12", "lib/python3.1/site-packages/impi_devel-2021.19.0.dist-info/INSTALLER"))
    program(place.root / ".venv/bin/python3", f"""[[ $* == "-m pip --version" ]] && exit
[[ $* == *install* ]] || exit
echo "$*" >>"{place.log}"
prefix={str(place.root / ".venv/impi")!r}
for file in {made}; do mkdir -p "${{file%/*}}" && touch "$file"; done
mkdir -p "$prefix/bin" && ln -s /bin/true "$prefix/bin/mpiexec.hydra"
""")
    output = place.setup("--bench")[0]
    if os.uname().machine == "x86_64":
        assert "downloading Intel MPI" in output
        assert f"--prefix {place.root}/.venv/impi impi-rt==2021.19.0 impi-devel==2021.19.0" in place.calls()
    assert place.setup("--bench") == ("", "") and place.setup() == ("", "")


def main():
    root = pathlib.Path(sys.argv[1])
    for case in (wrong_arguments, missing_packages, given_libtorch, python_libtorch, other_python_torch,
                 comparisons):
        with tempfile.TemporaryDirectory() as folder:
            case(Place(root, pathlib.Path(folder)), pathlib.Path(folder))
        print(f"{case.__name__}: ok")


if __name__ == "__main__":
    main()
