# SPDX-License-Identifier: MIT
"""YAML that anybody may have written."""

from typing import Any

import yaml


def parse_yaml(text: str, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> Any:
    """The values of a text in YAML, of which nothing is run.

    Raises:
        yaml.YAMLError: it is none.
    """
    try:
        return yaml.load(text, loader)
    # Brackets without an end exhaust the stack, and dates may have numbers that no calendar has.
    except (RecursionError, ValueError, OverflowError) as error:
        raise yaml.YAMLError(str(error)) from error
