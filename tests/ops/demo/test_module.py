"""Modules with replaced parameters: parametrized, pruned or replicated."""

import pytest
import torch
from torch.nn.utils import parametrize, prune

from detops import ops


class Doubled(torch.nn.Module):
    def forward(self, x):
        return 2 * x


def mlp():
    return ops.MLP(3, 4, 2), "hidden_weights", (torch.randn(5, 3),)


def lltm_cell():
    return ops.LLTM(3, 4), "weights", (torch.randn(5, 3), (torch.randn(5, 4), torch.randn(5, 4)))


def lltm():
    return ops.LLTMSequence(3, 4), "weights", (torch.randn(2, 5, 3),)


@pytest.mark.parametrize("make", [mlp, lltm_cell, lltm])
def test_module_reads_its_current_attributes(make):
    module, name, args = make()
    weights = getattr(module, name).detach().clone()
    original = module(*args)
    doubled = torch.func.functional_call(module, {name: 2 * weights}, args)
    assert not torch.equal(doubled[0], original[0])

    parametrize.register_parametrization(module, name, Doubled())
    torch.testing.assert_close(module(*args), doubled, rtol=0, atol=0)
    parametrize.remove_parametrizations(module, name, leave_parametrized=False)
    torch.testing.assert_close(module(*args), original, rtol=0, atol=0)

    prune.random_unstructured(module, name, 0.5)
    mask = getattr(module, f"{name}_mask")
    others = {n: p for n, p in module.named_parameters() if n != f"{name}_orig"}
    pruned = torch.func.functional_call(make()[0], {name: weights * mask, **others}, args)
    torch.testing.assert_close(module(*args), pruned, rtol=0, atol=0)
    prune.remove(module, name)  # moves it after the other parameters
    torch.testing.assert_close(module(*args), pruned, rtol=0, atol=0)


@pytest.mark.parametrize("make", [mlp, lltm_cell, lltm])
def test_data_parallel_replica_reads_tensor_attributes(make):
    module, _, args = make()
    replica = module._replicate_for_data_parallel()
    for name, parameter in module.named_parameters():
        setattr(replica, name, parameter + 0)
    assert not replica._parameters
    torch.testing.assert_close(replica(*args), module(*args), rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("make", [mlp, lltm_cell, lltm])
def test_module_compiles_to_one_graph_and_exports_strictly(make):
    module, _, args = make()
    expected = module(*args)
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*args), expected)
    exported = torch.export.export(module, args, strict=True).module()
    torch.testing.assert_close(exported(*args), expected)
