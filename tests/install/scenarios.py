# SPDX-License-Identifier: Apache-2.0
"""scenarios.py NAME: one way in which another project meets the library, from configure to run.

ctest passes the settings in the environment: SOURCE (this repository), BUILD (its build folder), WORK (scratch; has
spaces), CMAKE, COMPILER, LIBTORCH (may be empty). Every scenario starts from an empty folder of its own.
"""
import os
import pathlib
import shutil
import subprocess
import sys

SOURCE, BUILD, CMAKE, COMPILER = (os.environ[name] for name in ("SOURCE", "BUILD", "CMAKE", "COMPILER"))
LIBTORCH = os.environ.get("LIBTORCH", "")
HERE = pathlib.Path(__file__).resolve().parent
WORK = pathlib.Path(os.environ["WORK"])


def call(command, expect_failure=False, **environment):
    """Runs it in a clean environment, returns what it printed; anything but the expected outcome ends the test."""
    clean = {name: value for name, value in os.environ.items()
             if name not in ("TANDEM_LIBTORCH", "CMAKE_PREFIX_PATH", "Torch_DIR", "LIBTORCH")}
    clean.update(environment)
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=clean)
    output = done.stdout + done.stderr
    if (done.returncode != 0) != expect_failure:
        print(output)
        sys.exit(f"{'succeeded' if expect_failure else 'failed'}: {command}")
    return output


def configure(project, folder, *settings, compiler=COMPILER, expect_failure=False, **environment):
    return call([CMAKE, "-S", project, "-B", folder, "-G", "Ninja", f"-DCMAKE_CXX_COMPILER={compiler}", *settings],
                expect_failure=expect_failure, **environment)


def build_and_run(folder, program):
    call([CMAKE, "--build", folder, "-j", "2"])
    return call([folder / program])


def installed(folder):
    call([CMAKE, "--install", BUILD, "--prefix", folder])
    return folder


def says(output, *sentences):
    text = " ".join(output.split())  # CMake wraps its messages
    for sentence in sentences:
        if sentence not in text:
            print(output)
            sys.exit(f"does not say: {sentence}")


def need(condition, why):
    if not condition:
        sys.exit(why)


# ---- The library as others use it ---------------------------------------------------------------------------------

def package_bare():
    """Installed, found without libtorch: a wrong TANDEM_LIBTORCH shows that it is not even looked for."""
    prefix = installed(WORK / "the prefix")
    configure(HERE / "consumer", WORK / "build it", f"-DCMAKE_PREFIX_PATH={prefix}", "-DHOW=package", "-DWHAT=bare",
              TANDEM_LIBTORCH="/nowhere")
    says(build_and_run(WORK / "build it", "program"), "sum 3")


def package_tandem():
    prefix = installed(WORK / "the prefix")
    configure(HERE / "consumer", WORK / "build it", f"-DCMAKE_PREFIX_PATH={prefix}", "-DHOW=package", "-DWHAT=tandem",
              f"-DTANDEM_LIBTORCH={LIBTORCH}")
    says(build_and_run(WORK / "build it", "program"), "sum 3")


def package_without_libtorch():
    """Asked for by name it is an error that says what to do; not asked for, tandem::bare is there all the same."""
    prefix = installed(WORK / "the prefix")
    output = configure(HERE / "consumer", WORK / "build it", f"-DCMAKE_PREFIX_PATH={prefix}", "-DHOW=package",
                       "-DWHAT=tandem", expect_failure=True, TANDEM_LIBTORCH="/nowhere")
    says(output, "TANDEM_LIBTORCH is /nowhere, which has no lib/libtorch_cpu.so: point it at the libtorch folder")
    output = configure(HERE / "consumer", WORK / "build other", f"-DCMAKE_PREFIX_PATH={prefix}", "-DHOW=any",
                       "-DWHAT=bare", TANDEM_LIBTORCH="/nowhere")
    says(output, "tandem: only tandem::bare")


