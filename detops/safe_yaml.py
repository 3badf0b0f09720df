# SPDX-License-Identifier: MIT
"""Loading of untrusted YAML."""

from typing import Any, ClassVar

import yaml

MAX_NUMBER_LENGTH = 100  # characters


class Loader(yaml.SafeLoader):
    """Rejects long numbers, and aliases, which can expand a few hundred bytes to gigabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Returns a node of the text."""
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            problem = f"aliases are not supported, got *{event.anchor[:MAX_NUMBER_LENGTH]}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        return super().compose_node(parent, index)


def _construct_number(loader: Loader, node: yaml.Node) -> Any:
    if not isinstance(node, yaml.ScalarNode) or len(node.value) > MAX_NUMBER_LENGTH:
        problem = f"expected a number of at most {MAX_NUMBER_LENGTH} characters"
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
    return yaml.SafeLoader.yaml_constructors[node.tag](loader, node)


for _kind in ("int", "float"):
    Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _construct_number)


class TextLoader(Loader):
    """Reads every scalar without a tag as text, as written: 007, 1:30, 1.50, no, null."""

    yaml_implicit_resolvers: ClassVar[dict[str, list[Any]]] = {}


def parse_yaml(text: str, loader: type[Loader] = Loader) -> Any:
    """Parses YAML without executing any of it.

    Raises:
        yaml.YAMLError: the text is not valid YAML.
    """
    try:
        return yaml.load(text, loader)
    # Endless brackets exhaust the stack, and dates may not exist in the calendar.
    except (RecursionError, ValueError, OverflowError) as error:
        raise yaml.YAMLError(str(error)) from error
    # PyYAML trusts tags: `!!bool foo` and `!!int ''` raise whatever the conversion raises.
    except (LookupError, AttributeError, TypeError) as error:
        raise yaml.YAMLError("a value does not match its tag") from error
