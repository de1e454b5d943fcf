"""Build ndtool._kernels, the wheel and the sdist; pyproject.toml has all other metadata.

NDTOOL_DEBUG=1: check every memoryview access. NDTOOL_COVERAGE=1: coverage includes .pyx lines.
NDTOOL_LIMITED_API=0: a build for this version of Python alone.
"""

import gzip
import json
import os
import sys
import sysconfig
import tarfile
from glob import glob
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist
from setuptools.errors import CompileError, LinkError

DEBUG = os.environ.get("NDTOOL_DEBUG") == "1"
COVERAGE = os.environ.get("NDTOOL_COVERAGE") == "1"
# One binary for CPython 3.11 and all newer versions. Free-threaded ones lack that interface, and it
# lacks the functions for tracing.
LIMITED = os.environ.get("NDTOOL_LIMITED_API") != "0" and not (
    COVERAGE or sysconfig.get_config_var("Py_GIL_DISABLED")
)
# -ffp-contract=off: a fused multiply-add rounds once where the sequential loop rounds twice.
# -fno-trapping-math: allows loops with a select to be vectorized; results are unchanged.
# -falign-loops=64: a short loop that crosses a cache line takes up to
# 1.7 times as long, and without alignment that is random.
# -g0: debug sections would be most of the file.
FLAGS = ["-ffp-contract=off", "-fno-trapping-math", "-falign-loops=64"]
FLAGS += ["-O1", "-g", "-UNDEBUG"] if DEBUG else ["-O3", "-g0"]
# Passes of gcc that take a third of the compilation; no loop gains more than 5 % by them.
OMITTED_PASSES = [
    "-fno-gcse", "-fno-gcse-after-reload", "-fno-ipa-cp-clone", "-fno-schedule-insns2",
    "-fno-thread-jumps", "-fno-tree-dominator-opts", "-fno-tree-pre",
]  # fmt: skip
PROBE = """#ifdef _OPENMP
#include <omp.h>
int main(void) { return omp_in_parallel(); }
#else
int main(void) { return 0; }
#endif
"""
PROBE += "".join(
    f"void add{n}(float *a, const float *b, const long *rows, long count) {{\n"
    f"for (long i = 0; i < count; i++) for (int k = 0; k < {n}; k++)\n"
    f"a[rows[i] * {n} + k] += b[i * {n} + k];\n}}\n"
    for n in range(1, 65)
)
KERNELS_PER_PROBE = 47  # the processor time of compiling the kernels, by that of PROBE (gcc 12)
DIRECTIVES = {"boundscheck": DEBUG, "linetrace": COVERAGE, "autotestdict": False}
# Time stamps in the sdist and the wheel: all files of an sdist have the same one.
EPOCH = os.environ.get("SOURCE_DATE_EPOCH") or str(int(Path("pyproject.toml").stat().st_mtime))
os.environ["SOURCE_DATE_EPOCH"] = EPOCH


class BuildKernels(build_ext):
    def build_extensions(self):
        self.force = True  # or a change of flags would not cause a build
        self.cython_directives = DIRECTIVES
        openmp, links = ["-fopenmp"], ["-fopenmp"]
        if sys.platform == "darwin":  # Apple's clang has another option, and no library
            openmp, links = ["-Xpreprocessor", "-fopenmp"], ["-lomp"]
        if not self.accepts(openmp, links):
            print("notice: no OpenMP: ndtool will run on one thread", file=sys.stderr)
            openmp = links = []
        before = os.times()
        accepts = self.accepts(FLAGS + OMITTED_PASSES, [])
        used = sum(os.times()[2:4]) - sum(before[2:4])  # of the compiler
        flags = FLAGS + OMITTED_PASSES if accepts else FLAGS
        KERNELS.extra_compile_args, KERNELS.extra_link_args = flags + openmp, links
        seconds = max(1, round(KERNELS_PER_PROBE * used / 10)) * 10
        write_to_terminal(f"compiling ndtool's kernels, about {seconds} seconds on this machine")
        super().build_extensions()

    def accepts(self, flags, links):
        """Whether the compiler builds a program with these flags."""
        probe = Path(self.build_temp, "probe.c")
        probe.parent.mkdir(parents=True, exist_ok=True)
        probe.write_text(PROBE)
        try:
            objects = self.compiler.compile([str(probe)], self.build_temp, extra_postargs=flags)
            self.compiler.link_executable(objects, "probe", self.build_temp, extra_postargs=links)
        except (CompileError, LinkError):
            return False
        return True

    def copy_extensions_to_source(self):
        for stale in glob("ndtool/_kernels.*.so"):  # Python prefers names with a version tag
            os.remove(stale)
        super().copy_extensions_to_source()


