"""The part of the product that runs inside a PyTorch job.

PyTorch calls our entry point at the end of ``import torch``, and that imports modules of this
package. So torch is imported here, before any of them: none is half-imported then. Under a PyTorch
that is too old none is imported.
"""

import torch

from dtr_alloc import torch_versions

if (_reason := torch_versions.older(torch.__version__)) is not None:
    raise torch_versions.BridgeError(_reason)