def subdirectory(what, *settings):
    copy = WORK / "their project" / "third party" / "tandem"
    copy.mkdir(parents=True)
    for name in ("include", "cmake", "CMakeLists.txt"):
        whole = pathlib.Path(SOURCE) / name
        (shutil.copytree if whole.is_dir() else shutil.copy)(whole, copy / name)
    configure(HERE / "consumer", WORK / "build it", "-DHOW=subdirectory", f"-DTANDEM_SOURCE={copy}", f"-DWHAT={what}",
              *settings)
    says(build_and_run(WORK / "build it", "program"), "sum 3")


def subdirectory_bare():
    subdirectory("bare", "-DTANDEM_TORCH=OFF")


def subdirectory_tandem():
    subdirectory("tandem", f"-DTANDEM_LIBTORCH={LIBTORCH}")


def two_units(compiler, what):
    """Two files and a shared library, each with every public header: nothing defined twice, no warning, one state."""
    settings = [f"-DTANDEM_SOURCE={SOURCE}", f"-DWHAT={what}"]
    settings += [f"-DTANDEM_LIBTORCH={LIBTORCH}"] if what == "tandem" else ["-DTANDEM_TORCH=OFF"]
    configure(HERE / "two_units", WORK / "build it", *settings, compiler=compiler)
    says(build_and_run(WORK / "build it", "program"), "one world of 1")


# ---- How libtorch is found ----------------------------------------------------------------------------------------

def make_root(folder, version="2.11.0", extra=()):
    """A libtorch that can be found, if not linked."""
    major, minor, patch = version.split(".")
    for name, text in {
            "lib/libtorch_cpu.so": "", "lib/libc10.so": "", "include/ATen/core/Tensor.h": "",
            "include/torch/headeronly/version.h": f"#define TORCH_VERSION_MAJOR {major}\n"
                                                  f"#define TORCH_VERSION_MINOR {minor}\n"
                                                  f"#define TORCH_VERSION_PATCH {patch}\n",
            "share/cmake/Torch/TorchConfig.cmake": '  set(TORCH_CXX_FLAGS "-D_GLIBCXX_USE_CXX11_ABI=1")\n',
            **{name: "" for name in extra}}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def find(*settings, **options):
    """One folder for all, so that the compiler is asked once; what an earlier call set is forgotten."""
    forget = ["-UTANDEM_LIBTORCH", "-UCMAKE_PREFIX_PATH", "-UTorch_DIR", "-DCMAKE_CXX_FLAGS="]
    return configure(HERE / "libtorch", WORK / "find", *forget, f"-DTANDEM_SOURCE={SOURCE}", *settings, **options)


def no_python(folder):
    """A PATH entry whose python3 knows no torch, so that only what a scenario sets can be found."""
    folder.mkdir(parents=True)
    (folder / "python3").write_text("#!/bin/sh\necho\n")
    (folder / "python3").chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def libtorch_places():
    path = no_python(WORK / "bin")
    one, two, three = (make_root(WORK / name) for name in ("one/libtorch", "two/libtorch", "three/torch"))
    says(find(f"-DTANDEM_LIBTORCH={one}", f"-DCMAKE_PREFIX_PATH={two}", PATH=path), f"root {one} 2.11.0 zip")
    says(find(f"-DCMAKE_PREFIX_PATH={two}", PATH=path, TANDEM_LIBTORCH=str(one)), f"root {one} 2.11.0 zip")
    says(find(f"-DCMAKE_PREFIX_PATH={two}", PATH=path), f"root {two} 2.11.0")
    says(find(PATH=path, CMAKE_PREFIX_PATH=f"/nowhere:{two}"), f"root {two} 2.11.0")
    says(find(f"-DCMAKE_PREFIX_PATH={two}/share/cmake", PATH=path), f"root {two} 2.11.0")
    says(find(f"-DTorch_DIR={two}/share/cmake/Torch", PATH=path), f"root {two} 2.11.0")
    says(find(f"-DTANDEM_LIBTORCH={one.parent}", PATH=path), f"root {one} 2.11.0")
    (WORK / "bin/python3").write_text(f"#!/bin/sh\necho '{three}'\n")
    says(find(PATH=path), f"root {three} 2.11.0")


