"""The part of the product that runs inside a PyTorch job.

PyTorch calls our entry point at the end of ``import torch``, and that imports modules of this
package. So torch is imported here, before any of them: none is ever half-imported then.
"""

import torch  # noqa: F401
