# SPDX-License-Identifier: MIT
"""The `detops` command as it is installed: `detops.cli`, without the package around it.

`import detops` registers the ops, and loads PyTorch for that, which takes seconds; help, the
version and errors of usage need neither. So the command line is loaded by itself here.
What its commands import from the package brings in the package as always.
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
    spec.loader.exec_module(module)
    return module.main()
