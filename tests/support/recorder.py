"""A mode that records the calls of detops ops."""

from torch.utils._python_dispatch import TorchDispatchMode


class Recorder(TorchDispatchMode):
    """Stores the op, the arguments and the keywords of each call."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "detops":
            self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))
