"""Every public docstring has an example, and the examples are right."""

import doctest
import importlib
import importlib.util
import inspect

import pytest
import torch

import detops

SUBPACKAGES = ["ops", "config", "modeling", "engine", "data", "export", "compat", "distributed"]
SUBPACKAGES += ["visualize"]
if all(map(importlib.util.find_spec, ("starlette", "uvicorn"))):
    SUBPACKAGES.append("serve")


def public(module):
    """Yields the public functions and classes of a module; errors need no example."""
    names = getattr(module, "__all__", None) or [n for n in vars(module) if n[0] != "_"]
    for name in names:
        value = getattr(module, name)
        is_own = (getattr(value, "__module__", None) or "").startswith(module.__name__)
        if not is_own or not (inspect.isfunction(value) or inspect.isclass(value)):
            continue
        if not (inspect.isclass(value) and issubclass(value, Exception)):
            yield name, value


PUBLIC = dict(public(detops))
for subpackage in SUBPACKAGES:
    module = importlib.import_module(f"detops.{subpackage}")
    PUBLIC |= {
        f"{subpackage}.{name}": value for name, value in public(module) if name not in PUBLIC
    }
MODULES = [
    name for name, x in PUBLIC.items() if inspect.isclass(x) and issubclass(x, torch.nn.Module)
]


def example_globals(value):
    names = vars(inspect.getmodule(inspect.unwrap(value)))
    return {"torch": torch, "detops": detops, **names}


@pytest.mark.parametrize("name", PUBLIC)
def test_public_docstring_has_an_example(name):
    examples = doctest.DocTestParser().get_examples(inspect.getdoc(PUBLIC[name]))
    assert examples


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLIC)
def test_docstring_example_gives_its_output(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    value = PUBLIC[name]
    parsed = doctest.DocTestParser().get_doctest(
        inspect.getdoc(value), example_globals(value), name, None, None
    )
    report = []
    doctest.DocTestRunner().run(parsed, out=report.append)
    if hasattr(torch.Tensor, "gdh"):  # the example of register_tensor_methods adds it
        del torch.Tensor.gdh
    assert not report, "".join(report)


@pytest.mark.parametrize("name", MODULES)
def test_forward_docstring_states_shapes(name):
    assert "``[" in inspect.getdoc(PUBLIC[name].forward)
