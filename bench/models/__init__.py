"""The jobs that tests and benches train, by name."""

from __future__ import annotations

from bench.models.checkpointed import CheckpointJob
from bench.models.densenet import DenseNetJob
from bench.models.inplace import InplaceJob
from bench.models.job import Job, JobFactory, differences, digest
from bench.models.lstm import LstmModule, UnrolledLstm
from bench.models.mlp import Accumulation, Autocast, Mlp
from bench.models.resnet import ResNetJob
from bench.models.transformer import TransformerJob
from bench.models.treelstm import TreeLstmJob
from bench.models.unet import UNetJob
from bench.models.unrolled_gan import UnrolledGan

JOBS: dict[str, JobFactory] = {
    "mlp": Mlp,
    "resnet": ResNetJob,
    "transformer": TransformerJob,
    "lstm": UnrolledLstm,
    "lstm_module": LstmModule,
    "unet": UNetJob,
    "densenet": DenseNetJob,
    "treelstm": TreeLstmJob,
    "unrolled_gan": UnrolledGan,
    "inplace": InplaceJob,
    "checkpoint": CheckpointJob,
    "accumulation": Accumulation,
    "autocast": Autocast,
}

__all__ = ["JOBS", "Job", "JobFactory", "differences", "digest"]
