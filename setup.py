"""Declare the distribution ``bunqueue``: package, extras, entry points, compiled parts.

The version stands in ``bunqueue/__init__.py`` and is read from its text, so that building
needs none of the package's own requirements. The compiled parts are optional: where they cannot be
built, one line says so and the Python runs. In a checkout: ``python setup.py build_ext --inplace``.
"""

import re
from pathlib import Path
from typing import Any

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).parent
VERSION = re.search(
    r'^__version__ = "([^"]+)"', (HERE / "bunqueue/__init__.py").read_text("utf-8"), re.MULTILINE
)
assert VERSION, "bunqueue/__init__.py states no __version__"

REQUIRES = [
    "gevent>=26.0",
    "msgpack>=1.2",
    "apsw>=3.54",
    "croniter>=7.0",
    "docopt-ng>=0.9,<1",
    "werkzeug>=3.1",
    "prometheus-client>=0.21",
    "tzdata",
]

EXTRAS = {
    "rich": ["rich>=14"],
    "s3": ["boto3>=1.40"],
    "postgres": ["psycopg[binary]>=3.3", "psycopg-pool>=3.3"],
    "flask": ["flask>=3.1"],
    "django": ["django>=5.2"],
}
EXTRAS["test"] = [
    "pytest>=9",
    "pytest-cov>=7",
    "hypothesis>=6.150",
    "time-machine>=3",
    "trustme>=1.2",
    "locust>=2.40",
    *EXTRAS["flask"],
    *EXTRAS["rich"],
]
EXTRAS["dev"] = [*EXTRAS["test"], "ruff>=0.15", "mypy>=2", "build>=1.4", "cython>=3.1"]

NOT_BUILT = "bunqueue: the compiled core was not built, pure Python will run: "


class OptionalBuild(build_ext):
    """Builds the compiled parts, all or none; what goes wrong is told in a line and no error."""

    def run(self) -> None:
        """Build them."""
        try:
            super().run()
        except Exception as error:  # a missing compiler or header shows in many classes
            for extension in self.extensions:
                Path(self.get_ext_fullpath(extension.name)).unlink(missing_ok=True)
            print(f"{NOT_BUILT}{error}")


def compiled_parts() -> list[Any]:
    """Return the extension modules, translated to C; none without Cython."""
    try:
        from Cython.Build import cythonize
    except ImportError as error:
        print(f"{NOT_BUILT}{error}")
        return []
    sources = sorted(HERE.glob("bunqueue/compiled/*.pyx"))
    parts = [
        Extension(
            f"bunqueue.compiled.{source.stem}",
            [str(source.relative_to(HERE))],
            include_dirs=["bunqueue/compiled"],
            extra_compile_args=["-O2", "-pthread"],
            extra_link_args=["-pthread"],
        )
        for source in sources
    ]
    return list(cythonize(parts, build_dir="build/cython", quiet=True))


setup(
    name="bunqueue",
    version=VERSION.group(1),
    description="A job queue in one process and one file: nothing lost, and you can see it.",
    long_description=(HERE / "README.md").read_text("utf-8"),
    long_description_content_type="text/markdown",
    packages=find_packages(include=["bunqueue", "bunqueue.*"]),
    package_data={"bunqueue": ["py.typed"]},
    exclude_package_data={"": ["*.c", "*.pyx", "*.pxd"]},
    ext_modules=compiled_parts(),
    cmdclass={"build_ext": OptionalBuild},
    python_requires=">=3.11",
    install_requires=REQUIRES,
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["bunqueue = bunqueue.cli.main:main"]},
    zip_safe=False,
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Intended Audience :: Developers",
        "Operating System :: POSIX",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: System :: Distributed Computing",
        "Typing :: Typed",
    ],
)
