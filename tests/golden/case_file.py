"""Random inputs, and the files that cases are kept in."""
import json
from pathlib import Path

import h5py
import torch

torch.set_default_dtype(torch.float64)


def exact(x):
    """x rounded to float32, as a float64 leaf: what is stored is what was computed from."""
    return x.detach().float().double().requires_grad_()


def normal(*shape, scale=1.0):
    """A random input."""
    return exact(torch.randn(*shape) * scale)


def integers(values):
    """An int32 input."""
    return torch.as_tensor(values, dtype=torch.int32)


def write(path, attributes, groups):
    """One file: attributes, and tensors by group and name, float32 or int32."""
    with h5py.File(path, "w") as file:
        file.attrs["format_version"] = 1
        for name, value in attributes.items():
            file.attrs[name] = value
        for group, tensors in groups.items():
            node = file.create_group(group)
            for name, x in tensors.items():
                node[name] = (x.detach().float() if x.is_floating_point() else x).numpy()


class Writer:
    """Writes cases into a folder."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def operator(self, name, op, attributes, inputs, outputs):
        """Draws a cotangent for each output and differentiates every floating input."""
        wanted = {k: x for k, x in inputs.items() if x.requires_grad}
        differentiable = {k: y for k, y in outputs.items() if y.requires_grad}
        cotangents = {k: exact(torch.randn_like(y)) for k, y in differentiable.items()}
        grads = torch.autograd.grad(list(differentiable.values()), list(wanted.values()),
                                    list(cotangents.values())) if differentiable else []
        write(self.folder / f"{name}.h5", {"op": op, **attributes},
              {"inputs": inputs, "outputs": outputs, "cotangents": cotangents,
               "grads": dict(zip(wanted, grads))})

    def layer(self, name, mixer, layer, options, params, x):
        """One forward pass of a mixer layer."""
        write(self.folder / f"layer_{name}.h5",
              {"op": "layer", "mixer": mixer, "options": json.dumps(options)},
              {"params": params, "inputs": {"x": x}, "outputs": {"y": layer(params, x, options)}})
