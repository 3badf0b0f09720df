# SPDX-License-Identifier: MIT
"""Entry point of the installed `detops` command: loads `detops.cli` without its package.

`import detops` registers the ops and loads PyTorch, which takes seconds. The help, the version and
usage errors need neither, so the command line is loaded on its own. Commands import the package
when they need it.
"""

import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec

NAME = "detops.cli"


def main() -> int:
    """Runs the command line; see `detops.cli.main`."""
    package = find_spec("detops")
    folder = None if package is None else package.submodule_search_locations
    spec = PathFinder.find_spec(NAME, folder)
    if not folder or spec is None or spec.loader is None:
        raise ImportError(f"{NAME} is not installed")
    module = module_from_spec(spec)
    sys.modules[NAME] = module
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        print(
            f"detops: error: the command line requires {error.name}: "
            "pip install 'detops[detector]'",
            file=sys.stderr,
        )
        return 2
    return module.main()
