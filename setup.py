"""Declare the distribution ``bunqueue``: package, extras, entry points.

The version stands in ``bunqueue/__init__.py`` and is read from its text, so that building
needs none of the package's own requirements.
"""

import re
from pathlib import Path

from setuptools import find_packages, setup

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
EXTRAS["dev"] = [*EXTRAS["test"], "ruff>=0.15", "mypy>=2", "build>=1.4"]

setup(
    name="bunqueue",
    version=VERSION.group(1),
    description="A job queue in one process and one file: nothing lost, and you can see it.",
    long_description=(HERE / "README.md").read_text("utf-8"),
    long_description_content_type="text/markdown",
    packages=find_packages(include=["bunqueue", "bunqueue.*"]),
    package_data={"bunqueue": ["py.typed"]},
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
