"""A device without numbers (torch's meta), and a count of how often a host would wait for it."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

DEVICE = torch.device("meta")
# Operators that read a tensor to know what to do, or how large their result is.
_READING = {"_local_scalar_dense", "nonzero", "_unique2", "masked_select", "equal", "bincount"}


class DeviceWaits(TorchDispatchMode):
    """A context that records operators that a host waits for; each number that is read is *number*.

    A copy from the device waits unless it is ``non_blocking``, and one to it unless it is from
    pinned memory, too.
    """

    def __init__(self, monkeypatch, number=0.0):
        super().__init__()
        self.waits, self.copies, self._number = [], 0, number
        self._pinned = set()
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: self._pin(tensor))
        self._kept = []  # so that no other tensor comes to lie where a pinned one was

    def _pin(self, tensor):
        copy = tensor.clone()
        self._kept.append(copy)
        self._pinned.add(copy.untyped_storage().data_ptr())
        return copy

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, func.overloadpacket.__name__
        if name == "to":  # in inference mode, torch does not decompose it first
            with self:
                return func.decompose(*args, **kwargs)
        tensors = [
            tensor for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, torch.Tensor)
        ]
        here = [tensor for tensor in tensors if tensor.device != DEVICE]
        if name == "_to_copy" and (to := kwargs.get("device")) is not None:
            source = args[0]
            if to == DEVICE and here:
                is_pinned = source.untyped_storage().data_ptr() in self._pinned
                self._record_copy(name, is_pinned and kwargs.get("non_blocking", False))
            elif to != DEVICE and not here:
                self._record_copy(name, kwargs.get("non_blocking", False))
                return torch.full(source.shape, self._number, dtype=source.dtype)
        elif name == "copy_" and here and len(here) < len(tensors):
            self._record_copy(name, False)
        elif len(here) < len(tensors):
            if name == "lift_fresh":  # torch.tensor(numbers, device=device)
                self._record_copy(name, False)
            elif name in _READING:
                self.waits.append(name)
                return self._number
        return func(*args, **kwargs)

    def _record_copy(self, name, is_asynchronous):
        self.copies += 1
        if not is_asynchronous:
            self.waits.append(name)
