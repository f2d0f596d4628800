"""Small jobs, each as the users of a framework write it. None knows dtr_alloc.

A job trains so many steps, calls `on_step` after each, and returns what its bits are compared by.
It imports its framework itself. One of DISTRIBUTED is two processes, started as by torchrun.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

OnStep = Callable[[], None]
Found = dict[str, Any]


def texts(count: int, tokens: int, vocabulary: int = 1024) -> Tensor:
    """Random ones, (count, tokens)."""
    return torch.randint(vocabulary, (count, tokens), generator=torch.Generator().manual_seed(1))


def loop(
    model: nn.Module,
    loss_of: Callable[[], Tensor],
    steps: int,
    on_step: OnStep,
    kind: Callable[..., Any] = torch.optim.AdamW,
    is_clipped: bool = True,
) -> Found:
    """The usual one."""
    optimizer = kind([each for each in model.parameters() if each.requires_grad], lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        if is_clipped:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        on_step()
    return found(losses, model, optimizer)


def found(losses: list[float], model: nn.Module, optimizer: Any) -> Found:
    return {"losses": losses, "model": model.state_dict(), "optimizer": optimizer.state_dict()}


def transformers_trainer(steps: int, on_step: OnStep) -> Found:
    import transformers

    class Told(transformers.TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            on_step()

    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_layer=4, n_embd=128, n_head=4, n_positions=128, vocab_size=1024)
    )
    data = [{"input_ids": text, "labels": text} for text in texts(64, 128)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            use_cpu=True,
            max_steps=steps,
            per_device_train_batch_size=6,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = transformers.Trainer(model, arguments, train_dataset=data, callbacks=[Told()])
        trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    return found(losses, model, trainer.optimizer)


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=1024, hidden_size=128, intermediate_size=384, **shape)
    )


def transformers_llama(steps: int, on_step: OnStep) -> Found:
    model, ids = llama(), texts(8, 128)
    return loop(model, lambda: model(input_ids=ids, labels=ids).loss, steps, on_step)


def transformers_resnet(steps: int, on_step: OnStep) -> Found:
    from transformers import ResNetConfig, ResNetForImageClassification

    shape = {"embedding_size": 16, "hidden_sizes": [16, 32, 64, 128], "depths": [2, 2, 2, 2]}
    model = ResNetForImageClassification(ResNetConfig(layer_type="basic", num_labels=10, **shape))
    images, labels = torch.randn(32, 3, 96, 96), torch.arange(32) % 10
    return loop(model, lambda: model(images, labels=labels).loss, steps, on_step)


def peft_lora(steps: int, on_step: OnStep) -> Found:
    from peft import LoraConfig, get_peft_model

    adapters = LoraConfig(r=8, lora_dropout=0.1, target_modules=["q_proj", "v_proj"])
    model, ids = get_peft_model(llama(), adapters), texts(8, 128)
    return loop(model, lambda: model(input_ids=ids, labels=ids).loss, steps, on_step)


class Encoder(nn.Module):
    """PyTorch's own transformer, which labels each token; 8 texts of 96 make up a batch."""

    def __init__(self, width: int = 128, layers: int = 4, dropout: float = 0.1) -> None:
        super().__init__()
        self.words = nn.Embedding(1024, width)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 1024)

    def forward(self, ids: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.layers(self.words(ids))).flatten(0, 1), ids.flatten())


def accelerate_loop(steps: int, on_step: OnStep) -> Found:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = Encoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data: Any = DataLoader(texts(8 * steps, 96), batch_size=4, shuffle=True)  # type: ignore[arg-type]
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    losses = []
    for ids, _ in zip(data, range(2 * steps), strict=False):
        with accelerator.accumulate(model):
            loss = model(ids)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        if accelerator.sync_gradients:
            on_step()
    return found(losses, model, optimizer)


def lightning_trainer(steps: int, on_step: OnStep) -> Found:
    import lightning

    def block(kind: type[nn.Module], i: int, o: int) -> tuple[nn.Module, ...]:
        return kind(i, o, 4, 2, 1), nn.BatchNorm2d(o), nn.ReLU(), nn.Dropout2d(0.1)

    class Autoencoder(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            down = *block(nn.Conv2d, 3, 32), *block(nn.Conv2d, 32, 64)
            up = *block(nn.ConvTranspose2d, 64, 32), *block(nn.ConvTranspose2d, 32, 16)
            self.net = nn.Sequential(*down, *up, nn.Conv2d(16, 3, 3, padding=1))
            self.losses: list[float] = []

        def training_step(self, batch: Tensor, index: int) -> Tensor:
            loss = F.mse_loss(self.net(batch), batch)
            self.log("loss", loss)
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=1e-3)

    class Told(lightning.Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            on_step()

    model = Autoencoder()
    data: Any = DataLoader(torch.randn(64, 3, 64, 64), batch_size=16, shuffle=True)  # type: ignore[arg-type]
    off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=steps,
        gradient_clip_val=1.0,
        callbacks=[Told()],
        **dict.fromkeys(off, False),
    )
    trainer.fit(model, data)
    return found(model.losses, model, trainer.optimizers[0])


def torch_geometric_graph(steps: int, on_step: OnStep) -> Found:
    from torch_geometric.nn import GATConv, GCNConv

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = nn.ModuleList(
                [GCNConv(64, 64), GATConv(64, 16, heads=4), GCNConv(64, 64), GCNConv(64, 7)]
            )

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            for conv in self.convs[:-1]:
                x = F.dropout(F.elu(conv(x, edges)), 0.2)
            return self.convs[-1](x, edges)

    model = Net()
    x, edges, y = torch.randn(3000, 64), torch.randint(3000, (2, 20000)), torch.arange(3000) % 7
    return loop(model, lambda: F.cross_entropy(model(x, edges), y), steps, on_step)


