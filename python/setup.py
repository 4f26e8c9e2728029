"""Builds libattune from the sources around this directory, by their Makefile, and puts it into the package.

A C compiler, make and xxHash's header build the library and the adapters. LLVM's headers build the code generator, too;
without them the package runs kernels that are in a cache, filled by attune with LLVM_VERSION (19.1.7).

Variables: BUILD, the Makefile's build directory, below the sources; ATTUNE_BUILD_CODEGEN=no leaves the code generator
out; LLVM_CONFIG and CC as for make. A source distribution holds the C sources as well, in a directory of its own.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent
SHIPPED = "sources"  # the C sources in a source distribution
ROOT = HERE / SHIPPED if (HERE / SHIPPED).is_dir() else HERE.parent
# All that make reads for a wheel. Tier 0 is made by the command, which is linked to the reference.
SOURCES = (
    "LICENSE",
    "Makefile",
    "mk",
    "include",
    "src",
    "reference",
    "third_party",
    "tools",
    "adapters",
    "scripts/bundle_run.sh",
    "scripts/generator_id.sh",
    "scripts/tier0.sh",
    "scripts/tier0_bundle.sh",
    "scripts/tier0_kernels.sh",
    "tests/sanitizers.sh",
    "tests/support",
)
BUILD = os.environ.get("BUILD", "build")
# What a wheel may need of the system, by PEP 600, as far as attune does.
SYSTEM = re.compile(r"^lib(c|m|pthread|dl|gcc_s)\.so\.[0-9]$|^ld-linux[a-z0-9-]*\.so\.[0-9]$")


def sources_or_exit() -> None:
    if not (ROOT / "include" / "attune.h").exists():
        sys.exit(f"attune's C sources are not in {ROOT}: install from the whole source tree, by 'pip install ./python'")


def version() -> str:
    sources_or_exit()
    text = (ROOT / "include" / "attune.h").read_text()
    return re.search(r'ATTUNE_VERSION_STRING "([^"]+)"', text).group(1)


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def has_llvm() -> bool:
    """Whether the code generator can be built."""
    if os.environ.get("ATTUNE_BUILD_CODEGEN") == "no":
        return False
    try:
        directory = output(os.environ.get("LLVM_CONFIG", "llvm-config-19"), "--includedir").strip()
    except (OSError, subprocess.CalledProcessError):
        return False
    return os.path.exists(os.path.join(directory, "llvm-c", "Core.h"))


def make(*targets: str, llvm: bool) -> None:
    # A make around this one has its own jobs.
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "BUILD")}
    command = ["make", "--no-print-directory", "DEPS=no", f"BUILD={BUILD}", *targets]
    if not llvm:  # both are part of the keys of cache files
        command += [f"LLVM_VERSION={os.environ.get('LLVM_VERSION', '19.1.7')}", "LLVM_LINK=static"]
    if subprocess.run(command, cwd=ROOT, env=environment, stdout=sys.stderr).returncode:
        sys.exit(f"attune's library was not built: '{' '.join(command)}' in {ROOT} failed")


def needs(files) -> "tuple[str, bool]":
    """The newest glibc that the files ask for, such as "2.34", and whether they need nothing but the system."""
    newest, portable = (2, 17), True
    for file in files:
        dynamic = output("readelf", "-dVW", str(file))
        portable &= all(SYSTEM.match(name) for name in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
                        if not name.startswith("libattune"))
        for number in re.findall(r"Name: GLIBC_([0-9.]+)", dynamic):
            newest = max(newest, tuple(int(part) for part in number.split("."))[:2])
    return "{}.{}".format(*newest), portable


class Build(build_py):
    """The package with the library in attune/lib/."""

    def run(self) -> None:
        super().run()
        library = Path(self.build_lib) / "attune" / "lib"
        shutil.rmtree(library, ignore_errors=True)
        library.mkdir(parents=True)
        products = ["wheel/libattune.so.0"]
        llvm = has_llvm()
        if llvm:
            products += ["libattune-codegen.so", "attune-codegen-worker", "libattune-tier0.so",
                         "wheel/libggml-attune.so"]
        else:
            self.warn("attune is built without its code generator, because LLVM's headers were not found (llvm-19-dev) "
                      "or ATTUNE_BUILD_CODEGEN=no: it runs kernels that are in a cache, and compiles none")
        products += [f"wheel/libattune-{adapter}.so" for adapter in ("torch", "ort", "jax", "tvm")]
        make(*(f"{BUILD}/{name}" for name in products), llvm=llvm)
        for name in products:
            copy = library / Path(name).name
            shutil.copy(ROOT / BUILD / name, copy)
            subprocess.run([os.environ.get("STRIP", "strip"), str(copy)], check=True)
        shutil.copy(ROOT / "LICENSE", library / "LICENSE")
        self.notice(library)

    @staticmethod
    def notice(library: Path) -> None:
        """The licence of xxHash, which asks for its text: that of the header that the compiler finds."""
        command = [word for name in ("CC", "CPPFLAGS", "CFLAGS") for word in os.environ.get(name, "").split()]
        if "CC" not in os.environ:
            command.insert(0, "cc")
        found = subprocess.run([*command, "-E", "-include", "xxhash.h", "-x", "c", "-"], input="", capture_output=True,
                               text=True)
        header = re.search(r'^# \d+ "([^"]*/xxhash\.h)"', found.stdout, re.M)
        text = Path(header.group(1)).read_text(errors="replace") if header else ""
        if "Copyright" not in text or "*/" not in text:
            sys.exit("the wheel needs the copyright notice of xxhash.h, which the compiler does not find")
        (library / "NOTICE").write_text("libattune contains xxHash:\n\n" + text[: text.index("*/") + 2] + "\n")

    def get_outputs(self, include_bytecode=True):
        files = (Path(self.build_lib) / "attune" / "lib").glob("*")
        return super().get_outputs(include_bytecode) + [str(file) for file in files]


class Sdist(sdist):
    """The package with the C sources, so that a wheel can be built from it."""

    def make_release_tree(self, base_dir, files) -> None:
        super().make_release_tree(base_dir, [file for file in files if not file.startswith(os.pardir)])
        for name in SOURCES:
            copy = Path(base_dir) / SHIPPED / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, copy)
            else:
                shutil.copy(ROOT / name, copy)


class Wheel(bdist_wheel):
    """A wheel for every Python, and for systems whose glibc is new enough for all that is inside."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        library = Path(self.get_finalized_command("build").build_lib) / "attune" / "lib"
        machine = super().get_tag()[2]
        files = [file for file in library.glob("*") if file.name not in ("LICENSE", "NOTICE")]
        if files and machine.startswith("linux_"):
            glibc, portable = needs(files)
            if portable:
                machine = machine.replace("linux", "manylinux_" + glibc.replace(".", "_"), 1)
        return "py3", "none", machine


class Binary(Distribution):
    def has_ext_modules(self) -> bool:
        return True


base = ROOT / BUILD / "python"
base.mkdir(parents=True, exist_ok=True)
setup(
    version=version(),
    distclass=Binary,
    cmdclass={"build_py": Build, "bdist_wheel": Wheel, "sdist": Sdist},
    options={"build": {"build_base": str(base)}, "egg_info": {"egg_base": str(base)}},
)