def write_to_terminal(line):
    """Write a line to the terminal, if there is one, since pip hides the output of builds."""
    if sys.stderr.isatty() or os.environ.get("CI"):
        return
    try:
        with open("/dev/tty", "w") as terminal:
            print(f"\r\033[K  {line}", file=terminal)
    except OSError:
        pass


class Wheel(bdist_wheel):
    """A wheel with a software bill of materials (PEP 770) of its compiled components."""

    def egg2dist(self, egginfo_path, distinfo_path):
        super().egg2dist(egginfo_path, distinfo_path)
        folder = Path(distinfo_path, "sboms")
        folder.mkdir()
        materials = json.dumps(bill_of_materials(self.distribution.get_version()), indent=1)
        (folder / "ndtool.cdx.json").write_text(materials + "\n", "utf-8")


def bill_of_materials(release):
    """Return a CycloneDX document. auditwheel adds another for the libraries that it bundles."""
    try:
        cython = version("cython")
    except PackageNotFoundError:  # the build uses the generated C source
        cython = "unknown"

    def component(kind, name, number, purl):
        licenses = [{"license": {"id": "Apache-2.0"}}]
        fields = {"type": kind, "bom-ref": purl, "name": name, "version": number, "purl": purl}
        return fields | {"licenses": licenses}

    ndtool = component("library", "ndtool", release, f"pkg:pypi/ndtool@{release}")
    runtime = component("library", "cython", cython, f"pkg:pypi/cython@{cython}")
    runtime["description"] = "generated ndtool/_kernels.c, which includes code of its runtime"
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": ndtool},
        "components": [runtime],
        "dependencies": [{"ref": ndtool["bom-ref"], "dependsOn": [runtime["bom-ref"]]}],
    }


class ReproducibleSdist(sdist):
    """A reproducible sdist: sorted files, without owners or modification times."""

    def make_archive(self, base_name, format, root_dir=None, base_dir=None, **owner):  # noqa: A002
        if format != "gztar":
            return super().make_archive(base_name, format, root_dir, base_dir, **owner)
        name = f"{base_name}.tar.gz"
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        with (
            open(name, "wb") as file,
            gzip.GzipFile("", "wb", mtime=int(EPOCH), fileobj=file) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for path in sorted(Path(root_dir or ".", base_dir).rglob("*")):
                if path.is_file():
                    archive.add(path, filter=remove_owner_and_time)
        return name


def remove_owner_and_time(member):
    member.mtime = int(EPOCH)
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.mode & 0o100 else 0o644
    return member


# Setuptools passes the .pyx to Cython; cythonize() here would omit it from the sdist.
INCLUDED = glob("ndtool/**/*.px[di]", recursive=True)
KERNELS = Extension("ndtool._kernels", ["ndtool/_kernels.pyx"], depends=INCLUDED)
OPTIONS = {}
if LIMITED:
    KERNELS.py_limited_api = True
    KERNELS.define_macros = [("Py_LIMITED_API", "0x030B0000")]
    OPTIONS["bdist_wheel"] = {"py_limited_api": "cp311"}
if COVERAGE:
    KERNELS.define_macros = [("CYTHON_TRACE_NOGIL", "1")]
# Manual pages and shell completions, if `make wheel` made them: an sdist has them, a checkout does
# not.
SHARED = sorted(path for path in Path("share").rglob("*") if path.is_file())
setup(
    ext_modules=[KERNELS],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": Wheel, "sdist": ReproducibleSdist},
    data_files=[(str(path.parent), [str(path)]) for path in SHARED],
    options=OPTIONS,
)