def torchao_qat(steps: int, on_step: OnStep) -> Found:
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_
    from torchao.quantization.granularity import PerGroup
    from torchao.quantization.qat import QATConfig

    model, ids = llama(), texts(8, 128)
    target = Int8DynamicActivationIntxWeightConfig(torch.int4, PerGroup(32))  # type: ignore[attr-defined]
    quantize_(model, QATConfig(target, step="prepare"))
    return loop(model, lambda: model(input_ids=ids, labels=ids).loss, steps, on_step)


def torchao_adamw8bit(steps: int, on_step: OnStep) -> Found:
    from torchao.optim import AdamW8bit

    model, ids = Encoder(), texts(8, 96)
    return loop(model, lambda: model(ids), steps, on_step, AdamW8bit)


def diffusers_unet(steps: int, on_step: OnStep) -> Found:
    from diffusers import DDPMScheduler, UNet2DModel

    noises = DDPMScheduler(1000)
    shape = {"sample_size": 32, "block_out_channels": (32, 64), "layers_per_block": 1}
    down, up = ("DownBlock2D", "AttnDownBlock2D"), ("AttnUpBlock2D", "UpBlock2D")
    model = UNet2DModel(norm_num_groups=8, down_block_types=down, up_block_types=up, **shape)
    images = torch.randn(4, 3, 32, 32)

    def loss_of() -> Tensor:
        noise, times = torch.randn_like(images), torch.randint(1000, (len(images),))
        return F.mse_loss(model(noises.add_noise(images, noise, times), times).sample, noise)

    return loop(model, loss_of, steps, on_step)


def torchrl_ppo(steps: int, on_step: OnStep) -> Found:
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule
    from torchrl.modules import NormalParamExtractor, ProbabilisticActor, TanhNormal, ValueOperator
    from torchrl.objectives import ClipPPOLoss

    def layers(outputs: int, *tail: nn.Module) -> nn.Sequential:
        body = nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh()
        return nn.Sequential(*body, nn.Linear(128, outputs), *tail)

    keys = ["loc", "scale"]
    head = TensorDictModule(layers(8, NormalParamExtractor()), ["observation"], keys)
    actor = ProbabilisticActor(head, keys, distribution_class=TanhNormal, return_log_prob=True)
    model = ClipPPOLoss(actor, ValueOperator(layers(1)))
    model.make_value_estimator(gamma=0.99, lmbda=0.95)

    def loss_of() -> Tensor:
        played = {"observation": torch.randn(32, 128, 32), "reward": torch.randn(32, 128, 1)}
        played |= dict.fromkeys(("done", "terminated"), torch.rand(32, 128, 1) < 0.01)
        data = TensorDict({"observation": torch.randn(32, 128, 32), "next": played}, (32, 128))
        with torch.no_grad():
            actor(data)
        losses = model(data)
        return losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]

    return loop(model, loss_of, steps, on_step)


def compiled(backend: str) -> Callable[[int, OnStep], Found]:
    def job(steps: int, on_step: OnStep) -> Found:
        model, ids = Encoder(), texts(8, 96)
        forward = torch.compile(model, backend=backend)
        return loop(model, lambda: forward(ids), steps, on_step)

    return job


def distributed(
    wrap: Callable[[Encoder], nn.Module], is_split: bool = False
) -> Callable[[int, OnStep], Found]:
    """PyTorch's own transformer on two processes, each with a batch of its own, or split over
    them (its gradients are of two kinds then, and cannot be clipped as one)."""

    def job(steps: int, on_step: OnStep) -> Found:
        dist.init_process_group("gloo")
        model, ids = wrap(Encoder()), texts(8, 96)
        if not is_split:
            ids = ids.roll(dist.get_rank())
        trained = loop(model, lambda: model(ids), steps, on_step, is_clipped=not is_split)
        dist.destroy_process_group()
        return trained

    return job


def sharded(model: Encoder) -> Any:
    from torch.distributed.fsdp import fully_shard

    mesh = dist.init_device_mesh("cpu", (2,))
    for layer in model.layers.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def tensor_parallel(model: Encoder) -> nn.Module:
    from torch.distributed.tensor import parallel

    mesh = dist.init_device_mesh("cpu", (2,))
    for layer in model.layers.layers:
        plan = {"linear1": parallel.ColwiseParallel(), "linear2": parallel.RowwiseParallel()}
        parallel.parallelize_module(layer, mesh, plan)
    return model


JOBS: dict[str, Callable[[int, OnStep], Found]] = {
    "transformers Trainer, GPT-2": transformers_trainer,
    "transformers, Llama": transformers_llama,
    "transformers, ResNet": transformers_resnet,
    "accelerate, accumulating": accelerate_loop,
    "peft, LoRA": peft_lora,
    "Lightning, autoencoder": lightning_trainer,
    "PyTorch Geometric, GCN and GAT": torch_geometric_graph,
    "torchao, QAT": torchao_qat,
    "torchao, AdamW8bit": torchao_adamw8bit,
    "diffusers, U-Net": diffusers_unet,
    "torchrl, PPO": torchrl_ppo,
    "compile, aot_eager": compiled("aot_eager"),
    "compile, inductor": compiled("inductor"),
}
DISTRIBUTED = {
    "DDP": distributed(nn.parallel.DistributedDataParallel),
    "FSDP2": distributed(sharded),
    "tensor parallel": distributed(tensor_parallel, is_split=True),
}
JOBS |= DISTRIBUTED
