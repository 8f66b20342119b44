"""Run the blocks of a guide page in order, in this interpreter; a program of its own.

``run_page.py PAGE BLOCKS``: BLOCKS is a JSON file of ``[language, text, line, file]``. Python
blocks share one namespace, as in a session; bash blocks share one shell; a block with a file name
is saved. The last line printed is a JSON list of what each block printed. A failing block ends the
program, with a traceback that names the page and its line.

It imports next to nothing, because a page may begin by patching the standard library.
"""

import json
import os
import subprocess
import sys
from io import StringIO

END = "--- end of block"


class Shell:
    """A bash that runs one block after another."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            ["bash", "-e"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, text: str) -> str:
        """Return what the block printed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{{\n{text}\n}} < /dev/null\necho '{END}'\n")
        self._process.stdin.flush()
        printed = ""
        for line in self._process.stdout:
            if line == f"{END}\n":
                return printed
            printed += line
        raise RuntimeError(f"status {self._process.wait()} of:\n{text}\nwhich printed:\n{printed}")

    def close(self) -> None:
        """End it; what it has started is ended by whoever started this program."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


def main() -> None:
    page = sys.argv[1]
    with open(sys.argv[2], encoding="utf-8") as given:
        blocks = json.load(given)
    scope: dict[str, object] = {"__name__": "__main__"}
    sys.path.insert(0, os.getcwd())
    shell: Shell | None = None
    outputs = []
    told = sys.stdout
    try:
        for language, text, line, file in blocks:
            printed = ""
            if file is not None:
                with open(file, "w", encoding="utf-8") as saved:
                    saved.write(text)
            elif language == "bash":
                # One shell for all, so that a block may use what another has set or started.
                shell = shell or Shell()
                printed = shell.run(text)
            elif language == "python":
                sys.stdout = StringIO()
                try:
                    exec(compile("\n" * (line - 1) + text, page, "exec"), scope)
                finally:
                    printed, sys.stdout = sys.stdout.getvalue(), told
            outputs.append(printed)
    finally:
        if shell is not None:
            shell.close()
    print(f"\n{json.dumps(outputs)}", flush=True)


main()
