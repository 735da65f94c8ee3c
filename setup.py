"""The native kernels, built with the package where there is a compiler and left out where there is none.

The rest of the build is declared in pyproject.toml. The library is plain C++ with a C interface, loaded through ctypes:
it needs no Python header and one build serves every Python version.
"""

from pathlib import Path

from setuptools import Extension, setup

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

setup(
    ext_modules=[
        Extension(
            "engine.kernels._native",
            sources=sorted(str(path) for path in NATIVE.glob("*.cpp")),
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
