"""The native kernels, built with the package where there is a compiler and left out where there is none.

The rest of the build is declared in pyproject.toml. The library is plain C++ with a C interface, loaded through ctypes:
it needs no Python header and one build serves every Python version.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

NATIVE = Path("engine/kernels/native")
COMPILE = [
    "-std=c++17",
    "-O3",
    "-g0",  # Python's own flags ask for debugging information, ten times the size of the code
    "-pthread",
    "-fvisibility=hidden",
    # A product and a sum are fused where the source says so and nowhere else: rows must not depend on their company.
    "-ffp-contract=off",
    # gcc 12 warns of its own AVX-512 header.
    "-Wno-uninitialized",
    "-Wno-maybe-uninitialized",
]


class BuildAtOnce(build_ext):
    """Compiles the sources beside each other: one takes as long as the others together."""

    def build_extensions(self) -> None:
        """Give the compiler one source a thread; setuptools itself only shares out whole extensions."""
        compile_some = self.compiler.compile

        def compile_at_once(sources: Sequence[str], **options: Any) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                made = pool.map(lambda source: compile_some([source], **options), sources)
                return [name for names in made for name in names]

        self.compiler.compile = compile_at_once
        super().build_extensions()


setup(
    cmdclass={"build_ext": BuildAtOnce},
    ext_modules=[
        Extension(
            "engine.kernels._native",
            sources=sorted((str(path) for path in NATIVE.glob("*.cpp")), reverse=True),  # the longest near the front
            depends=sorted(str(path) for path in NATIVE.iterdir()),
            language="c++",
            extra_compile_args=COMPILE,
            extra_link_args=["-pthread"],
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
