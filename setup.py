"""Build ndtool._kernels; all else stands in pyproject.toml.

NDTOOL_DEBUG=1: every memoryview access is checked. NDTOOL_COVERAGE=1: coverage sees .pyx lines.
"""

import os
from glob import glob

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

DEBUG = os.environ.get("NDTOOL_DEBUG") == "1"
COVERAGE = os.environ.get("NDTOOL_COVERAGE") == "1"
# -ffp-contract=off: a fused multiply-add rounds once where the sequential loop rounds twice.
# -fno-trapping-math: lets loops with a choice be vectorised; no bit of a result depends on it.
# -g0: debug sections would be most of the file.
FLAGS = ["-pthread", "-ffp-contract=off", "-fno-trapping-math"]
FLAGS += ["-O1", "-g", "-UNDEBUG"] if DEBUG else ["-O3", "-g0"]


class BuildKernels(build_ext):
    def build_extensions(self):
        self.force = True  # times of files do not show a change of flags
        self.cython_directives = {
            "boundscheck": DEBUG, "linetrace": COVERAGE, "autotestdict": False
        }  # fmt: skip
        super().build_extensions()


# Setuptools hands the .pyx to Cython; cythonize() here would leave it out of the sdist.
KERNELS = Extension(
    "ndtool._kernels",
    ["ndtool/_kernels.pyx"],
    depends=glob("ndtool/**/*.pxd", recursive=True),
    define_macros=[("CYTHON_TRACE_NOGIL", "1")] if COVERAGE else [],
    extra_compile_args=FLAGS,
    extra_link_args=["-pthread"],
)
setup(ext_modules=[KERNELS], cmdclass={"build_ext": BuildKernels})
