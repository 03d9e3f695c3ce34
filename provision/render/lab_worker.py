"""Renders one template of a lab, within limits of memory: `python -m provision.render.lab_worker`.

Reads path, name and values from standard input, as `render.templates` pickles them, and prints a JSON
document with the text, or with the error's message and advice.
"""

from __future__ import annotations

import json
import pickle
import resource
import sys

from provision.core.errors import InvalidSpec
from provision.render import templates


def main() -> None:
    import jinja2.sandbox  # noqa: F401 - before the limit, so that only the template can exceed it

    path, name, values = pickle.load(sys.stdin.buffer)
    limit = templates.MEMORY_LIMIT
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        document = {"text": templates.render_lab_file(path, name, values)}
    except InvalidSpec as error:
        document = {"message": error.message, "advice": error.advice}
    json.dump(document, sys.stdout)


if __name__ == "__main__":
    main()
