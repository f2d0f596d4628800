"""Jobs of which torch.compile makes graphs."""

from __future__ import annotations

from bench.models.resnet import ResNetJob
from bench.models.transformer import TransformerJob


class CompiledTransformer(TransformerJob):
    """The GPT, each block compiled for itself."""

    def build(self) -> None:
        super().build()
        for block in self.model.blocks:  # type: ignore[union-attr]
            block.compile(backend="inductor")


class CompiledResNet(ResNetJob):
    """The ResNet as one graph forward, and one backward."""

    def build(self) -> None:
        super().build()
        self.model.compile(backend="inductor", fullgraph=True)