def libtorch_refused():
    path = no_python(WORK / "bin")
    says(find(PATH=path, expect_failure=True), "libtorch was not found: set TANDEM_LIBTORCH to its folder")
    old = make_root(WORK / "old", "2.10.1")
    says(find(f"-DTANDEM_LIBTORCH={old}", PATH=path, expect_failure=True),
         f"the libtorch in {old} is 2.10.1, but tandem needs 2.11 or newer")
    good = make_root(WORK / "good", "2.12.0")
    says(find(f"-DTANDEM_LIBTORCH={good}", PATH=path), "2.12.0")
    # A place that was named and is wrong is an error, never passed over for another one.
    says(find(f"-DTANDEM_LIBTORCH={WORK}", f"-DCMAKE_PREFIX_PATH={good}", PATH=path, expect_failure=True),
         f"TANDEM_LIBTORCH is {WORK}, which has no lib/libtorch_cpu.so")
    says(find(f"-DTANDEM_LIBTORCH={good}", "-DCMAKE_CXX_FLAGS=-D_GLIBCXX_USE_CXX11_ABI=0", PATH=path,
              expect_failure=True), "add -D_GLIBCXX_USE_CXX11_ABI=1 to CMAKE_CXX_FLAGS, or remove the other one")
    says(find(f"-DTANDEM_LIBTORCH={good}", "-DCMAKE_CXX_FLAGS=", PATH=path), f"root {good}")


def libtorch_cuda():
    """Libtorch::cuda only where it could be linked: the wheel without its GPU libraries has libtorch_cuda.so too."""
    path = no_python(WORK / "bin")
    cuda = ("lib/libtorch_cuda.so", "lib/libc10_cuda.so")
    places = {
        "cpu wheel": (cuda + ("../nvidia/cu13/lib/libcudart.so.13",), "wheel, no cuda"),
        "full wheel": (cuda + ("../nvidia/cu13/lib/libcublas.so.13",), "wheel, cuda"),
        "cpu zip": ((), "zip, no cuda"),
        "cuda zip": (cuda + ("lib/libcudart-0123.so.13",), "zip, cuda"),
    }
    for name, (extra, expected) in places.items():
        root = make_root(WORK / name / "torch", extra=extra)
        says(find(f"-DTANDEM_LIBTORCH={root}", PATH=path), f"2.11.0 {expected}")


def libtorch_zip():
    """The real libraries in the official zip's layout: all in one lib folder, nothing beside it; linked and run."""
    root, real = WORK / "a zip" / "libtorch", pathlib.Path(LIBTORCH)
    (root / "lib").mkdir(parents=True)
    libraries = list((real / "lib").glob("*.so*")) + list((real.parent / "nvidia/cu13/lib").glob("*.so*"))
    for library in libraries:
        if not library.name.startswith(("libtorch_cuda", "libc10_cuda", "libtorch_python")):
            (root / "lib" / library.name).symlink_to(library)
    for name in ("include", "share"):
        (root / name).symlink_to(real / name)
    prefix = installed(WORK / "the prefix")
    output = configure(HERE / "consumer", WORK / "build it", f"-DCMAKE_PREFIX_PATH={prefix};{root}", "-DHOW=package",
                       "-DWHAT=tandem", PATH=no_python(WORK / "bin"))
    says(output, f"libtorch in {root}, zip")
    says(build_and_run(WORK / "build it", "program"), "sum 3")


def main():
    global WORK
    name, *rest = sys.argv[1:]
    WORK = WORK / "-".join([name, *rest])
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    globals()[name](*rest)
    shutil.rmtree(WORK)


if __name__ == "__main__":
    main()
